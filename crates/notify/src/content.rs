//! Content of a request: entries with their context, or a test message.

use std::sync::Arc;

use kube::ResourceExt;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use qm_runtime::ObjectKey;

/// Entry of a `TrackedField` with the context that its message needs.
#[derive(Clone, Debug)]
pub struct OutgoingEntry {
    /// Namespace of the `TrackedField`.
    pub namespace: String,
    /// Name of the `TrackedField`.
    pub name: String,
    /// UID of the `TrackedField`.
    pub uid: String,
    /// `spec.template`.
    pub template: Option<Arc<str>>,
    pub entry: Entry,
    /// Entry with the previous value: the preceding one, if it has the same subject and has not failed.
    pub previous: Option<Entry>,
}

impl OutgoingEntry {
    /// Creates an outgoing entry of `object`; all entries of an object share its `template`.
    pub fn of(
        object: &TrackedField,
        template: Option<Arc<str>>,
        entry: &Entry,
        previous: Option<&Entry>,
    ) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            template,
            entry: entry.clone(),
            previous: previous.cloned(),
        }
    }

    /// Returns the key of the `TrackedField`.
    pub fn field(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }
}

/// Content of a request.
#[derive(Clone, Copy, Debug)]
pub enum MessageContent<'a> {
    /// Test message of a contact point: "Contact point is ready".
    Test {
        /// Namespace of the contact point.
        namespace: &'a str,
        /// Name of the contact point.
        name: &'a str,
        /// Message id; a repeated message keeps it.
        id: &'a str,
    },
    /// Entries to send, in this order; the request carries as many as fit. More than one make a digest. Never empty.
    Entries(&'a [OutgoingEntry]),
}

impl MessageContent<'_> {
    /// Returns the namespace of the contact point, which is that of the entries.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Test { namespace, .. } => namespace,
            Self::Entries(items) => items.first().map_or("", |item| &item.namespace),
        }
    }
}
