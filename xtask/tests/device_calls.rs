//! Device calls over RDMA devices: `roce-service` on `ROCE_TEST_DEVICE`, called by `roce-call` on `ROCE_TEST_PEER_DEVICE`, or on
//! the same one where there is no other. `cargo xtask vm-test` and `cargo xtask test-device` build what is needed and run these.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

#[allow(dead_code)] // each test file uses what it needs
mod device;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use device::{programs, var, wait_until};
use serde_json::Value;

const READY: &str = "CUDAQ_REALTIME_SERVER_READY transport=cpu_roce port=";
const METRICS: &str = "metrics on http://";

/// A running `roce-service`; told to end when dropped.
struct Service {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    metrics: String,
    port: String,
}

impl Service {
    fn start(options: &[&str]) -> Self {
        let device = var("ROCE_TEST_DEVICE").expect(
            "ROCE_TEST_DEVICE is not set: name an RDMA device to test on (`rdma link` lists them), or run these with \
             `cargo xtask vm-test`",
        );
        let mut child = Command::new(programs().join("roce-service"))
            .args(["--device", &device, "--listen", "127.0.0.1", "--slots", "64", "--metrics", "127.0.0.1:0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut rest_of = |mark: &str| {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            line.strip_prefix(mark).unwrap_or_else(|| panic!("{line:?} instead of {mark}")).to_owned()
        };
        let metrics = rest_of(METRICS).trim_end().trim_end_matches("/metrics").to_owned();
        let port = rest_of(READY).split(' ').next().unwrap().to_owned();
        Self { child, lines, metrics, port }
    }

    /// `roce-call`, to be run.
    fn caller(&self, options: &[&str]) -> Command {
        let device = var("ROCE_TEST_PEER_DEVICE").or_else(|| var("ROCE_TEST_DEVICE")).unwrap();
        let mut caller = Command::new(programs().join("roce-call"));
        caller.args(["--device", &device, "--slots", "64", &format!("127.0.0.1:{}", self.port)]);
        caller.args(options);
        caller
    }

    fn call(&self, options: &[&str]) -> Output {
        let output = self.caller(options).output().unwrap();
        println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        output
    }

    fn serves(&self, callers: u64) -> bool {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.lines().any(|line| line == format!("roce_service_peers {callers}"))
    }

    /// What it says at its end.
    fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Already gone, where all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ROCE_TEST_CALLS` of them.
fn calls(service: &[&str], depth: &str) {
    let times = var("ROCE_TEST_CALLS").map_or(100_000, |calls| calls.parse().unwrap());
    let service = Service::start(service);
    let repeat = times.to_string();
    let output =
        service.call(&["--json", "--repeat", &repeat, "--depth", depth, "rpc_increment", "u8:1,2,255"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["result"][0]["values"], serde_json::json!([2, 3, 0]));
    for (key, count) in [("answers", times), ("errors", 0), ("timeouts", 0), ("different", 0)] {
        assert_eq!(report[key], count, "{key}: {report:#}");
    }
    // And the farewell.
    let processed = format!("CUDAQ_REALTIME_SERVER_PROCESSED count={}\n", times + 1);
    assert_eq!(service.stop(), processed);
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn one_in_flight() {
    calls(&["--dispatch", "unified"], "1");
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn four_in_flight() {
    calls(&["--dispatch", "ring"], "4");
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn sixty_four_in_flight() {
    calls(&["--dispatch", "ring"], "64");
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn sixty_four_in_flight_answered_by_sends() {
    calls(&["--dispatch", "unified", "--tx-mode", "send"], "64");
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn errors_and_values_of_all_types() {
    let service = Service::start(&[]);
    let unknown = service.call(&["nobody"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("unknown function"));
    let values = ["i32:-1,2", "f64:0.5", "bits:0110"];
    let echo = service.call(&[&["echo"], &values[..]].concat());
    assert_eq!(String::from_utf8_lossy(&echo.stdout).trim_end(), values.join(" "));
    let sum = service.call(&["sum", "i32:2147483647,1"]);
    assert_eq!(String::from_utf8_lossy(&sum.stdout).trim_end(), "i64:2147483648");
}

/// Calls without an end, that only the death of one side or the other ends: no timeout of a caller or of the service is
/// shorter than minutes.
const FOR_EVER: [&str; 6] = ["--repeat", "1000000000", "--timeout-ms", "86400000", "rpc_increment", "u8:1"];

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn a_killed_caller_is_let_go() {
    let service = Service::start(&["--idle-timeout-ms", "0"]);
    for _ in 0..3 {
        let mut caller = service.caller(&FOR_EVER).spawn().unwrap();
        wait_until("it is served", || service.serves(1));
        caller.kill().unwrap();
        caller.wait().unwrap();
        wait_until("it is let go", || service.serves(0));
    }
    assert_eq!(service.call(&["rpc_increment", "u8:1"]).status.code(), Some(0));
}

#[test]
#[ignore = "needs the RDMA device that ROCE_TEST_DEVICE names"]
fn a_killed_service_is_noticed() {
    let mut service = Service::start(&[]);
    let caller = service.caller(&FOR_EVER).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it is served", || service.serves(1));
    service.child.kill().unwrap();
    let ended = caller.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains(&format!("the service at 127.0.0.1:{} is gone", service.port)), "{said}");
}
