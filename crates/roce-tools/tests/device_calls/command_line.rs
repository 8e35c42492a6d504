//! What the two programs take and print.

use std::fs;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::harness::{Ended, address, data, run};
use crate::support::{CALL, PLUGIN, SERVICE, Service, build_plugin, package};

fn roce_call(service: &Service, line: &str) -> Ended {
    run(CALL, &format!("--device soft:{} {} {line}", address(), service.addr))
}

#[track_caller]
fn prints(service: &Service, line: &str, expected: &str) {
    let ended = roce_call(service, line);
    assert_eq!((ended.code, ended.stdout.trim_end()), (Some(0), expected), "{ended:?}");
}

#[track_caller]
fn fails(service: &Service, line: &str, expected: &str) {
    let ended = roce_call(service, line);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(expected), "{ended:?}");
}

#[test]
fn results_are_printed_by_type() {
    let service = Service::start(&format!("--plugin {}", PLUGIN.1.display()));
    prints(&service, "rpc_increment u8:1,2,255", "u8:2,3,0");
    prints(&service, "sum i32:2147483647,2147483647,-1", "i64:4294967293");
    prints(&service, "sum", "i64:0");
    prints(&service, "echo f32:0.5 bits:01101 i64:-7 f64:2.25", "f32:0.5 bits:01101 i64:-7 f64:2.25");
    prints(&service, "echo i32:1,2,3 --result i32 ", "i32:1,2,3");
    prints(
        &service,
        "echo i32:1,-1 --result i32x1 --result bitsx32",
        &format!("i32:1 bits:{}", "1".repeat(32)),
    );
    prints(&service, "c_reverse u8:1,2,3", "u8:3,2,1");
    fails(&service, "nobody", "unknown function");
    fails(&service, "sum u8:1", "handler error 1");
    fails(&service, "echo u8:1 --result i32", "4 bytes of results were asked for, 1 are left");
    for all in ["u8", "f64", "bits"].map(|kind| format!("{kind}x{}", usize::MAX)) {
        fails(&service, &format!("echo u8:1 --result {all}"), "bytes of results were asked for, 1 are left");
    }
    fails(&service, "--slots 16 echo", "slots");
}

/// Shots of a surface code, decoded as they were when the data was made.
#[test]
fn real_shots_are_decoded() {
    let service = Service::start(&format!("--dem {}", data("surface_d3_r3.dem").display()));
    let read =
        |extension: &str| fs::read(data(&format!("surface_d3_r3.{extension}.b8"))).expect("it is there");
    let (events, predictions) = (read("dets"), read("pred"));
    let row = events.len() / predictions.len();
    let shots: Vec<_> = events.chunks(row).zip(&predictions).collect();
    // One shot of each outcome.
    for flips in [0, 1] {
        let (events, _) = shots.iter().find(|(_, prediction)| **prediction == flips).expect("both occur");
        let bytes: Vec<String> = events.iter().map(u8::to_string).collect();
        prints(&service, &format!("mwpm_decode u8:{}", bytes.join(",")), &format!("u8:{flips}"));
    }
}

/// The plug-in that the documentation shows.
#[test]
fn a_plugin_as_documented() {
    let document = fs::read_to_string(package().join("../../docs/device-calls.md")).expect("it is there");
    let source =
        document.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a C program");
    let dir = tempfile::tempdir().expect("a directory");
    let (file, library) = (dir.path().join("negate.c"), dir.path().join("libnegate.so"));
    fs::write(&file, source).expect("a file");
    build_plugin(&file, &library);
    let service = Service::start(&format!("--plugin {}", library.display()));
    prints(&service, "negate u8:1,255,0", "u8:255,1,0");
}

#[test]
fn a_report_is_printed_for_repeated_calls() {
    let service = Service::start("--slots 64 --dispatch unified");
    let ended = roce_call(&service, "--slots 64 --repeat 2000 --depth 16 --json rpc_increment u8:1,2");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("JSON alone");
    assert_eq!(report["result"], json!([{ "type": "u8", "values": [2, 3] }]));
    for (key, count) in [("calls", 2000), ("answers", 2000), ("errors", 0), ("timeouts", 0), ("different", 0)]
    {
        assert_eq!(report[key], count, "{key}");
    }
    let (p50, p99) =
        (report["p50_ns"].as_u64().expect("a number"), report["p99_ns"].as_u64().expect("a number"));
    assert!(0 < p50 && p50 <= p99 && report["calls_per_s"].as_f64().expect("a number") > 0.0, "{report}");

    let ended = roce_call(&service, "--slots 64 --repeat 10 nobody");
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("unknown function") && ended.stderr.contains("errors       10"),
        "{ended:?}"
    );
    let ended = roce_call(&service, "--slots 64 --repeat 100 --drop-rate 1 --timeout-ms 1 --depth 64 echo");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("timeouts     100"), "{ended:?}");
}

