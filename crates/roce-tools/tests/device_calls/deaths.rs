//! Processes that are killed: the other side gets over it.

use std::fs;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use roce_dispatch::caller::CallError;

use roce_rendezvous::socket::Form;
use roce_tools::Error;
use roce_tools::call::{Session, SessionConfig};

use crate::harness::{Program, address, words};
use crate::support::{
    CALL, CEILING, Holdings, PLUGIN, Service, call, call_many, call_within, transceiver, wait_until,
};

/// More than pages that are touched for the first time, less than what leaks per caller would come to.
const SLACK_KIB: u64 = 2048;

/// For calls that something else than their timeout must end, and that end all the same where nothing does.
const FOR_EVER: Duration = Duration::from_secs(300);

const PEERS: &str = "roce_service_peers";
const REQUESTS: &str = "roce_service_dispatch_total{event=\"requests\"}";

fn resident_kib(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// A caller that does not stop by itself, killed in mid-call.
fn live_and_die(service: &mut Service, ip: Ipv4Addr, options: &str) {
    let line = format!(
        "--device soft:{ip} --slots 64 --depth 4 --repeat 1000000000 {options} {} echo u8:1",
        service.addr
    );
    let caller = Program::start(CALL, &words(&line));
    service.program.wait_for("is served");
    caller.signal(Signal::SIGKILL);
    caller.ended();
}

/// Nothing but how the callers died lets them go: none is silent for as long as the service would wait.
fn callers_die(times: u64, service: &str, callers: &str) {
    let mut service = Service::start(&format!("--slots 64 --metrics 127.0.0.1:0 {service}"));
    let before = Holdings::of(&service.program);
    let ip = address();
    let mut die = |times| {
        for _ in 0..times {
            live_and_die(&mut service, ip, callers);
        }
        service.wait_for_metric(PEERS, 0);
        wait_until("all is given back", || Holdings::of(&service.program) == before);
        resident_kib(&service.program)
    };
    let early = die(20);
    let late = die(times - 20);
    assert!(late <= early + SLACK_KIB, "from {early} to {late} KiB");
    assert_eq!(service.metric("roce_service_peers_total"), times);

    let session = service.session(transceiver());
    assert_eq!(call_many(session.caller(), 100, 8, CEILING).answered, 100, "the next caller is served");
}

#[test]
fn two_hundred_dead_callers_leave_nothing_behind_in_ring_shape() {
    callers_die(200, "--dispatch ring", "");
}

#[test]
fn two_hundred_dead_callers_leave_nothing_behind_in_unified_shape() {
    callers_die(200, "--dispatch unified", "");
}

#[test]
fn dead_callers_without_a_lease_are_let_go_for_their_silence() {
    callers_die(100, "--dispatch ring --idle-timeout-ms 100", "--plain");
}

/// Killed while it answers nothing, from another thread.
fn kill_in_mid_call(service: Service) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        wait_until("the call is in hand", || service.metric(REQUESTS) == 2);
        service.program.signal(Signal::SIGKILL);
        assert_eq!(service.program.ended().code, None, "killed");
    })
}

/// A session with a service that is killed in mid-call, what that call ended with, and where the service was.
fn lose_the_service(form: Form, timeout: Duration) -> (Session, CallError, (Ipv4Addr, u16)) {
    let dir = tempfile::tempdir().expect("a directory");
    let never = dir.path().join("never").to_str().expect("UTF-8").to_owned();
    let service = Service::with_plugin("--slots 64");
    let config = SessionConfig { form, ..service.session_config(transceiver()) };
    let session = Session::connect(config).expect("the service takes callers");
    assert_eq!(call(session.caller(), "echo", b"before").expect("answered"), b"before");
    let place = (service.ip, service.addr.port());
    let killer = kill_in_mid_call(service);
    let lost = call_within(session.caller(), "c_wait_for_file", never.as_bytes(), timeout);
    killer.join().expect("no panic");
    (session, lost.expect_err("nobody answered"), place)
}

fn finds_the_successor(session: &mut Session, (ip, port): (Ipv4Addr, u16)) {
    let _service = Service::start_at(ip, port, "--slots 64");
    session.reconnect().expect("the new service takes callers");
    assert!(session.service_end().is_none());
    assert_eq!(call_many(session.caller(), 1000, 16, CEILING).answered, 1000);
}

/// No call runs into its timeout.
#[test]
fn a_killed_service_is_noticed_at_once_and_its_successor_is_found() {
    let (mut session, lost, place) = lose_the_service(Form::Json, FOR_EVER);
    assert!(matches!(lost, CallError::Closed), "{lost}");
    assert!(session.service_end().is_some());
    let gone = call_within(session.caller(), "echo", b"x", FOR_EVER).expect_err("nobody answers");
    let gone = session.explain(gone.into());
    let (addr, port) = (place.0, place.1);
    assert!(matches!(gone, Error::ServiceGone { service, .. } if service == (addr, port).into()), "{gone}");
    finds_the_successor(&mut session, place);
    assert_eq!(session.caller().stats().snapshot().timeouts, 0);
}

