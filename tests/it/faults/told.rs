//! What a webhook receiver was told.

use serde_json::Value;
use testbed::receiver::Receiver;

/// One request that carried entries.
#[derive(Debug)]
pub struct Told {
    /// The path it went to: each contact point of a test has its own.
    pub path: String,
    /// The sender's `--cluster-name`.
    pub sender: String,
    /// The receiver said 2xx.
    pub taken: bool,
    /// What it carried, in order.
    pub entries: Vec<Entry>,
}

/// One entry of a request.
#[derive(Debug)]
pub struct Entry {
    /// Its id.
    pub id: String,
    /// The `TrackedField`.
    pub field: String,
    /// `Created`, `Updated` or `Deleted`.
    pub action: String,
    /// Its value.
    pub value: Option<String>,
    /// Length of the whole value, where it was truncated.
    pub length: Option<u64>,
    /// How many changes it stands for.
    pub changes: u64,
}

/// All that the receiver was told, without test messages.
pub fn told(receiver: &Receiver) -> Vec<Told> {
    let requests = receiver.requests();
    let told = requests.iter().filter_map(|request| {
        let body = request.json().unwrap();
        let entries: Vec<Entry> = match body["entries"].as_array() {
            Some(entries) => {
                let ids: Vec<_> = entries.iter().map(|entry| entry["id"].clone()).collect();
                assert_eq!(
                    body["ids"],
                    Value::Array(ids),
                    "a digest lists the ids of its entries"
                );
                entries.iter().map(Entry::read).collect()
            }
            None if body.get("id").is_some() => vec![Entry::read(&body)],
            None => Vec::new(),
        };
        (!entries.is_empty()).then(|| Told {
            path: request.path.clone(),
            sender: body["cluster"].as_str().unwrap_or_default().to_owned(),
            taken: request.answered.is_some_and(|status| status.is_success()),
            entries,
        })
    });
    told.collect()
}

impl Entry {
    fn read(data: &Value) -> Self {
        let text = |name: &str| data[name].as_str().map(str::to_owned);
        Self {
            id: text("id").unwrap(),
            field: text("trackedField").unwrap(),
            action: text("action").unwrap(),
            value: text("value"),
            length: data["truncated"]["length"].as_u64(),
            changes: data["merged"].as_u64().unwrap(),
        }
    }
}
