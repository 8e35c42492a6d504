//! `roce-perf` as it is called: what it prints, and the files it writes. Nothing is said about speed.
#![allow(clippy::unwrap_used)] // in helpers too, where clippy does not see a test

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::tempdir;

fn perf(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roce-perf")).args(args).output().unwrap()
}

/// So short that it is done at once, and fair on a busy machine.
const SHORT: &[&str] = &["--runs", "2", "--count", "100", "--pin", "no", "--spin", "yield"];

fn short(args: &[&str]) -> Output {
    let output = perf(&[args, SHORT].concat());
    assert!(output.status.success(), "{output:?}");
    output
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn path(dir: &Path, file: &str) -> String {
    dir.join(file).to_str().unwrap().to_owned()
}

#[test]
fn the_quick_suite_writes_a_line_for_each_main_case() {
    let dir = tempdir().unwrap();
    let json = path(dir.path(), "r.json");
    let output = short(&["--suite", "quick", "--json", &json, "--commit", "abc123"]);
    let results = lines(&fs::read_to_string(&json).unwrap());
    for case in ["rtt", "throughput", "handoff", "dispatch", "codec"] {
        assert!(results.iter().any(|result| result["case"] == case), "{case}");
    }
    let modes: Vec<_> =
        results.iter().filter(|result| result["case"] == "rtt").map(|result| &result["mode"]).collect();
    assert_eq!(modes, ["unified", "threads", "forward"]);
    for result in &results {
        for name in ["frame", "p50_ns", "p99_ns", "per_s", "limit", "ratio"] {
            assert!(result[name].is_number(), "{name}: {result}");
        }
        assert_eq!((&result["backend"], &result["lost"]), (&"soft".into(), &0.into()));
        assert_eq!(result["machine"]["commit"], "abc123");
        assert_eq!(result["runs"].as_array().unwrap().len(), 2);
        let figure = result["figure"].as_str().unwrap();
        let ratio = result[figure].as_f64().unwrap() / result["limit"].as_f64().unwrap();
        assert!((ratio - result["ratio"].as_f64().unwrap()).abs() < 0.001, "{result}");
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("kernel") && text.contains("rtt unified 64 B"), "{text}");
}

#[test]
fn every_report_has_every_result() {
    let dir = tempdir().unwrap();
    let [json, csv, html, svg] = ["r.json", "r.csv", "r.html", "svg"].map(|file| path(dir.path(), file));
    short(&[
        "rtt", "codec", "--frame", "64,256", "--json", &json, "--csv", &csv, "--html", &html, "--svg", &svg,
    ]);
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 1 + 4);
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("rtt unified 256 B"));
    let mut drawn: Vec<_> = fs::read_dir(&svg).unwrap().map(|file| file.unwrap().file_name()).collect();
    drawn.sort();
    assert_eq!(drawn, ["rtt-distribution.svg", "rtt-frames.svg"]);

    // Written again from the results alone, they are the same.
    let again = path(dir.path(), "again.html");
    assert!(perf(&["--from", &json, "--html", &again]).status.success());
    assert_eq!(fs::read_to_string(&again).unwrap(), page);
}

