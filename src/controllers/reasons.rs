//! Reasons that several kinds have. One failure has one reason on every kind.

/// Reason of an object that needs a namespace, or cluster-scoped objects, outside the operator's scope.
pub(crate) const OUT_OF_SCOPE: &str = "OutOfScope";
/// Reason of an object that names a namespace that does not exist.
pub(crate) const NAMESPACE_NOT_FOUND: &str = "NamespaceNotFound";
