//! Objects and processes of unusual size.
//!
//! On a slow machine, the apiserver may complete a request with a large object only after its own time limit, and
//! answer 504. The functions here repeat such requests.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Error, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use testbed::usage::Memory;
use testbed::wait::until;
use tokio::sync::{Mutex, MutexGuard};

use super::SOON;

/// Memory limit of a replica's container, in MiB.
pub const LIMIT: f64 = 128.0;

/// Waits until no other test holds the guard. Tests that store more than 100 MB hold it, or objects of so many items that
/// the apiserver needs gigabytes to change one: CI's machine has room for one such control plane.
pub async fn only_large_test() -> MutexGuard<'static, ()> {
    static LARGE: Mutex<()> = Mutex::const_new(());
    LARGE.lock().await
}

/// Creates a large object.
pub async fn create_large<K>(api: &Api<K>, object: &K)
where
    K: Clone + Debug + DeserializeOwned + Resource + Serialize,
{
    let name = object.name_any();
    until(format!("{name} is created"), SOON, async || {
        match api.create(&PostParams::default(), object).await {
            Err(Error::Api(status)) if status.is_already_exists() => Ok(Some(())),
            created => Ok(created.map(|_| Some(()))?),
        }
    })
    .await
    .unwrap();
}

/// Changes a large object. The patch has to have the same result when it is repeated.
pub async fn patch_large<K>(api: &Api<K>, name: &str, patch: &Patch<impl Debug + Serialize>)
where
    K: Clone + Debug + DeserializeOwned,
{
    until(format!("{name} is patched"), SOON, async || {
        // The answer would be the whole object.
        let params = PatchParams::default();
        Ok(Some(api.patch_metadata(name, &params, patch).await?))
    })
    .await
    .unwrap();
}

/// Deletes a large object. One with finalizers remains, Terminating.
pub async fn delete_large<K>(api: &Api<K>, name: &str)
where
    K: Clone + Debug + DeserializeOwned,
{
    until(format!("{name} is deleted"), SOON, async || {
        api.delete(name, &DeleteParams::default()).await?;
        Ok(Some(()))
    })
    .await
    .unwrap();
}

/// Maximum of the measured memory of a process, in MiB.
pub struct Peak {
    ended: Arc<AtomicBool>,
    looking: std::thread::JoinHandle<f64>,
}

impl Peak {
    pub fn watch(process: u32) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let looking = std::thread::spawn(move || {
            let mut peak = 0_f64;
            // A test that fails ends the process first.
            while !seen.load(Ordering::Relaxed)
                && let Ok(memory) = Memory::of(process)
            {
                peak = peak.max(memory.anonymous);
                std::thread::sleep(Duration::from_millis(5));
            }
            peak
        });
        Self { ended, looking }
    }

    pub fn end(self) -> f64 {
        self.ended.store(true, Ordering::Relaxed);
        self.looking.join().unwrap()
    }
}
