//! Objects of any kind as the JSON text of the apiserver, decoded within memory limits.
//!
//! Decoded JSON takes up to 100 times the memory of its text (a map of one member takes 632 bytes), so an object that
//! fits into etcd can take more memory than the operator has.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::{ApiResource, DynamicResourceScope, PartialObjectMeta};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Maximum memory of a decoded object, in bytes. Objects with a long text are decoded one at a time.
pub const MAX_DECODED: usize = 24 * 1024 * 1024;

/// Maximum memory of a decoded object of a known type, in bytes. The largest child that the operator writes takes 10 MiB,
/// with the `managedFields` of the operator alone.
const MAX_TYPED: usize = 16 * 1024 * 1024;

/// Memory of a decoded object from which a controller has one of them in memory at a time, in bytes.
pub const LARGE: usize = 1024 * 1024;

/// Bytes of a value in a list.
pub(crate) const VALUE_BYTES: usize = 32;
/// Bytes of a member of a map, whose nodes hold 11 members and are at least half full.
pub(crate) const MEMBER_BYTES: usize = 130;
/// Bytes of a map without its members.
pub(crate) const MAP_BYTES: usize = 632;
/// Bytes of a string that is not empty, without its text.
const STRING_BYTES: usize = 32;

/// An object of which only the identity is decoded.
#[derive(Clone, Debug)]
pub struct RawObject {
    /// Name, namespace, UID, resourceVersion and creationTimestamp alone.
    metadata: ObjectMeta,
    text: Box<RawValue>,
}

/// Error of an object that would take too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl RawObject {
    /// Returns the API of the objects of type `K` in a namespace.
    pub fn api<K: Resource<DynamicType = ()>>(client: Client, namespace: &str) -> Api<Self> {
        Api::namespaced_with(client, namespace, &ApiResource::erase::<K>(&()))
    }

    /// Decodes the object, unless that takes more than [`MAX_DECODED`].
    ///
    /// # Errors
    /// [`TooLarge`] in the inner result; the outer error cannot occur, because the text was parsed before.
    pub fn decode(&self) -> serde_json::Result<Result<Value, TooLarge>> {
        let text = self.text.get();
        if decoded_size(text) > MAX_DECODED {
            return Ok(Err(TooLarge));
        }
        serde_json::from_str(text).map(Ok)
    }

    /// Decodes the object as a known type, whatever its size.
    ///
    /// # Errors
    /// The object is not of this type.
    pub fn decode_as<K: DeserializeOwned>(&self) -> serde_json::Result<K> {
        serde_json::from_str(self.text.get())
    }

    /// Returns the approximate memory that the object takes once it is decoded, in bytes.
    pub fn decoded_size(&self) -> usize {
        decoded_size(self.text.get())
    }

    /// Returns the object's labels.
    pub fn labels(&self) -> BTreeMap<String, String> {
        #[derive(Default, Deserialize)]
        struct Object {
            metadata: Labels,
        }
        #[derive(Default, Deserialize)]
        struct Labels {
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        // An object from a metadata watch has no text, and the text was parsed before.
        self.metadata.labels.clone().unwrap_or_else(|| {
            let object: Object = serde_json::from_str(self.text.get()).unwrap_or_default();
            object.metadata.labels.unwrap_or_default()
        })
    }

    /// Returns only the object's identity.
    #[must_use]
    pub fn without_text(self) -> Self {
        Self {
            text: RawValue::NULL.to_owned(),
            ..self
        }
    }

    /// Returns the length of the object's JSON, in bytes.
    pub fn text_len(&self) -> usize {
        self.text.get().len()
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Identity,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Identity {
            name: Option<String>,
            namespace: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            creation_timestamp: Option<Time>,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Object { metadata } =
            serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        let Identity {
            name,
            namespace,
            uid,
            resource_version,
            creation_timestamp,
        } = metadata;
        Ok(Self {
            metadata: ObjectMeta {
                name,
                namespace,
                uid,
                resource_version,
                creation_timestamp,
                ..ObjectMeta::default()
            },
            text,
        })
    }
}

impl Resource for RawObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An object of a known type. An object that takes too much memory or cannot be decoded keeps only its metadata without
/// `managedFields`; all other fields have their defaults. An error would make its whole list or watch fail.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct BoundedObject<K> {
    /// The whole object, or its metadata.
    pub object: K,
    /// Why only the metadata was decoded; `None` for a whole object.
    #[serde(skip)]
    problem: Option<String>,
}

