//! `make manifests`: writes the generated files (CRDs, permissions, `deploy/`, `example/`, `docs/reference/`) into the
//! source tree.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    Ok(xtask::write(Path::new(root))?)
}
