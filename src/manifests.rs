//! What is generated from the code: CRDs and rights, under `config/`.

use serde::Serialize;
use serde_json::Value;

use crate::registry;

/// Why manifests could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object that cannot be written as YAML.
    #[error("cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
    /// An object that cannot be written as JSON.
    #[error("cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// All CRDs as one stream of YAML documents.
pub fn crds_yaml() -> Result<String, Error> {
    stream(&registry::crds())
}

/// The fields that rules and messages stand in are one line each, as `kubectl` prints them.
fn yaml(object: &impl Serialize) -> Result<String, Error> {
    let mut object = serde_json::to_value(object)?;
    whole_numbers(&mut object);
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(serde_saphyr::to_string_with_options(&object, options)?)
}

/// The API's types hold a schema's bounds as floats, and `30.0` reads badly.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            #[allow(clippy::cast_possible_truncation)] // bounds are small; what is no whole number stays
            if let Some(float) = number.as_f64().filter(|f| number.is_f64() && f.fract() == 0.0 && f.abs() < 1e15) {
                *number = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

fn stream(objects: &[impl Serialize]) -> Result<String, Error> {
    objects.iter().map(|object| Ok(format!("---\n{}", yaml(object)?))).collect()
}