#[test]
fn the_lines_for_scripts() {
    let mut service = Service::start("");
    assert_eq!(run(CALL, &format!("--device soft:{} {} echo u8:1", address(), service.addr)).code, Some(0));
    service.program.wait_for("is let go");
    let (ip, port) = (service.ip, service.addr.port());
    let ended = service.program.stop();
    let ready = format!(
        "CUDAQ_REALTIME_SERVER_READY transport=cpu_roce port={port} roce_ip={ip} dispatch=ring slots=8 slot_size=256"
    );
    // The call and the farewell.
    assert_eq!(ended.stdout, format!("{ready}\nCUDAQ_REALTIME_SERVER_PROCESSED count=2\n"));
    assert_eq!(ended.code, Some(0));
}

#[test]
fn a_service_is_found_by_name_and_over_ipv6() {
    for (listen, named) in [("127.0.0.1", "localhost"), ("::1", "[::1]")] {
        if TcpListener::bind((listen, 0)).is_err() {
            eprintln!("skipped: this machine has no {listen}");
            continue;
        }
        let service = Service::start(&format!("--listen {listen}"));
        let port = service.addr.port();
        let ended = run(CALL, &format!("--device soft:{} {named}:{port} echo u8:1", address()));
        assert_eq!((ended.code, ended.stdout.trim_end()), (Some(0), "u8:1"), "{named}: {ended:?}");
    }
    for bad in ["localhost", "127.0.0.1", "no.such.name.invalid:1", "::1"] {
        let ended = run(CALL, &format!("{bad} echo"));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("write HOST:PORT, as 127.0.0.1:9000"), "{ended:?}");
    }
}

#[test]
fn service_and_caller_take_different_addresses_by_themselves() {
    for (program, device) in [(SERVICE, "soft:127.0.0.1"), (CALL, "soft:127.0.0.2")] {
        let help = run(program, "--help").stdout;
        let of_device = help.split("--device").nth(1).expect("the option");
        assert!(of_device.split("--").next().is_some_and(|text| text.contains(device)), "{help}");
    }
}

#[test]
fn options_that_cannot_work() {
    for line in ["--slots 3", "--slot-size 0", "--max-peers 0", "--dispatch gpu", "--device", "--port 65536"]
    {
        let ended = run(SERVICE, line);
        assert_eq!(ended.code, Some(2), "{line}: {ended:?}");
        assert!(ended.stderr.contains("Usage: roce-service"), "{ended:?}");
    }
    for line in
        ["", "127.0.0.1:1", "127.0.0.1:1 f u16:1", "127.0.0.1:1 f --depth 9", "127.0.0.1:1 f --depth 0"]
    {
        let ended = run(CALL, line);
        assert_eq!(ended.code, Some(2), "{line}: {ended:?}");
        assert!(ended.stderr.contains("Usage: roce-call"), "{ended:?}");
    }
}

#[test]
fn what_keeps_a_program_from_running_is_named() {
    let ip = address();
    for (line, expected) in [
        (format!("--device soft:{ip} --slot-size 23"), "frames of 23 bytes"),
        (format!("--device soft:{ip} --plugin /nowhere/lib.so"), "/nowhere/lib.so"),
        (format!("--device soft:{ip} --dem /nowhere/model.dem"), "/nowhere/model.dem"),
        ("--device soft:198.51.100.1".to_owned(), "198.51.100.1"),
    ] {
        let ended = run(SERVICE, &line);
        assert_eq!(ended.code, Some(1), "{line}: {ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
    let library = std::env::current_exe().expect("our own path");
    let ended = run(SERVICE, &format!("--device soft:{ip} --plugin {}", library.display()));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let ended = run(CALL, &format!("--device soft:{ip} --timeout-ms 100 {ip}:1 echo"));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("no service on"), "{ended:?}");
}
