//! On an RDMA device the message path allocates nothing, reads no clock and makes no system call. Allowed is what is none
//! of its: threads that wait yield; one idle poll in thousands looks into the file of the device's events; and the
//! kernel's software devices have no doorbell but a write to their file.
//!
//! `ROCE_TEST_DEVICE=rxe0 cargo test -p roce-conformance --features verbs --test quiet_device -- --ignored`

mod quiet;

use std::ffi::c_int;
use std::fs;

use quiet::{Allowed, assert_quiet, trips};
use roce_conformance::VerbsLinks;

/// To be called when the queue pairs are there.
fn allowed(links: &VerbsLinks) -> Allowed {
    let on = |call, files: Vec<c_int>| files.into_iter().map(move |file| (call, file));
    let events = open_files("anon_inode:[infinibandevent]");
    assert!(!events.is_empty(), "each device has a file of events");
    let doorbells = if links.are_software() { open_files("/dev/infiniband/") } else { Vec::new() };
    let on_files = on(libc::SYS_read, events).chain(on(libc::SYS_write, doorbells)).collect();
    Allowed { on_files, ..Allowed::default() }
}

/// Those whose names begin so.
fn open_files(prefix: &str) -> Vec<c_int> {
    let files = fs::read_dir("/proc/self/fd").expect("procfs").filter_map(Result::ok);
    let named = files.filter(|file| {
        fs::read_link(file.path())
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(prefix.as_bytes()))
    });
    named.filter_map(|file| file.file_name().to_str()?.parse().ok()).collect()
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn unified() {
    let links = VerbsLinks::from_env();
    assert_quiet("unified", || (trips::unified(&links), allowed(&links)));
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn dispatched() {
    let links = VerbsLinks::from_env();
    assert_quiet("dispatched", || (trips::dispatched(&links), allowed(&links)));
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn threads() {
    let links = VerbsLinks::from_env();
    assert_quiet("threads", || (trips::threads(&links), allowed(&links).and_yields()));
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn forward() {
    let links = VerbsLinks::from_env();
    assert_quiet("forward", || (trips::forward(&links), allowed(&links).and_yields()));
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn bursts() {
    let links = VerbsLinks::from_env();
    assert_quiet("bursts", || (trips::bursts(&links), allowed(&links)));
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn poller() {
    let links = VerbsLinks::from_env();
    assert_quiet("poller", || (trips::poller(&links), allowed(&links).and_yields()));
}
