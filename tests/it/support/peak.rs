//! Peak of the memory of an operator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testbed::usage::Memory;

/// Memory limit of a replica's container, in MiB.
pub const LIMIT: f64 = 128.0;

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
            while !seen.load(Ordering::Relaxed) {
                peak = peak.max(Memory::of(process).unwrap().anonymous);
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
