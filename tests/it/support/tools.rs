//! Tools that are built once.

use std::collections::HashMap;

use tokio::process::Command;
use tokio::sync::Mutex;

/// Returns one of `hack/tools`, and builds it if it is missing.
pub async fn tool(name: &'static str) -> &'static str {
    static BUILT: Mutex<Option<HashMap<&'static str, &'static str>>> = Mutex::const_new(None);
    let mut built = BUILT.lock().await;
    let built = built.get_or_insert_with(HashMap::new);
    if let Some(path) = built.get(name) {
        return path;
    }
    let mut build = Command::new("bash");
    build
        .args(["hack/tools/build.sh", name])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .kill_on_drop(true);
    let output = build.output().await.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let path = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .to_owned()
        .leak();
    built.insert(name, path);
    path
}