#[test]
fn without_a_lease_a_killed_service_costs_a_timeout_and_its_successor_is_found() {
    let (mut session, lost, place) = lose_the_service(Form::Plain, Duration::from_secs(3));
    assert!(matches!(lost, CallError::Timeout { .. }), "{lost}");
    let gone = call_within(session.caller(), "echo", b"x", Duration::from_millis(50));
    assert!(matches!(gone, Err(CallError::Timeout { .. })), "{gone:?}");
    assert!(session.service_end().is_none());
    finds_the_successor(&mut session, place);
    assert_eq!(session.caller().stats().snapshot().timeouts, 2);
}

#[test]
fn a_program_that_calls_says_that_the_service_is_gone() {
    let mut service = Service::start("--slots 64");
    let line = format!(
        "--device soft:{} --slots 64 --repeat 1000000000 --timeout-ms 86400000 {} echo u8:1",
        address(),
        service.addr
    );
    let caller = Program::start(CALL, &words(&line));
    service.program.wait_for("is served");
    service.program.signal(Signal::SIGKILL);
    let ended = caller.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&format!("the service at {} is gone", service.addr)), "{ended:?}");
}

/// As a process that was killed and comes back at once, on the address that it had.
#[test]
fn a_killed_caller_comes_back() {
    let mut service = Service::start("--slots 64");
    let ip = address();
    for _ in 0..3 {
        live_and_die(&mut service, ip, "");
    }
    let line = format!("--device soft:{ip} --slots 64 --repeat 100 --depth 8 {} echo u8:1", service.addr);
    let ended = Program::start(CALL, &words(&line)).ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_caller_that_leaves_is_let_go_at_once() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0 --idle-timeout-ms 0");
    let before = Holdings::of(&service.program);
    for form in [Form::Json, Form::Plain] {
        let config = SessionConfig { form, ..service.session_config(transceiver()) };
        let session = Session::connect(config).expect("the service takes callers");
        service.wait_for_metric(PEERS, 1);
        session.leave();
        service.wait_for_metric(PEERS, 0);
        wait_until("all is given back", || Holdings::of(&service.program) == before);
    }
}

/// Both are silent; the one with a lease is known to live.
#[test]
fn a_lease_outlasts_silence() {
    let mut service = Service::start("--slots 64 --metrics 127.0.0.1:0 --idle-timeout-ms 50");
    let leasing = service.session(transceiver());
    let plain = SessionConfig { form: Form::Plain, ..service.session_config(transceiver()) };
    let plain = Session::connect(plain).expect("the service takes callers");
    service.program.wait_for("is let go: it is silent");
    service.wait_for_metric(PEERS, 1);
    let silent = call_within(plain.caller(), "echo", b"?", Duration::from_millis(50));
    assert!(matches!(silent, Err(CallError::Timeout { .. })), "{silent:?}");
    assert_eq!(call(leasing.caller(), "echo", b"here").expect("answered"), b"here");
    drop(leasing);
    service.wait_for_metric(PEERS, 0);
}

/// The connection that its exchange leaves behind is the new one's, not the old one's.
#[test]
fn a_caller_that_connects_anew_is_served_once() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0");
    let mut session = service.session(transceiver());
    for _ in 0..5 {
        session.reconnect().expect("the service takes callers");
        assert_eq!(call_many(session.caller(), 100, 8, CEILING).answered, 100);
        service.wait_for_metric(PEERS, 1);
    }
    assert!(session.service_end().is_none());
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
    let let_go = call_within(sessions[1].caller(), "echo", b"2", FOR_EVER);
    assert!(matches!(let_go, Err(CallError::Closed)), "{let_go:?}");
    assert!(sessions[1].service_end().is_some() && sessions[0].service_end().is_none());
}

/// The service still waits for a function; whoever is not served by that one need not.
#[test]
fn a_function_that_takes_its_time_keeps_nobody_from_learning_that_the_service_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let service = Service::with_plugin("--slots 64");
    let idle = service.session(transceiver());
    let slow = service.session(transceiver());
    let path = go.to_str().expect("UTF-8").to_owned();
    let cut_off =
        thread::spawn(move || call_within(slow.caller(), "c_wait_for_file", path.as_bytes(), FOR_EVER));
    wait_until("the slow function runs", || service.metric(REQUESTS) == 1);
    service.program.signal(Signal::SIGTERM);
    wait_until("the idle caller learns of it", || idle.service_end().is_some());
    wait_until("the other one too", || cut_off.is_finished());
    let cut_off = cut_off.join().expect("no panic");
    assert!(matches!(cut_off, Err(CallError::Closed)), "{cut_off:?}");
    fs::write(&go, []).expect("a file");
    assert_eq!(service.program.ended().code, Some(0));
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
