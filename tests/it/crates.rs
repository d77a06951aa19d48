//! The crates depend on each other in one direction.

use std::collections::BTreeSet;
use std::path::Path;

/// Each crate with the crates of this workspace that it may depend on, besides the testbed in tests.
const DEPENDENCIES: [(&str, &[&str]); 6] = [
    ("crates/core", &[]),
    ("crates/api", &["qm-core"]),
    ("crates/runtime", &["qm-core"]),
    ("crates/notify", &["qm-api", "qm-core", "qm-runtime"]),
    ("crates/aws", &["qm-core", "qm-runtime"]),
    ("testbed", &[]),
];

#[test]
fn crates_depend_on_lower_crates_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, allowed) in DEPENDENCIES {
        let manifest = std::fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
        let own: BTreeSet<_> = manifest
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|name| name.starts_with("qm-") || *name == "quartermaster")
            .collect();
        let allowed: BTreeSet<_> = allowed.iter().copied().collect();
        assert!(own.is_subset(&allowed), "{folder} depends on {own:?}");
    }
    let folders = std::fs::read_dir(root.join("crates")).unwrap();
    for folder in folders {
        let name = format!("crates/{}", folder.unwrap().file_name().to_string_lossy());
        let known = DEPENDENCIES.iter().any(|(folder, _)| *folder == name);
        assert!(known, "{name}: add the crate and what it may depend on");
    }
}

/// A program that reads or writes the operator's objects needs no client of this project.
#[test]
fn api_types_need_no_client() {
    for folder in ["crates/core", "crates/api"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let manifest = std::fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
        assert!(
            manifest.contains("\nkube.workspace = true\n"),
            "{folder}: kube without the feature client"
        );
    }
}
