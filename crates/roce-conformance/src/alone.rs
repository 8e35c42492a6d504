//! Cases that count what the whole process holds.

use std::env;
use std::fs;
use std::process::Command;

use crate::wait::wait_until;

/// The variable that names the case which a process is there for: it then runs there, and not in a child.
pub const ALONE: &str = "ROCE_CONFORMANCE_ALONE";

/// Runs `body` in a process where nothing else does: this test program again, with only the test of that name.
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    if env::var_os(ALONE).is_some_and(|case| case == name) {
        return body();
    }
    let program = env::current_exe().expect("a test program has a path");
    let child = Command::new(program)
        .args(["--exact", name, "--include-ignored", "--test-threads=1", "--nocapture"])
        .env(ALONE, name)
        .output()
        .expect("this test program starts again");
    let out = String::from_utf8_lossy(&child.stdout);
    let err = String::from_utf8_lossy(&child.stderr);
    let ran = child.status.success() && out.contains("1 passed");
    assert!(ran, "{name} in its own process ({}):\n{out}{err}", child.status);
}

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holdings {
    files: usize,
    threads: usize,
}

impl Holdings {
    /// Of this process.
    pub(crate) fn now() -> Self {
        Self { files: entries("/proc/self/fd"), threads: entries("/proc/self/task") }
    }

    /// Asserts that this process holds as much again. A thread that was joined is seen a moment longer.
    pub(crate) fn assert_again(self, what: &str) {
        wait_until("joined threads to vanish", || Self::now().threads <= self.threads);
        assert_eq!(Self::now(), self, "{what}");
    }
}

fn entries(dir: &str) -> usize {
    fs::read_dir(dir).expect("procfs").count()
}

/// Bytes of memory that this process really has.
pub(crate) fn resident_bytes() -> usize {
    const PAGE: usize = 4096;
    let statm = fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("statm says how many pages are resident") * PAGE
}
