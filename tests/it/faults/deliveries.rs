//! Requests that a webhook receiver got.

use serde_json::Value;
use testbed::receiver::Receiver;

/// A request that carried entries.
#[derive(Debug)]
pub struct Delivery {
    /// The path of the request: each contact point of a test has its own.
    pub path: String,
    /// The sender's `--cluster-name`.
    pub sender: String,
    /// Whether the receiver answered 2xx.
    pub accepted: bool,
    /// The request's entries, in order.
    pub entries: Vec<Entry>,
}

#[derive(Debug)]
pub struct Entry {
    pub id: String,
    pub field: String,
    /// `Created`, `Updated` or `Deleted`.
    pub action: String,
    pub value: Option<String>,
    /// Length of the whole value, if it was truncated.
    pub length: Option<u64>,
    /// Number of changes that were merged into the entry.
    pub changes: u64,
}

/// Returns all requests to the receiver, without test messages.
pub fn deliveries(receiver: &Receiver) -> Vec<Delivery> {
    let requests = receiver.requests();
    let deliveries = requests.iter().filter_map(|request| {
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
        (!entries.is_empty()).then(|| Delivery {
            path: request.path.clone(),
            sender: body["cluster"].as_str().unwrap_or_default().to_owned(),
            accepted: request.answered.is_some_and(|status| status.is_success()),
            entries,
        })
    });
    deliveries.collect()
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
