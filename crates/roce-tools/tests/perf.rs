//! `roce-perf` as it is called: what it prints, and the files it writes. Nothing is said about speed.
#![allow(clippy::unwrap_used)] // in helpers too, where clippy does not see a test

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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
        (&["rtt", "--runs", "0"], "--runs"),
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