impl<K> BoundedObject<K> {
    /// Wraps a whole object.
    pub fn new(object: K) -> Self {
        Self {
            object,
            problem: None,
        }
    }

    /// Returns the object, unless only its metadata was decoded.
    ///
    /// # Errors
    /// [`kube::Error::SerdeError`] with the reason.
    pub fn whole(self) -> kube::Result<K> {
        let Some(problem) = self.problem else {
            return Ok(self.object);
        };
        let error = <serde_json::Error as serde::de::Error>::custom(problem);
        Err(kube::Error::SerdeError(error))
    }
}

impl<'de, K: DeserializeOwned + Resource + Default> Deserialize<'de> for BoundedObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let text = text.get();
        let whole = if decoded_size(text) > MAX_TYPED {
            Err("the object is too large".to_owned())
        } else {
            serde_json::from_str(text)
                .or_else(|_| without_template_times(text))
                .map_err(|error| error.to_string())
        };
        let (object, problem) = match whole {
            Ok(object) => (Ok(object), None),
            Err(problem) => (metadata_alone(text), Some(problem)),
        };
        let object = object.map_err(serde::de::Error::custom)?;
        Ok(Self { object, problem })
    }
}

/// Decodes an object without the times of its Pod template, which have no meaning. The apiserver stores whatever times
/// users write there, and jiff decodes none after 9999-12-30T22:00:00Z.
fn without_template_times<K: DeserializeOwned>(text: &str) -> serde_json::Result<K> {
    let mut object: Value = serde_json::from_str(text)?;
    if let Some(Value::Object(metadata)) = object.pointer_mut("/spec/template/metadata") {
        metadata.remove("creationTimestamp");
        metadata.remove("deletionTimestamp");
    }
    serde_json::from_value(object)
}

fn metadata_alone<K: Resource + Default>(text: &str) -> serde_json::Result<K> {
    #[derive(Deserialize)]
    struct Object {
        metadata: BTreeMap<String, Box<RawValue>>,
    }
    let Object { mut metadata } = serde_json::from_str(text)?;
    metadata.remove("managedFields");
    let mut object = K::default();
    *object.meta_mut() = serde_json::from_str(&serde_json::to_string(&metadata)?)?;
    Ok(object)
}

impl<K: Resource> Resource for BoundedObject<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

impl From<PartialObjectMeta> for RawObject {
    fn from(PartialObjectMeta { metadata, .. }: PartialObjectMeta) -> Self {
        Self {
            metadata,
            text: RawValue::NULL.to_owned(),
        }
    }
}

