//! `make manifests`: writes the generated files (CRDs, permissions, `deploy/`, `example/`, `docs/reference/`, `bundle/`) into the
//! source tree. The variable `KUBECTL` names the kubectl to run; the default is the one on `PATH`.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let kubectl = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
    Ok(xtask::write(Path::new(root), &kubectl)?)
}
