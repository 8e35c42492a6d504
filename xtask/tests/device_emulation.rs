//! The whole path over RDMA devices: `ROCE_TEST_DEVICE`, and `ROCE_TEST_PEER_DEVICE` for the software FPGA's end. Without
//! the latter both ends share the port, which then needs two addresses; `ROCE_TEST_SECOND_ADDRESS=IFACE=IP/LENGTH` adds one
//! for the time of a test, and makes a soft-RoCE device where the interface has none. `cargo xtask vm-test` and `cargo xtask test-device` build what is needed and run these.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

#[allow(dead_code)] // each test file uses what it needs
mod device;

use device::{plays, succeed, var};

/// 100 increments and 512 shots.
const ALL: u64 = 612;

/// The second address; goes when dropped.
struct SecondAddress;

impl SecondAddress {
    fn add_where_asked_for() -> Option<Self> {
        let asked = var("ROCE_TEST_SECOND_ADDRESS")?;
        let (interface, address) =
            asked.split_once('=').expect("ROCE_TEST_SECOND_ADDRESS is IFACE=IP/LENGTH");
        succeed(&["net-setup", "--rxe", interface, "--address", address]);
        Some(Self)
    }
}

impl Drop for SecondAddress {
    fn drop(&mut self) {
        device::xtask(&["net-teardown"]);
    }
}

fn run(command: &[&str], option: &str, flags: &[&str], messages: u64) {
    let device = var("ROCE_TEST_DEVICE").expect(
        "ROCE_TEST_DEVICE is not set: name an RDMA device to test on (`rdma link` lists them), or run these with \
         `cargo xtask vm-test`",
    );
    let peer = var("ROCE_TEST_PEER_DEVICE");
    let _address = SecondAddress::add_where_asked_for();
    let mut args = [command, &[option, &device]].concat();
    if let Some(peer) = &peer {
        args.extend(["--peer-device", peer]);
    }
    plays(&[&args, flags].concat(), messages);
}

fn emulate(flags: &[&str]) {
    run(&["emulate"], "--backend", flags, ALL);
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn threads() {
    emulate(&[]);
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn unified() {
    emulate(&["--unified"]);
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn forward() {
    emulate(&["--forward"]);
}

/// Frames of several packets at the smaller path MTUs.
#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn large_frames() {
    let flags =
        ["--workload", "increment", "--payload-size", "8000", "--page-size", "8192", "--num-messages", "4"];
    run(&["emulate"], "--backend", &flags, 4);
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn hw_test() {
    run(&["hw-test"], "--device", &["--workload", "increment"], 100);
}
