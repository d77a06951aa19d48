//! Files of the source tree, generated YAML, and the errors of generating files.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Serialize;
use serde_json::Value;

/// Why files could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// An object cannot be written as YAML.
    #[error("cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
    /// An object cannot be written as JSON.
    #[error("cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A file, or what kubectl built, cannot be parsed.
    #[error("{}: {source}", path.display())]
    Parse {
        path: PathBuf,
        source: Box<serde_saphyr::Error>,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file that is written by hand does not exist.
    #[error("{} is missing: write it (see docs/add-a-kind.md)", .0.display())]
    Missing(PathBuf),
    /// kubectl did not build a kustomization.
    #[error("kubectl kustomize: {0}")]
    Kustomize(String),
}

/// Path in the source tree, and text of a file.
pub type File = (String, String);

/// Reads a file of the source tree `root`.
pub(crate) fn read(root: &Path, path: impl AsRef<Path>) -> Result<String, GenerateError> {
    let path = path.as_ref();
    fs::read_to_string(root.join(path)).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => GenerateError::Missing(path.into()),
        _ => GenerateError::File {
            path: path.into(),
            source,
        },
    })
}

pub(crate) fn generated(yaml: &str) -> String {
    format!("# Generated from the code: run `make manifests`.\n{yaml}")
}

/// Returns one document. Rules and messages are on one line each, as `kubectl` prints them.
pub(crate) fn yaml(object: &impl Serialize) -> Result<String, GenerateError> {
    let mut object = serde_json::to_value(object)?;
    whole_numbers(&mut object);
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(format!(
        "---\n{}",
        serde_saphyr::to_string_with_options(&object, options)?
    ))
}

/// Converts whole floats to integers: the API's types have a schema's bounds as floats, and `30.0` is hard to read.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            #[allow(clippy::cast_possible_truncation)] // bounded by the condition
            if let Some(float) = number
                .as_f64()
                .filter(|f| number.is_f64() && f.fract() == 0.0 && f.abs() < 1e15)
            {
                *number = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use quartermaster::controllers;

    use super::*;

    /// A rule's quotes and backslashes survive YAML.
    #[test]
    fn yaml_reads_back_unchanged() {
        for crd in controllers::crds() {
            let read: Value = serde_saphyr::from_str(&yaml(&crd).unwrap()).unwrap();
            let mut written = serde_json::to_value(&crd).unwrap();
            whole_numbers(&mut written);
            assert_eq!(read, written);
        }
    }
}
