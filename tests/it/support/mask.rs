//! Placeholders for values that differ from run to run.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

/// Placeholder of a time within the step.
const NOW: &str = "<now>";
/// Placeholder of a time before the step.
const EARLIER: &str = "<earlier>";

/// Fields whose values the apiserver or the clock determines.
const VOLATILE: [&str; 3] = ["suspendedSeconds", "nodePort", "resourceVersion"];

/// Minimum lengths at which hexadecimal or decimal digits count as a digest or a generated id, with the radix.
const IDS: [(usize, u32); 2] = [(16, 16), (9, 10)];

/// Replaces values that differ from run to run.
pub struct Mask {
    namespace: String,
    began: Timestamp,
}

impl Mask {
    /// Returns the mask for a step that began at this time, in a test with this namespace.
    pub fn new(namespace: &str, began: Timestamp) -> Self {
        Self {
            namespace: namespace.into(),
            began,
        }
    }

    /// Masks all strings of a value and the volatile fields.
    pub fn json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.whole(text).into(),
            Value::Array(items) => items.iter().map(|item| self.json(item)).collect(),
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    let is_volatile = VOLATILE.contains(&name.as_str());
                    let value = if is_volatile {
                        "<number>".into()
                    } else {
                        self.json(value)
                    };
                    (self.text(name), value)
                };
                Value::Object(fields.iter().map(field).collect())
            }
            other => other.clone(),
        }
    }

    /// Masks a whole string: a time becomes [`NOW`] or [`EARLIER`].
    fn whole(&self, text: &str) -> String {
        match text.parse::<Timestamp>() {
            Ok(time) if time.as_second() >= self.began.as_second() => NOW.into(),
            Ok(_) => EARLIER.into(),
            Err(_) => self.text(text),
        }
    }

    /// Masks the volatile words of a text.
    pub fn text(&self, text: &str) -> String {
        let text = text.replace(&self.namespace, "<namespace>");
        let mut masked = String::new();
        let mut rest = text.as_str();
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphanumeric()) {
            masked.push_str(&rest[..start]);
            rest = &rest[start..];
            let is_word = |c: char| c.is_ascii_alphanumeric() || ".:-".contains(c);
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let word = rest[..end].trim_end_matches(['.', ':', '-']);
            masked.push_str(&self::word(word));
            rest = &rest[word.len()..];
        }
        masked + rest
    }
}

fn word(word: &str) -> String {
    let host = word.split_once(':').map_or(word, |(host, _)| host);
    if host.parse::<Ipv4Addr>().is_ok() {
        return "<address>".into();
    }
    if word.len() == 36 && Uuid::parse_str(word).is_ok() {
        return "<uuid>".into();
    }
    if word.parse::<Timestamp>().is_ok() {
        return "<time>".into();
    }
    let is_id = |part: &str| {
        let is_long =
            |(length, radix)| part.len() >= length && part.chars().all(|c| c.is_digit(radix));
        IDS.into_iter().any(is_long)
    };
    let parts = word.split_inclusive(['.', ':', '-']).map(|part| {
        let bare = part.trim_end_matches(['.', ':', '-']);
        part.replace(bare, if is_id(bare) { "<id>" } else { bare })
    });
    parts.collect()
}

/// Returns a value of one step as the next step shows it if nothing changes: times are earlier then.
pub fn aged(value: &Value) -> Value {
    match value {
        Value::String(text) if text == NOW => EARLIER.into(),
        Value::Array(items) => items.iter().map(aged).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| (name.clone(), aged(value));
            Value::Object(fields.iter().map(field).collect())
        }
        other => other.clone(),
    }
}

#[test]
fn mask_replaces_volatile_values() {
    use serde_json::json;

    let mask = Mask::new("web-1a2b3c4d", "2026-01-02T03:04:05.5Z".parse().unwrap());
    for (text, masked) in [
        ("web-1a2b3c4d/web", "<namespace>/web"),
        (
            "POST http://127.0.0.1:4711/a: 404.",
            "POST http://<address>/a: 404.",
        ),
        ("since 2026-01-02T03:04:05Z: 1.7.9", "since <time>: 1.7.9"),
        ("id 0190163d-8694-739b-aea5-966c26f8ad90.", "id <uuid>."),
        ("app/web-alb/50dc6c495c0c9188", "app/web-alb/<id>"),
        ("digest-8595101e9a05b712-x", "digest-<id>-x"),
        ("web-alb-5764769453.us-east-1", "web-alb-<id>.us-east-1"),
        ("web-alb-595572210.us-east-1", "web-alb-<id>.us-east-1"),
        ("nginx:1.29 ...", "nginx:1.29 ..."),
    ] {
        assert_eq!(mask.text(text), masked);
    }
    let value = json!({ "at": "2026-01-02T03:04:05Z", "nodePort": 30_001, "port": 80 });
    let masked = json!({ "at": NOW, "nodePort": "<number>", "port": 80 });
    assert_eq!(mask.json(&value), masked);
    assert_eq!(mask.json(&json!("2026-01-02T03:04:04Z")), json!(EARLIER));
    assert_eq!(aged(&masked)["at"], EARLIER);
}
