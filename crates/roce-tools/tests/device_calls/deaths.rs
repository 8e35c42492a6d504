//! Processes that are killed: the other side gets over it.

use std::fs;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use roce_dispatch::caller::CallError;

use crate::harness::{Program, address, words};
use crate::support::{CALL, CEILING, PLUGIN, Service, call, call_many, call_within, transceiver, wait_until};

/// More than pages that are touched for the first time, less than what leaks per caller would come to.
const SLACK_KIB: u64 = 2048;

const PEERS: &str = "roce_service_peers";

/// What a process has of what it must give back.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: usize,
}

fn holdings(program: &Program) -> Holdings {
    let count = |what| fs::read_dir(format!("/proc/{}/{what}", program.pid())).expect("it runs").count();
    Holdings { descriptors: count("fd"), threads: count("task") }
}

fn resident_kib(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A caller that does not stop by itself, killed in mid-call.
fn live_and_die(service: &mut Service, ip: Ipv4Addr) {
    let line =
        format!("--device soft:{ip} --slots 64 --depth 4 --repeat 1000000000 {} echo u8:1", service.addr);
    let caller = Program::start(CALL, &words(&line));
    service.program.wait_for("is served");
    caller.signal(Signal::SIGKILL);
    caller.ended();
}

fn two_hundred_callers_die(options: &str) {
    let mut service =
        Service::start(&format!("--slots 64 --metrics 127.0.0.1:0 --idle-timeout-ms 100 {options}"));
    let before = holdings(&service.program);
    let ip = address();
    let mut die = |times| {
        for _ in 0..times {
            live_and_die(&mut service, ip);
        }
        service.wait_for_metric(PEERS, 0);
        wait_until("all is given back", || holdings(&service.program) == before);
        resident_kib(&service.program)
    };
    let early = die(20);
    let late = die(180);
    assert!(late <= early + SLACK_KIB, "from {early} to {late} KiB");
    assert_eq!(service.metric("roce_service_peers_total"), 200);

    let session = service.session(transceiver());
    assert_eq!(call_many(session.caller(), 100, 8, CEILING).answered, 100, "the next caller is served");
}

#[test]
fn two_hundred_dead_callers_leave_nothing_behind_in_ring_shape() {
    two_hundred_callers_die("--dispatch ring");
}

#[test]
fn two_hundred_dead_callers_leave_nothing_behind_in_unified_shape() {
    two_hundred_callers_die("--dispatch unified");
}

#[test]
fn a_killed_service_costs_a_timeout_and_its_successor_is_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let never = dir.path().join("never").to_str().expect("UTF-8").to_owned();
    let service = Service::with_plugin("--slots 64");
    let mut session = service.session(transceiver());
    assert_eq!(call(session.caller(), "echo", b"before").expect("answered"), b"before");

    let (ip, addr) = (service.ip, service.addr);
    let killer = thread::spawn(move || {
        let requests = "roce_service_dispatch_total{event=\"requests\"}";
        wait_until("the call is in hand", || service.metric(requests) == 2);
        service.program.signal(Signal::SIGKILL);
        service.program.ended()
    });
    let lost = call_within(session.caller(), "c_wait_for_file", never.as_bytes(), Duration::from_secs(3));
    assert!(matches!(lost, Err(CallError::Timeout { .. })), "{lost:?}");
    assert_eq!(killer.join().expect("no panic").code, None, "killed");
    let gone = call_within(session.caller(), "echo", b"x", Duration::from_millis(50));
    assert!(matches!(gone, Err(CallError::Timeout { .. })), "{gone:?}");

    let _service = Service::start_at(ip, addr.port(), "--slots 64");
    session.reconnect().expect("the new service takes callers");
    assert_eq!(call_many(session.caller(), 1000, 16, CEILING).answered, 1000);
    assert_eq!(session.caller().stats().snapshot().timeouts, 2);
}

/// As a process that was killed and comes back at once, on the address that it had.
#[test]
fn a_killed_caller_comes_back() {
    let mut service = Service::start("--slots 64");
    let ip = address();
    for _ in 0..3 {
        live_and_die(&mut service, ip);
    }
    let line = format!("--device soft:{ip} --slots 64 --repeat 100 --depth 8 {} echo u8:1", service.addr);
    let ended = Program::start(CALL, &words(&line)).ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_caller_that_leaves_is_let_go_at_once() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0 --idle-timeout-ms 0");
    let before = holdings(&service.program);
    let session = service.session(transceiver());
    service.wait_for_metric(PEERS, 1);
    session.leave();
    service.wait_for_metric(PEERS, 0);
    wait_until("all is given back", || holdings(&service.program) == before);
}

#[test]
fn one_caller_too_many_takes_the_place_of_the_most_silent() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0 --max-peers 2");
    let sessions: Vec<_> = (0..2).map(|_| service.session(transceiver())).collect();
    service.wait_for_metric(PEERS, 2);
    assert_eq!(call(sessions[0].caller(), "echo", b"0").expect("answered"), b"0");
    let third = service.session(transceiver());
    assert_eq!(call(third.caller(), "echo", b"3").expect("answered"), b"3");
    service.wait_for_metric(PEERS, 2);
    assert_eq!(call(sessions[0].caller(), "echo", b"1").expect("answered"), b"1");
    let silent = call_within(sessions[1].caller(), "echo", b"2", Duration::from_millis(50));
    assert!(matches!(silent, Err(CallError::Timeout { .. })), "{silent:?}");
}

/// A handler that does not return must not keep the service from ending when asked twice.
#[test]
fn a_second_signal_ends_a_service_whose_function_hangs() {
    let dir = tempfile::tempdir().expect("a directory");
    let never = dir.path().join("never").to_str().expect("UTF-8").to_owned();
    assert!(PLUGIN.1.exists());
    let service = Service::with_plugin("--slots 64");
    let session = service.session(transceiver());
    let lost = call_within(session.caller(), "c_wait_for_file", never.as_bytes(), Duration::from_millis(200));
    assert!(matches!(lost, Err(CallError::Timeout { .. })), "{lost:?}");
    service.program.signal(Signal::SIGTERM);
    thread::sleep(Duration::from_millis(100));
    service.program.signal(Signal::SIGTERM);
    assert_eq!(service.program.ended().code, Some(130));
}
