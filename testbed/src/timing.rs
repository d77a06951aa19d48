//! Records the duration of each test, from its first use of a control plane to its end.

use std::fs::File;
use std::io::Write as _;
use std::thread;
use std::time::Instant;

/// The environment variable that names the file to which each test adds a line: seconds and name.
const TIMES_VARIABLE: &str = "TESTBED_TIMES";

struct Test {
    name: Option<String>,
    began: Instant,
}

thread_local! {
    /// Guard that is dropped when the test ends, because each test has its own thread with its name.
    static TEST: Test = Test {
        name: thread::current().name().map(str::to_owned),
        began: Instant::now(),
    };
}

/// Starts the time of the calling test, at its first call.
pub(crate) fn begin() {
    TEST.with(|_| ());
}

impl Drop for Test {
    fn drop(&mut self) {
        let Some((path, name)) = std::env::var_os(TIMES_VARIABLE).zip(self.name.as_ref()) else {
            return;
        };
        // Threads of a runtime have no module in their name.
        if name.contains("::") {
            let line = format!("{:7.1} s  {name}\n", self.began.elapsed().as_secs_f32());
            let file = File::options().create(true).append(true).open(path);
            // A missing record must not fail a test.
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
    }
}
