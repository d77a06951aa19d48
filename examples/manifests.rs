//! `make manifests`: writes what is generated (CRDs, rights, `deploy/`, `example/`, `docs/reference/`) into the source tree.

use std::path::Path;

use quartermaster::manifests;

fn main() -> anyhow::Result<()> {
    Ok(manifests::write(Path::new(env!("CARGO_MANIFEST_DIR")))?)
}
