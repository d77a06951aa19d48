//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit of open files as far as the process may. systemd's default is 1,024, for programs that use
/// select(2), and a thousand connections that hang would use it up.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, "cannot raise the limit of open files; will keep it");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn limit_is_raised_to_the_maximum() {
        let before = getrlimit(Resource::Nofile);
        let lower = Rlimit {
            current: before.current.map(|files| files - 1),
            ..before
        };
        setrlimit(Resource::Nofile, lower).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
