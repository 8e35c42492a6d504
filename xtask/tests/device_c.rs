//! C and C++ programs on the installed library over RDMA devices, `ROCE_TEST_DEVICE` at `ROCE_TEST_IP` and
//! `ROCE_TEST_PEER_DEVICE` at `ROCE_TEST_PEER_IP`. `cargo xtask vm-test` builds them and runs these.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const CALLS: &str = "100";
/// Of `messages.c`: those in which the link is what matters. Threads on both ends are in the services.
const CASES: [&str; 7] =
    ["modes", "later_slot_first", "lapped", "lapped_by_default", "unified_send", "unified_write", "callback"];

fn var(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set; `cargo xtask vm-test` runs these tests"))
}

/// One of the built programs, on the installed library.
fn program(name: &str) -> Command {
    let target = Path::new(env!("CARGO_BIN_EXE_xtask")).ancestors().nth(2).unwrap();
    let installed = target.join("installed");
    let mut command = Command::new(installed.join("programs").join(name));
    command.env("LD_LIBRARY_PATH", installed.join("lib"));
    command
}

/// Ends with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serves(service: &str) {
    let (ip, peer_ip) = (var("ROCE_TEST_IP"), var("ROCE_TEST_PEER_IP"));
    let mut command = program(service);
    command.args([&var("ROCE_TEST_PEER_DEVICE"), &peer_ip, "0", CALLS]).stdout(Stdio::piped());
    let mut service = Service(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(service.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim_end().rsplit(' ').next().unwrap();
    let caller =
        program("ring_caller").args([&var("ROCE_TEST_DEVICE"), &ip, &peer_ip, port, CALLS]).output().unwrap();
    assert!(caller.status.success(), "{}", String::from_utf8_lossy(&caller.stderr));
    assert_eq!(String::from_utf8_lossy(&caller.stdout), format!("{CALLS} of {CALLS} calls answered well\n"));
    assert!(service.0.wait().unwrap().success());
}

#[test]
#[ignore = "needs the RDMA devices that ROCE_TEST_DEVICE and ROCE_TEST_PEER_DEVICE name"]
fn a_service_over_the_rings() {
    serves("ring_service");
}

#[test]
#[ignore = "needs the RDMA devices that ROCE_TEST_DEVICE and ROCE_TEST_PEER_DEVICE name"]
fn a_service_in_unified_mode() {
    serves("unified_service");
}

#[test]
#[ignore = "needs the RDMA devices that ROCE_TEST_DEVICE and ROCE_TEST_PEER_DEVICE name"]
fn messages_in_all_modes() {
    let place = |device: &str, ip: &str| format!("{}@{}", var(device), var(ip));
    let ours = place("ROCE_TEST_DEVICE", "ROCE_TEST_IP");
    let theirs = place("ROCE_TEST_PEER_DEVICE", "ROCE_TEST_PEER_IP");
    for case in CASES {
        let output = program("messages").args([case, &ours, &theirs]).output().unwrap();
        assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
