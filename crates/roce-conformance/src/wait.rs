//! Waiting for a condition.

use std::thread;
use std::time::{Duration, Instant};

/// For a machine that is very busy.
const CEILING: Duration = Duration::from_secs(60);

/// Waits until `done` gives something.
pub(crate) fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + CEILING;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::yield_now();
    }
}

/// Waits until `done` says so.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    wait_for(what, || done().then_some(()));
}
