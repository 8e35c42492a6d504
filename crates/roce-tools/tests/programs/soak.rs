//! Long runs: nothing is lost, and no program grows.

use std::fs;

use tempfile::tempdir;

use crate::harness::{Fpga, Program, bridge, playback, report};

/// More than pages that are touched for the first time, less than what a leak per message would come to.
const SLACK_KIB: u64 = 1024;

/// KiB that a program keeps in memory.
fn resident(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn a_hundred_thousand_messages(mode: &str, fpga_options: &str) {
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("report.json");
    let fpga = Fpga::start(fpga_options);
    let (bridge, reach) = bridge(&fpga, mode);
    let play = |messages: u32| {
        let options = format!("{fpga_options} --num-messages {messages} --spacing-us 0 --timeout 280");
        let ended = playback(&fpga, reach, &file, &options).ended();
        assert_eq!(ended.code, Some(0), "{mode}: {ended:?}");
        let report = report(&file);
        assert_eq!((report["matched"].as_u64(), report["lost"].as_u64()), (Some(messages.into()), Some(0)));
    };
    play(2000);
    let before = [resident(&bridge), resident(&fpga.program)];
    play(100_000);
    let after = [resident(&bridge), resident(&fpga.program)];
    for (before, after) in before.into_iter().zip(after) {
        assert!(after <= before + SLACK_KIB, "{mode}: from {before} to {after} KiB");
    }
    assert_eq!(bridge.stop().code, Some(0));
}

/// One mode after the other: each keeps several CPUs busy.
#[test]
fn a_hundred_thousand_messages_through_each_mode() {
    for (mode, fpga_options) in [("", ""), ("--unified", ""), ("--forward", "--forward")] {
        a_hundred_thousand_messages(mode, fpga_options);
    }
}
