//! Runs a target in libFuzzer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, Ordering};

pub use libfuzzer_sys;
use libfuzzer_sys::Corpus;

/// Maximum memory that an input may take, in bytes: a webhook's `body` may take 16 MiB.
const MAX_MEMORY: isize = 64 * 1024 * 1024;

/// Defines the fuzzer of a target.
#[macro_export]
macro_rules! fuzz {
    ($target:path) => {
        use $crate::libfuzzer_sys;

        libfuzzer_sys::fuzz_target!(init: $crate::init(), |input: &[u8]| -> libfuzzer_sys::Corpus {
            $crate::run($target, input)
        });
    };
}

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Replaces libFuzzer's panic hook, which aborts: the operator catches panics of the CEL library.
pub fn init() {
    panic::set_hook(Box::new(|panic| {
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = panic.to_string();
        }
    }));
}

/// Passes an input to a target, which takes text only.
pub fn run(target: fn(&str), input: &[u8]) -> Corpus {
    let Ok(text) = std::str::from_utf8(input) else {
        return Corpus::Reject;
    };
    let before = MEMORY.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = panic::catch_unwind(AssertUnwindSafe(|| target(text)));
    let taken = PEAK.load(Ordering::Relaxed) - before;
    if result.is_err() {
        eprintln!(
            "{}",
            LAST_PANIC
                .lock()
                .map_or_else(|_| String::new(), |last| last.clone())
        );
    } else if taken > MAX_MEMORY {
        eprintln!("the input took {taken} bytes");
    } else {
        return Corpus::Keep;
    }
    // libFuzzer then writes the input to a file.
    std::process::abort();
}

static MEMORY: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: isize) {
    let now = MEMORY.fetch_add(change, Ordering::Relaxed) + change;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(block, layout, size) }
    }
}
