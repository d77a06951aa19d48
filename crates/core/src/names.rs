//! Names of an operator's labels and annotations.

/// Names of the labels and annotations of one operator, all below one domain.
/// [`metadata_names!`](crate::metadata_names) creates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataNames {
    /// Prefix of all names: the domain and a slash.
    pub prefix: &'static str,
    /// Annotation: any new value triggers a reconcile and resets the object's backoff.
    pub requested_at: &'static str,
    /// Annotation of a CRD: number and digest of its schema, such as `2-8b29606cd506f2d3`. A CRD with a lower number or
    /// without the annotation counts as missing, because it prunes newer fields.
    pub schema: &'static str,
    /// Label of a child: UID of its owner.
    pub owner_uid: &'static str,
    /// Annotation of a child: owner as `NAMESPACE/NAME`.
    pub owner: &'static str,
    /// Annotation: owner that may adopt the object, as `NAMESPACE/NAME`.
    pub adopt_by: &'static str,
    /// Annotation of a child: digest of the applied state.
    pub applied_digest: &'static str,
}

/// Creates the [`MetadataNames`] of an operator from its domain.
#[macro_export]
macro_rules! metadata_names {
    ($domain:literal) => {
        $crate::names::MetadataNames {
            prefix: concat!($domain, "/"),
            requested_at: concat!($domain, "/requested-at"),
            schema: concat!($domain, "/schema"),
            owner_uid: concat!($domain, "/owner-uid"),
            owner: concat!($domain, "/owner"),
            adopt_by: concat!($domain, "/adopt-by"),
            applied_digest: concat!($domain, "/applied-digest"),
        }
    };
}