/// Returns the approximate memory that the values of a JSON text take, in bytes.
pub(crate) fn decoded_size(json: &str) -> usize {
    let (mut values, mut members, mut maps, mut strings) = (1, 0, 0, 0);
    let (mut in_string, mut is_empty, mut escaped) = (false, false, false);
    for byte in json.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => (in_string, strings) = (false, strings + usize::from(!is_empty)),
                _ => {}
            }
            is_empty = false;
            continue;
        }
        match byte {
            b'"' => (in_string, is_empty) = (true, true),
            b',' | b'[' => values += 1,
            b':' => members += 1,
            b'{' => (values, maps) = (values + 1, maps + 1),
            _ => {}
        }
    }
    json.len()
        + values * VALUE_BYTES
        + members * MEMBER_BYTES
        + maps * MAP_BYTES
        + strings * STRING_BYTES
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::api::apps::v1::Deployment;
    use kube::ResourceExt as _;
    use kube::core::WatchEvent;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn text(spec: &Value) -> String {
        let metadata = json!({ "name": "web", "namespace": "shop", "uid": "1", "resourceVersion": "7", "labels": { "a": "b" } });
        json!({ "apiVersion": "v1", "kind": "A", "metadata": metadata, "spec": spec }).to_string()
    }

    #[test]
    fn object_of_a_list_or_a_watch_is_decoded_on_demand() {
        let text = text(&json!({ "a": [1, { "b": "\"{,:\\" }] }));
        let whole: Value = serde_json::from_str(&text).unwrap();
        let event = format!(r#"{{"type":"MODIFIED","object":{text}}}"#);
        let WatchEvent::Modified(watched) = serde_json::from_str(&event).unwrap() else {
            panic!("{event}")
        };
        let by_value: RawObject = serde_json::from_value(whole.clone()).unwrap();
        for object in [
            watched,
            by_value,
            serde_json::from_str::<RawObject>(&text).unwrap(),
        ] {
            let identity = (
                object.name_any(),
                object.namespace(),
                object.uid(),
                object.resource_version(),
            );
            assert_eq!(
                identity,
                (
                    "web".into(),
                    Some("shop".into()),
                    Some("1".into()),
                    Some("7".into())
                )
            );
            assert_eq!(object.decode().unwrap().unwrap(), whole);
        }
    }

    #[test]
    fn object_without_metadata_is_an_error() {
        assert!(serde_json::from_str::<RawObject>(r#"{"kind":"A"}"#).is_err());
        assert!(serde_json::from_str::<RawObject>("[]").is_err());
    }

    /// Each object fits into an etcd of the usual size.
    #[rstest]
    #[case::arguments(json!({ "args": vec![""; 700_000] }), true)]
    #[case::variables(json!({ "env": vec![json!({ "name": "a" }); 100_000] }), false)]
    #[case::empty_maps(json!({ "volumes": vec![json!({ "emptyDir": {} }); 100_000] }), false)]
    #[case::one_text(json!({ "text": "\",{:".repeat(350_000) }), true)]
    fn too_large_object_is_not_decoded(#[case] spec: Value, #[case] fits: bool) {
        let object: RawObject = serde_json::from_str(&text(&spec)).unwrap();
        assert_eq!(object.decode().unwrap().is_ok(), fits);
        assert_eq!(object.name_any(), "web");
    }

    #[test]
    fn too_large_object_of_a_known_type_keeps_its_metadata() {
        let volumes = |count| json!(vec![json!({ "name": "v", "emptyDir": {} }); count]);
        for (count, fits) in [(100, true), (10_000, false)] {
            let mut object = json!({
                "metadata": { "name": "web", "labels": { "a": "b" }, "ownerReferences": [{ "uid": "1" }] },
                "spec": { "template": { "spec": { "containers": [], "volumes": volumes(count) } } },
            });
            object["metadata"]["managedFields"] = json!([{ "manager": "m" }]);
            let object: BoundedObject<Deployment> =
                serde_json::from_str(&object.to_string()).unwrap();
            assert_eq!(
                (
                    object.name_any(),
                    object.labels().len(),
                    object.owner_references().len()
                ),
                ("web".into(), 1, 1)
            );
            assert_eq!(
                (
                    object.object.spec.is_some(),
                    !object.managed_fields().is_empty()
                ),
                (fits, fits)
            );
            assert_eq!(object.whole().is_ok(), fits);
        }
    }

    #[rstest]
    #[case::creation("creationTimestamp")]
    #[case::deletion("deletionTimestamp")]
    fn template_with_a_time_that_cannot_be_decoded_is_decoded_without_the_time(
        #[case] field: &str,
    ) {
        let mut object = json!({
            "metadata": { "name": "web", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "replicas": 2, "template": { "metadata": { "labels": { "a": "b" } } } },
        });
        let decode = |object: &Value| {
            let object = serde_json::from_str::<BoundedObject<Deployment>>(&object.to_string());
            json!(object.unwrap().whole().unwrap())
        };
        let expected = decode(&object);
        object["spec"]["template"]["metadata"][field] = "9999-12-31T23:59:59Z".into();
        assert_eq!(decode(&object), expected);
        assert_eq!(expected["spec"]["replicas"], 2);
    }

    #[test]
    fn object_that_cannot_be_decoded_keeps_its_metadata() {
        let condition = json!({ "type": "Available", "status": "True", "lastUpdateTime": "9999-12-31T23:59:59Z" });
        let object = json!({
            "metadata": { "name": "web", "labels": { "a": "b" } },
            "status": { "conditions": [condition] },
        });
        let object: BoundedObject<Deployment> = serde_json::from_str(&object.to_string()).unwrap();
        assert_eq!(
            (object.name_any(), object.labels().len()),
            ("web".into(), 1)
        );
        assert_eq!(object.object.status, None);
        assert!(object.whole().is_err());
    }
}
