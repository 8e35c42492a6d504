//! `xtask emulate` from outside: exit codes, what goes where, and that nothing is left behind. A shell script stands in
//! for cargo and names more scripts as the built programs, so that they can misbehave at will.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const CEILING: Duration = Duration::from_secs(20);
const STAY: &str = "trap 'exit 0' TERM; while :; do sleep 0.02; done";
/// For a peer: it leaves a report when it is asked to end.
const REPORTS: &str = r#"while [ "$1" != --json ]; do shift; done; trap 'echo {} > "$2"; exit 0' TERM"#;
const SERVE: &str = "while :; do sleep 0.02; done";

/// A folder with the scripts of one test.
struct Stage {
    dir: PathBuf,
    ip: [Ipv4Addr; 2],
}

impl Stage {
    /// `playback` finds the file for its report in `$report`.
    fn new(playback: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("xtask-emulate-test-{}-{n}", std::process::id()));
        fs::create_dir_all(dir.join("tmp")).unwrap();
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let side = |side: u32| {
            let second = 0xC0 | u8::try_from(2 * n + side).unwrap() ^ (a & 0xF);
            Ipv4Addr::new(127, second, b, c)
        };
        let stage = Self { dir, ip: [side(0), side(1)] };
        let here = stage.dir.display();
        let program =
            |name: &str| format!(r#"echo '{{"reason":"compiler-artifact","executable":"{here}/{name}"}}'"#);
        let names = ["hsb-fpga-emulator", "hsb-bridge-cpu", "hsb-fpga-playback"];
        stage.script("cargo", &names.map(program).join("\n"));
        let noted =
            |name: &str| format!("echo $$ > {here}/{name}.tmp; mv {here}/{name}.tmp {here}/{name}.pid");
        stage
            .script(names[0], &format!("{REPORTS}; {}; echo '  QP Number: 0x1'\n{SERVE}", noted("emulator")));
        let ready = "echo '=== Bridge Ready ==='; echo '  QP Number: 0x2'; echo '  RKey: 3'; echo '  Buffer Addr: 0x0'";
        stage.script(names[1], &format!("{REPORTS}; {}; {ready}\n{SERVE}", noted("bridge")));
        let report = r#"while [ "$1" != --json ]; do shift; done; report=$2"#;
        stage.script(names[2], &format!("{report}; {}\n{playback}", noted("playback")));
        stage
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        let [bridge, emulator] = self.ip.map(|ip| ip.to_string());
        command.args([
            "emulate",
            "--backend",
            "soft",
            "--workload",
            "increment",
            "--bridge-ip",
            &bridge,
            "--emulator-ip",
            &emulator,
        ]);
        command.args(args).env("CARGO", self.dir.join("cargo")).env("TMPDIR", self.dir.join("tmp"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts a run and waits until its three processes are there.
    fn start(&self) -> (Child, [i32; 3]) {
        let child = self.command(&[]).spawn().unwrap();
        let pids = ["emulator", "bridge", "playback"].map(|name| {
            let file = self.dir.join(format!("{name}.pid"));
            wait_until(&format!("{name} runs"), || file.exists());
            fs::read_to_string(file).unwrap().trim().parse().unwrap()
        });
        (child, pids)
    }

    fn files_left(&self) -> usize {
        fs::read_dir(self.dir.join("tmp")).unwrap().count()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + CEILING;
    while !done() {
        assert!(Instant::now() < deadline, "still waiting until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Gone, or dead and not yet reaped by whoever inherited it.
fn is_gone(pid: i32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.map_or(true, |stat| stat.contains(") Z"))
}

fn report(lost: u32, verdict: &str) -> String {
    let answered = 4 - lost;
    let reasons = if lost > 0 { format!(r#"["lost {lost}"]"#) } else { "[]".to_owned() };
    format!(
        r#"echo '{{"messages": 4, "responses": {answered}, "matched": {answered}, "payload_errors": 0, "header_errors": 0,
        "lost": {lost}, "lost_ids": [], "verdict": "{verdict}", "reasons": {reasons}}}' > "$report""#
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_good_run_passes_and_stdout_is_the_report_alone() {
    let stage = Stage::new(&report(0, "PASS"));
    let output = stage.run(&["--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["verdict"], &json["matched"]), (&"PASS".into(), &4.into()));
    assert_eq!(text(&output.stderr).lines().last(), Some("RESULT: PASS"));
    assert_eq!(stage.files_left(), 0);

    let output = stage.run(&[]);
    assert_eq!(text(&output.stdout).lines().last(), Some("RESULT: PASS"));
}

#[test]
fn losses_fail_with_their_count_and_the_report_is_written() {
    let stage = Stage::new(&format!("{}; exit 1", report(3, "FAIL")));
    let file = stage.dir.join("report.json");
    let output = stage.run(&["--json", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout).lines().last(), Some("RESULT: FAIL (lost 3)"));
    let json: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!((&json["verdict"], &json["lost"]), (&"FAIL".into(), &3.into()));
}

#[test]
fn bad_options_show_the_usage() {
    let stage = Stage::new("");
    let output = stage.run(&["--num-pages", "100"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("--num-pages 100 is no power of two") && said.contains("usage: "), "{said}");
    assert_eq!(stage.run(&["--timeout", "0xffffffffffffffff"]).status.code(), Some(2));
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_run() {
    let stage = Stage::new(&report(0, "PASS"));
    let output = stage.run(&["--json", "/no/such/folder/report.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write --json /no/such/folder/report.json"));
    assert!(!stage.dir.join("playback.pid").exists());
}

#[test]
fn a_report_that_turns_out_unwritable_costs_the_exit_code_and_not_the_table() {
    let stage = Stage::new("");
    let folder = stage.dir.join("reports");
    fs::create_dir(&folder).unwrap();
    let playback = format!("rm -r {}; {}", folder.display(), report(0, "PASS"));
    stage.script(
        "hsb-fpga-playback",
        &format!("while [ \"$1\" != --json ]; do shift; done; report=$2; {playback}"),
    );
    let output = stage.run(&["--json", folder.join("report.json").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("increment"), "{}", text(&output.stdout));
    assert_eq!(text(&output.stdout).lines().last(), Some("RESULT: PASS"));
    assert!(text(&output.stderr).contains("cannot write --json"), "{}", text(&output.stderr));
}

#[test]
fn a_run_that_cannot_begin_has_a_report_and_a_reason() {
    let stage = Stage::new(&report(0, "PASS"));
    let _held = UdpSocket::bind((stage.ip[0], 4791)).unwrap();
    let output = stage.run(&["--json", "-"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["verdict"], &json["backend"]), (&"FAIL".into(), &"soft".into()));
    let reason = json["reasons"][0].as_str().unwrap();
    assert!(reason.contains("held by somebody else"), "{reason}");
    assert!(text(&output.stderr).contains(&format!("error: {reason}")), "{}", text(&output.stderr));

    let file = stage.dir.join("report.json");
    let output = stage.run(&["--json", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("RESULT: FAIL (UDP port 4791"), "{}", text(&output.stdout));
    let json: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(json["verdict"], "FAIL");
}

#[test]
fn a_build_that_fails_runs_nothing() {
    let stage = Stage::new("");
    stage.script("cargo", "echo 'error: no such crate' >&2; exit 101");
    let output = stage.run(&[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("no such crate") && said.contains("cargo build failed (exit code 101)"), "{said}");
}

#[test]
fn a_signal_ends_the_run_and_all_of_its_processes() {
    let stage = Stage::new(STAY);
    let (mut xtask, pids) = stage.start();
    kill(Pid::from_raw(i32::try_from(xtask.id()).unwrap()), Signal::SIGTERM).unwrap();
    let mut said = String::new();
    xtask.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(xtask.wait().unwrap().code(), Some(128 + 15), "{said}");
    assert_eq!(said.lines().last(), Some("RESULT: FAIL (stopped by signal 15)"));
    assert!(pids.iter().all(|pid| is_gone(*pid)));
    assert_eq!(stage.files_left(), 0);
}

#[test]
fn a_killed_run_takes_its_processes_along() {
    let stage = Stage::new(STAY);
    let (mut xtask, pids) = stage.start();
    xtask.kill().unwrap();
    xtask.wait().unwrap();
    for pid in pids {
        wait_until(&format!("process {pid} is gone"), || is_gone(pid));
    }
}
