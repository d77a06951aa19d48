//! A name of a type means one thing, in every file of the product.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::imports::Crate;

/// Names that several files define, and why.
const SHARED: [(&str, &str); 1] = [(
    "Result",
    "the name of std's type, with the error of a crate or of a parser",
)];

const ROOTS: [&str; 8] = [
    "crates/core/src/lib.rs",
    "crates/api/src/lib.rs",
    "crates/runtime/src/lib.rs",
    "crates/notify/src/lib.rs",
    "crates/aws/src/lib.rs",
    "src/lib.rs",
    "src/main.rs",
    "xtask/src/lib.rs",
];

#[test]
fn types_share_no_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = |path: &Path| std::fs::read_to_string(folder.join(path)).ok();
    let mut files = BTreeMap::<String, BTreeSet<String>>::new();
    for root in ROOTS {
        for (name, file) in Crate::read(Path::new(root), &source).types() {
            files.entry(name.into()).or_default().insert(file.into());
        }
    }
    files.retain(|_, files| files.len() > 1);
    for (name, why) in SHARED {
        let was_shared = files.remove(name).is_some();
        assert!(
            was_shared,
            "{name} ({why}): no longer shared, so remove it from SHARED"
        );
    }
    assert!(
        files.is_empty(),
        "rename all but one of the types that share a name: {files:#?}"
    );
}
