//! RoCEv2 in userspace on one end, the kernel's soft-RoCE on the other: `ROCE_TEST_DEVICE` with `ROCE_TEST_IP` here,
//! `ROCE_TEST_FAR_IP` in the network namespace `ROCE_TEST_FAR`. The software FPGA sends with WRITE_WITH_IMM and is
//! answered with SEND, so turning the ends round tests both operations in both directions. The kernel drops what has a
//! wrong ICRC, and counts its IP identification on. `cargo xtask vm-test` runs these.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

#[allow(dead_code)] // each test file uses what it needs
mod device;

use device::{plays, var};

fn need(name: &str) -> String {
    var(name).unwrap_or_else(|| panic!("{name} is not set; `cargo xtask vm-test` runs this where it is"))
}

/// The bridge on the device, the software FPGA on soft in the other namespace.
fn kernel_answers_soft(flags: &[&str], messages: u64) {
    let (device, ip) = (need("ROCE_TEST_DEVICE"), need("ROCE_TEST_IP"));
    let (far, far_ip) = (need("ROCE_TEST_FAR"), need("ROCE_TEST_FAR_IP"));
    let link = ["emulate", "--backend", &device, "--bridge-ip", &ip, "--peer-device", "soft"];
    let there = ["--emulator-ip", &far_ip, "--emulator-netns", &far];
    plays(&[&link[..], &there, flags].concat(), messages);
}

/// The other way round.
fn soft_answers_kernel(flags: &[&str], messages: u64) {
    let (device, ip) = (need("ROCE_TEST_DEVICE"), need("ROCE_TEST_IP"));
    let (far, far_ip) = (need("ROCE_TEST_FAR"), need("ROCE_TEST_FAR_IP"));
    let link = ["emulate", "--backend", "soft", "--bridge-ip", &far_ip, "--bridge-netns", &far];
    let here = ["--peer-device", &device, "--emulator-ip", &ip];
    plays(&[&link[..], &here, flags].concat(), messages);
}

const INCREMENT: [&str; 2] = ["--workload", "increment"];
/// Several packets a message, at every path MTU.
const LARGE: [&str; 8] =
    ["--workload", "increment", "--payload-size", "16000", "--page-size", "16128", "--num-messages", "2"];

#[test]
#[ignore = "needs soft-RoCE beside a network namespace"]
fn kernel_bridge_and_soft_fpga() {
    kernel_answers_soft(&[], 612);
}

#[test]
#[ignore = "needs soft-RoCE beside a network namespace"]
fn kernel_bridge_in_unified_mode_and_soft_fpga() {
    kernel_answers_soft(&[&INCREMENT[..], &["--unified"]].concat(), 100);
}

#[test]
#[ignore = "needs soft-RoCE beside a network namespace"]
fn kernel_bridge_and_soft_fpga_with_large_frames() {
    kernel_answers_soft(&LARGE, 2);
}

#[test]
#[ignore = "needs soft-RoCE beside a network namespace"]
fn soft_bridge_and_kernel_fpga() {
    soft_answers_kernel(&[], 612);
}

#[test]
#[ignore = "needs soft-RoCE beside a network namespace"]
fn soft_bridge_in_forward_mode_and_kernel_fpga() {
    soft_answers_kernel(&[&INCREMENT[..], &["--forward"]].concat(), 100);
}

#[test]
#[ignore = "needs soft-RoCE beside a network namespace"]
fn soft_bridge_and_kernel_fpga_with_large_frames() {
    soft_answers_kernel(&LARGE, 2);
}
