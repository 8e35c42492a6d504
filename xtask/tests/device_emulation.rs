//! The whole path over RDMA devices: `ROCE_TEST_DEVICE`, and `ROCE_TEST_PEER_DEVICE` for the software FPGA's end. Without
//! the latter both ends share the port, which then needs two addresses; `ROCE_TEST_SECOND_ADDRESS=IFACE=IP/LENGTH` adds one
//! for the time of a test, and makes a soft-RoCE device on it where the device named is not there. `cargo xtask vm-test` and `cargo xtask test-device` build what is needed and run these.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

#[allow(dead_code)] // each test file uses what it needs
mod device;

use std::fs;
use std::path::Path;
use std::process::Command;

use device::{plays, said, succeed, var, wait_until};

/// 100 increments and 512 shots.
const ALL: u64 = 612;

/// The second address; goes when dropped.
enum SecondAddress {
    /// With a soft-RoCE device that came with it.
    WithDevice,
    /// Alone: a card's interface gets nothing else.
    Alone { interface: String, address: String },
}

impl SecondAddress {
    fn add_where_asked_for(device: &str) -> Option<Self> {
        let asked = var("ROCE_TEST_SECOND_ADDRESS")?;
        let (interface, address) =
            asked.split_once('=').expect("ROCE_TEST_SECOND_ADDRESS is IFACE=IP/LENGTH");
        let known = Path::new("/sys/class/infiniband").join(device);
        if !known.exists() {
            succeed(&["net-setup", "--rxe", interface, "--address", address]);
            return Some(Self::WithDevice);
        }
        let gids = || {
            let entries = fs::read_dir(known.join("ports/1/gids")).unwrap();
            entries
                .filter_map(|gid| fs::read_to_string(gid.ok()?.path()).ok())
                .filter(|gid| is_mapped(gid))
                .count()
        };
        let before = gids();
        said("ip", &["address", "add", address, "dev", interface]);
        let added = Self::Alone { interface: interface.to_owned(), address: address.to_owned() };
        wait_until("the second address has a GID", || gids() > before);
        Some(added)
    }
}

/// Is this GID an IPv4 address?
fn is_mapped(gid: &str) -> bool {
    gid.starts_with("0000:0000:0000:0000:0000:ffff:")
}

impl Drop for SecondAddress {
    fn drop(&mut self) {
        match self {
            Self::WithDevice => drop(device::xtask(&["net-teardown"])),
            Self::Alone { interface, address } => {
                drop(Command::new("ip").args(["address", "delete", address, "dev", interface]).status());
            }
        }
    }
}

fn run(command: &[&str], option: &str, flags: &[&str], messages: u64) {
    let device = var("ROCE_TEST_DEVICE").expect(
        "ROCE_TEST_DEVICE is not set: name an RDMA device to test on (`rdma link` lists them), or run these with \
         `cargo xtask vm-test`",
    );
    let peer = var("ROCE_TEST_PEER_DEVICE");
    let _address = SecondAddress::add_where_asked_for(&device);
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