#[test]
fn results_on_standard_output_are_alone_there() {
    let output = short(&["codec", "--json", "-", "--no-limits"]);
    let results = lines(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(results.len(), 1);
    assert!(results[0]["limit"].is_null() && results[0]["ratio"].is_null());
    assert!(String::from_utf8(output.stderr).unwrap().contains("codec 64 B"));
}

#[test]
fn a_paced_run_over_given_addresses() {
    let ends = ["--backend", "soft:127.0.71.1", "--peer", "soft:127.0.71.2", "--label", "here"];
    let output = short(&[&["jitter", "--rate", "5000", "--json", "-"], &ends[..]].concat());
    let result = lines(&String::from_utf8(output.stdout).unwrap()).remove(0);
    assert_eq!((&result["backend"], &result["rate"]), (&"here".into(), &5000.into()));
    assert!(result["per_s"].as_f64().unwrap() < 5500.0, "faster than asked for: {result}");
}

#[test]
fn numbers_of_transceivers_are_compared_with_one() {
    let dir = tempdir().unwrap();
    let [json, csv] = ["r.json", "r.csv"].map(|file| path(dir.path(), file));
    short(&["scale", "--transceivers", "1,3", "--pages", "64,128", "--json", &json, "--csv", &csv]);
    let results = lines(&fs::read_to_string(&json).unwrap());
    let shapes: Vec<_> =
        results.iter().map(|r| [&r["transceivers"], &r["pages"]].map(Value::as_u64)).collect();
    assert_eq!(
        shapes,
        [(1, 64), (1, 128), (3, 64), (3, 128)].map(|(count, pages)| [Some(count), Some(pages)])
    );
    for result in &results {
        assert_eq!((&result["mode"], &result["lost"]), (&"shared".into(), &0.into()));
        assert!(result["ratio"].is_number() && result["busy_threads"] == 2, "{result}");
    }
    assert!(fs::read_to_string(&csv).unwrap().contains("transceivers,pages"));
    let shown = perf(&["--from", &json]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains("scale shared 64 B 3x128 pages"));
}

#[test]
fn what_threads_cost_is_told_in_hand_offs() {
    let dir = tempdir().unwrap();
    let [json, html] = ["r.json", "r.html"].map(|file| path(dir.path(), file));
    let output = short(&["rtt", "handoff", "--mode", "unified,threads", "--json", &json, "--html", &html]);
    for text in [String::from_utf8(output.stdout).unwrap(), fs::read_to_string(&html).unwrap()] {
        let line = text.lines().find(|line| line.contains("threads over unified, 64 B"));
        assert!(line.is_some_and(|line| line.contains("hand-offs of")), "{text}");
    }
}

#[test]
fn lost_messages_are_told_and_no_success() {
    let output = perf(&[&["throughput", "--drop-rate", "0.05", "--json", "-"], SHORT].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let result = lines(&String::from_utf8(output.stdout).unwrap()).remove(0);
    assert!(result["lost"].as_u64() > Some(0), "{result}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("lost"));
}

#[test]
fn a_run_that_is_stopped_leaves_what_it_had_in_every_report() {
    let dir = tempdir().unwrap();
    let [json, csv, html, svg] = ["r.json", "r.csv", "r.html", "svg"].map(|file| path(dir.path(), file));
    let files = ["--json", &json, "--csv", &csv, "--html", &html, "--svg", &svg];
    let endless =
        ["rtt", "jitter", "--rate", "1", "--no-limits", "--runs", "1", "--pin", "no", "--spin", "yield"];
    let program = env!("CARGO_BIN_EXE_roce-perf");
    let mut command = Command::new(program);
    command.args(endless).args(["--count", "20000"]).args(files);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The second case takes hours.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&json).is_ok_and(|text| text.ends_with('\n')) {
        assert!(Instant::now() < deadline, "no result came");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("stopped; 1 of 2"), "{text}");
    assert_eq!(lines(&fs::read_to_string(&json).unwrap()).len(), 1);
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 1 + 1);
    assert!(fs::read_to_string(&html).unwrap().contains("rtt unified 64 B"));
    assert!(Path::new(&svg).join("rtt-distribution.svg").exists());
}

#[test]
fn reports_that_cannot_be_written_are_named_with_the_reason() {
    let dir = tempdir().unwrap();
    for target in ["--json", "--csv", "--html"] {
        let output = perf(&[&["codec", target, "/dev/full"], SHORT].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{target}: {text}");
        assert!(text.contains("write /dev/full: No space left"), "{target}: {text}");
    }
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_roce-perf")).args(SHORT).arg("codec").stdout(full).output();
    assert_eq!(output.unwrap().status.code(), Some(1));

    // What cannot be opened stops it before it measures for minutes.
    let missing = path(dir.path(), "no/such/folder");
    let file = path(dir.path(), "file");
    fs::write(&file, "").unwrap();
    for (target, name) in [("--json", &missing), ("--csv", &missing), ("--html", &missing), ("--svg", &file)]
    {
        let output = perf(&["codec", "--duration", "3600", target, name]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{target}: {text}");
        assert!(text.contains(name.as_str()), "{target}: {text}");
    }
}

#[test]
fn a_report_is_replaced_only_by_results() {
    let dir = tempdir().unwrap();
    let csv = path(dir.path(), "r.csv");
    let long = "old ".repeat(10_000);
    fs::write(&csv, &long).unwrap();
    let failed = perf(&[&["rtt", "--backend", "no-such-device", "--csv", &csv], SHORT].concat());
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&csv).unwrap(), long);
    short(&["codec", "--csv", &csv]);
    let text = fs::read_to_string(&csv).unwrap();
    assert!(text.lines().count() == 2 && !text.contains("old "), "{text}");
}

#[test]
fn files_that_are_no_results_are_named_with_their_line() {
    let dir = tempdir().unwrap();
    let json = path(dir.path(), "r.json");
    short(&["codec", "handoff", "--no-limits", "--json", &json]);
    let whole = fs::read_to_string(&json).unwrap();
    let shown = |text: &str| {
        fs::write(&json, text).unwrap();
        let output = perf(&["--from", &json]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(shown(&whole).0, Some(0));
    let (code, cut) = shown(&whole[..whole.len() - 40]);
    assert!(code == Some(1) && cut.contains("line 2") && cut.contains("take a file"), "{cut}");
    let (code, empty) = shown("");
    assert!(code == Some(1) && empty.contains("no results"), "{empty}");
}

#[test]
fn machine_link_and_time_are_told_before_and_after() {
    let output = short(&["rtt"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for fact in ["CPU", "cores", "kernel", "governor", "backend", "threads", "takes about", "path MTU"] {
        assert!(text.lines().any(|line| line.starts_with(fact)), "{fact}: {text}");
    }
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "a bar where nobody looks");
}

#[test]
fn options_that_cannot_be_are_refused_with_the_usage() {
    for (args, word) in [
        (&["rtt", "--frame", "8"][..], "--frame 8"),
        (&["throughput", "--depth", "100000"], "--depth"),
        (&["scale", "--transceivers", "0"], "--transceivers 0"),
        (&["scale", "--depth", "128", "--pages", "64"], "--pages 64"),
        (&["rtt", "--backend", "soft:127.0.0.1"], "--peer"),
        (&["rtt", "--mode", "none"], "none"),
        (&["sleep"], "sleep"),
        (&["rtt", "--suite", "full"], "--suite"),
        (&["rtt", "--pin", "x"], "--pin"),
        (&["rtt", "--pin", "9999"], "CPU 9999"),
        (&["rtt", "--pin", "0,0"], "named twice"),
        (&["rtt", "--runs", "0"], "--runs"),
        (&["rtt", "--count", "0"], "--count"),
        (&["rtt", "--duration", "0"], "--duration"),
        (&["jitter", "--rate", "0"], "--rate 0"),
        (&["rtt", "--rate", "5"], "--rate"),
        (&["rtt", "--mode", "shared"], "--mode"),
        (&["rtt", "--peer", "soft:127.0.0.3"], "--peer"),
        (&["rtt", "--backend", "soft:127.0.0.3", "--peer", "soft:127.0.0.3"], "--peer"),
        (&["rtt", "--backend", "soft:127.0.0.3", "--peer", "mlx5_0"], "--peer"),
        (&["rtt", "--backend", "mlx5_0", "--drop-rate", "0.1"], "--drop-rate"),
        (&["--frame", "128"], "<CASE>"),
        (&["--from", "r.json", "--runs", "3"], "--runs"),
    ] {
        let output = perf(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(word) && text.contains("Usage:"), "{args:?}: {text}");
    }
    let missing = perf(&["rtt", "--backend", "no-such-device", "--count", "1"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("no-such-device"));
}
