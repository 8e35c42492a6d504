//! What the tests on RDMA devices share: `xtask` itself as a program, and its built programs.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// `None` where it is not set, or empty.
pub(crate) fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Runs xtask to its end. What it says goes to ours, for whoever looks at a failure.
pub(crate) fn xtask(args: &[&str]) -> Output {
    println!("+ xtask {}", args.join(" "));
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().unwrap();
    println!("{}{}", text(&output.stdout), text(&output.stderr));
    output
}

/// What xtask says when it succeeds.
#[track_caller]
pub(crate) fn succeed(args: &[&str]) -> String {
    let output = xtask(args);
    assert_eq!(output.status.code(), Some(0), "xtask {}: {}", args.join(" "), text(&output.stderr));
    text(&output.stdout)
}

/// What xtask says, on either stream, when it fails.
#[track_caller]
pub(crate) fn fail(args: &[&str]) -> String {
    let output = xtask(args);
    assert_eq!(output.status.code(), Some(1), "xtask {}", args.join(" "));
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs an emulation or a hw-test with the built programs, and demands that every message came back right.
#[track_caller]
pub(crate) fn plays(args: &[&str], messages: u64) {
    let programs = programs();
    let mut all = args.to_vec();
    all.extend(["--json", "-", "--programs", programs.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&succeed(&all)).unwrap();
    assert_eq!(report["verdict"], "PASS", "{report:#}");
    for count in ["messages", "responses", "matched"] {
        assert_eq!(report[count], messages, "{count}");
    }
}

/// Where the programs are that can open RDMA devices.
pub(crate) fn programs() -> PathBuf {
    let beside =
        || Path::new(env!("CARGO_BIN_EXE_xtask")).ancestors().nth(2).map(|target| target.join("verbs"));
    let dir = var("ROCE_TEST_PROGRAMS").map(PathBuf::from).or_else(beside).unwrap();
    assert!(dir.is_dir(), "{} is missing; `cargo xtask vm-test` and `test-device` build it", dir.display());
    dir
}

/// All that a network setup may change, as text. Of IPv6 there is nothing but what the kernel itself does to an interface, in its
/// own time.
pub(crate) fn network() -> String {
    let mut all = said("ip", &["-o", "link"]);
    for args in [&["-o", "address"][..], &["neighbour"], &["route", "show", "table", "all"]] {
        all += &said("ip", &[&["-4"], args].concat());
    }
    all += &said("rdma", &["link"]);
    for interface in fs::read_dir("/proc/sys/net/ipv4/conf").unwrap() {
        for key in ["rp_filter", "accept_local"] {
            let file = interface.as_ref().unwrap().path().join(key);
            writeln!(all, "{}: {}", file.display(), fs::read_to_string(&file).unwrap().trim()).unwrap();
        }
    }
    all
}

/// Runs a program that must succeed; what it says.
#[track_caller]
pub(crate) fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {}: {}", args.join(" "), text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "still waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
