//! Requests to the apiserver, parsed from method and path as the apiserver does.

use http::{Method, Uri};
use serde::Deserialize;

/// The verbs of RBAC:
/// <https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // each is what its name says
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// Verb of a non-resource request: `/version`, `/readyz`, discovery.
    Other,
}

impl Verb {
    /// Returns whether the verb may change something.
    pub fn is_write(self) -> bool {
        matches!(
            self,
            Self::Create | Self::Update | Self::Patch | Self::Delete | Self::DeleteCollection
        )
    }
}

/// A request to the apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    /// The verb.
    pub verb: Verb,
    /// The API group, empty for the core group.
    pub group: String,
    /// The plural, such as `configmaps`; empty with [`Verb::Other`].
    pub resource: String,
    /// The subresource, such as `status`; empty if there is none.
    pub subresource: String,
    /// The namespace, if any.
    pub namespace: Option<String>,
    /// The object's name. For a create the name comes from the body (JSON only; `generateName` if there is no name),
    /// for a list or watch from a field selector on `metadata.name`.
    pub name: Option<String>,
    /// The path, without the query.
    pub path: String,
    /// The query, empty if there is none.
    pub query: String,
}

impl ApiRequest {
    pub(super) fn parse(method: &Method, uri: &Uri) -> Self {
        let (path, query) = (
            uri.path().to_owned(),
            uri.query().unwrap_or_default().to_owned(),
        );
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let group = match parts.next() {
            Some("api") => Some(String::new()),
            Some("apis") => parts.next().map(ToOwned::to_owned),
            _ => None,
        };
        let has_version = parts.next().is_some();
        let rest: Vec<&str> = parts.collect();
        let Some((group, (namespace, [resource, named @ ..]))) =
            group.filter(|_| has_version).map(|g| (g, scope(&rest)))
        else {
            return Self {
                verb: Verb::Other,
                group: String::new(),
                resource: String::new(),
                subresource: String::new(),
                namespace: None,
                name: None,
                path,
                query,
            };
        };
        let name = named.first().map(|name| (*name).to_owned());
        Self {
            verb: verb(method, name.is_some(), &query),
            group,
            resource: (*resource).to_owned(),
            subresource: named.get(1..).unwrap_or_default().join("/"),
            namespace,
            name: name.or_else(|| selected_name(&query)),
            path,
            query,
        }
    }

    /// Sets the fields that only the body of a create has.
    pub(super) fn read_body(&mut self, body: &[u8]) {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            name: Option<String>,
            generate_name: Option<String>,
        }
        if self.name.is_none()
            && let Ok(Object { metadata }) = serde_json::from_slice(body)
        {
            self.name = metadata.name.or(metadata.generate_name);
        }
    }
}

/// Returns the namespace, and the path segments from the resource on. `namespaces` is itself the resource if only its
/// own subresources follow.
fn scope<'a, 'b>(rest: &'a [&'b str]) -> (Option<String>, &'a [&'b str]) {
    match rest {
        ["namespaces", namespace, "status" | "finalize", ..] | ["namespaces", namespace] => {
            (Some((*namespace).to_owned()), rest)
        }
        ["namespaces", namespace, inner @ ..] => (Some((*namespace).to_owned()), inner),
        _ => (None, rest),
    }
}

fn verb(method: &Method, named: bool, query: &str) -> Verb {
    match *method {
        Method::GET | Method::HEAD => {
            if query
                .split('&')
                .any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"))
            {
                Verb::Watch
            } else if named {
                Verb::Get
            } else {
                Verb::List
            }
        }
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if named => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        _ => Verb::Other,
    }
}

fn selected_name(query: &str) -> Option<String> {
    let selector = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("fieldSelector="))?;
    // A name has no character that needs escaping, so only the separators are escaped.
    let selector = selector
        .replace("%3D", "=")
        .replace("%3d", "=")
        .replace("%2C", ",")
        .replace("%2c", ",");
    let name = selector
        .split(',')
        .find_map(|term| term.strip_prefix("metadata.name="))?;
    Some(name.trim_start_matches('=').to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    type Wanted<'a> = (
        Verb,
        &'a str,
        &'a str,
        &'a str,
        Option<&'a str>,
        Option<&'a str>,
    );

    #[test]
    fn paths_are_parsed_like_the_apiserver() {
        let cases: [(&str, &str, Wanted); 17] = [
            (
                "GET",
                "/api/v1/configmaps?limit=500",
                (Verb::List, "", "configmaps", "", None, None),
            ),
            (
                "GET",
                "/api/v1/configmaps?watch=true",
                (Verb::Watch, "", "configmaps", "", None, None),
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/p",
                (Verb::Get, "", "pods", "", Some("a"), Some("p")),
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/p/log",
                (Verb::Get, "", "pods", "log", Some("a"), Some("p")),
            ),
            (
                "GET",
                "/api/v1/namespaces",
                (Verb::List, "", "namespaces", "", None, None),
            ),
            (
                "GET",
                "/api/v1/namespaces/a",
                (Verb::Get, "", "namespaces", "", Some("a"), Some("a")),
            ),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                (
                    Verb::Update,
                    "",
                    "namespaces",
                    "finalize",
                    Some("a"),
                    Some("a"),
                ),
            ),
            (
                "POST",
                "/apis/apps/v1/namespaces/a/deployments",
                (Verb::Create, "apps", "deployments", "", Some("a"), None),
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d/status?fieldManager=x",
                (
                    Verb::Patch,
                    "apps",
                    "deployments",
                    "status",
                    Some("a"),
                    Some("d"),
                ),
            ),
            (
                "DELETE",
                "/apis/g/v1/things/t",
                (Verb::Delete, "g", "things", "", None, Some("t")),
            ),
            (
                "DELETE",
                "/apis/g/v1/namespaces/a/things",
                (Verb::DeleteCollection, "g", "things", "", Some("a"), None),
            ),
            (
                "GET",
                "/apis/g/v1/namespaces/a/things?fieldSelector=metadata.name%3Dt&watch=1",
                (Verb::Watch, "g", "things", "", Some("a"), Some("t")),
            ),
            ("GET", "/apis/g/v1", (Verb::Other, "", "", "", None, None)),
            ("GET", "/apis", (Verb::Other, "", "", "", None, None)),
            ("GET", "/api/v1", (Verb::Other, "", "", "", None, None)),
            ("GET", "/version", (Verb::Other, "", "", "", None, None)),
            (
                "POST",
                "/api/v1/namespaces/a/serviceaccounts/s/token",
                (
                    Verb::Create,
                    "",
                    "serviceaccounts",
                    "token",
                    Some("a"),
                    Some("s"),
                ),
            ),
        ];
        for (method, uri, (verb, group, resource, subresource, namespace, name)) in cases {
            let parsed = ApiRequest::parse(&method.parse().unwrap(), &uri.parse().unwrap());
            assert_eq!(
                (
                    parsed.verb,
                    &*parsed.group,
                    &*parsed.resource,
                    &*parsed.subresource,
                    parsed.namespace.as_deref(),
                    parsed.name.as_deref()
                ),
                (verb, group, resource, subresource, namespace, name),
                "{method} {uri}"
            );
        }
    }

    #[test]
    fn name_of_created_object_comes_from_body() {
        let mut parsed =
            ApiRequest::parse(&Method::POST, &"/api/v1/namespaces/a/pods".parse().unwrap());
        parsed.read_body(b"\x00protobuf");
        assert_eq!(parsed.name, None);
        parsed.read_body(br#"{"metadata":{"generateName":"p-"}}"#);
        assert_eq!(parsed.name.as_deref(), Some("p-"));
    }
}
