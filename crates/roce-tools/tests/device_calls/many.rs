//! Many calls: at any depth, from several callers, over a lossy wire.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use roce_dispatch::caller::CallError;

use crate::support::{
    CEILING, INCREMENT, Service, Tally, call, call_many, call_within, transceiver, wait_until,
};

fn a_hundred_thousand_calls(options: &str, depth: usize) {
    let service = Service::start(&format!("--slots 64 {options}"));
    let session = service.session(transceiver());
    let tally = call_many(session.caller(), 100_000, depth, CEILING);
    assert_eq!(tally, Tally { answered: 100_000, timeouts: 0 });
    session.leave();
    let ended = service.program.stop();
    assert_eq!(ended.code, Some(0));
    // And the farewell.
    assert!(ended.stdout.contains("CUDAQ_REALTIME_SERVER_PROCESSED count=100001"), "{}", ended.stdout);
}

#[test]
fn a_hundred_thousand_calls_1_in_flight() {
    a_hundred_thousand_calls("--dispatch unified", 1);
}

#[test]
fn a_hundred_thousand_calls_4_in_flight() {
    a_hundred_thousand_calls("--dispatch ring", 4);
}

#[test]
fn a_hundred_thousand_calls_64_in_flight() {
    a_hundred_thousand_calls("--dispatch ring", 64);
}

#[test]
fn a_hundred_thousand_calls_64_in_flight_answered_by_sends() {
    a_hundred_thousand_calls("--dispatch unified --tx-mode send", 64);
}

/// 2 % of the packets are lost, each way.
fn losses(options: &str) {
    const TIMEOUT: Duration = Duration::from_millis(250);
    const CALLS: u32 = 3000;
    let service = Service::start(&format!("--slots 64 --drop-rate 0.02 --seed 5 {options}"));
    let session = service.session(transceiver().faults("drop=0.02,seed=6".parse().expect("faults")));
    let caller = session.caller();
    let tally = call_many(caller, CALLS, 32, TIMEOUT);
    assert_eq!(tally.answered + tally.timeouts, CALLS, "every call came to an end");
    assert!(tally.timeouts > CALLS / 100 && tally.answered > CALLS / 2, "{tally:?}");
    assert_eq!(caller.in_use(), 0, "no slot is lost");

    // One after the other, each lost one within its deadline; the ceiling is for a busy machine.
    for n in 0..200_u8 {
        let before = Instant::now();
        match call_within(caller, "rpc_increment", &[n], TIMEOUT) {
            Ok(results) => assert_eq!(results, [n.wrapping_add(1)]),
            Err(_) => assert!((TIMEOUT..CEILING).contains(&before.elapsed())),
        }
    }
    let counts = caller.stats().snapshot();
    assert_eq!((counts.malformed, counts.errors), (0, 0));
}

#[test]
fn lost_calls_time_out_and_no_other_is_wrong_in_ring_shape() {
    losses("--dispatch ring");
}

#[test]
fn lost_calls_time_out_and_no_other_is_wrong_in_unified_shape() {
    losses("--dispatch unified --tx-mode send");
}

/// It comes while another call has its slot.
#[test]
fn a_late_answer_is_no_other_calls() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("go");
    let service = Service::with_plugin("--slots 64 --dispatch unified");
    let session = service.session(transceiver());
    let caller = session.caller();
    let path = file.to_str().expect("UTF-8").as_bytes();
    let late = call_within(caller, "c_wait_for_file", path, Duration::from_millis(50));
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    let calls: Vec<_> = (0..64_u8)
        .map(|n| {
            let mut frame = caller.acquire(&INCREMENT).expect("a slot");
            frame.put(&n).expect("room");
            frame.dispatch(CEILING).expect("open")
        })
        .collect();
    fs::write(&file, []).expect("a file");
    for (n, call) in (0..).zip(calls) {
        assert_eq!(call.wait().expect("answered").to_vec(), [n + 1]);
    }
    assert_eq!(caller.stats().snapshot().late, 1);
}

fn eight_callers(options: &str) {
    let service = Service::start(&format!("--slots 64 --metrics 127.0.0.1:0 {options}"));
    let callers: Vec<_> = [1, 2, 4, 8, 16, 32, 64, 64]
        .into_iter()
        .map(|depth| {
            let session = service.session(transceiver());
            thread::spawn(move || {
                let tally = call_many(session.caller(), 2000, depth, CEILING);
                (session, tally)
            })
        })
        .collect();
    service.wait_for_metric("roce_service_peers", 8);
    for caller in callers {
        let (session, tally) = caller.join().expect("no panic");
        assert_eq!(tally, Tally { answered: 2000, timeouts: 0 });
        session.leave();
    }
    service.wait_for_metric("roce_service_peers", 0);
    service.wait_for_metric("roce_service_peers_total", 8);
    assert_eq!(service.metric("roce_service_dispatch_total{event=\"responses\"}"), 8 * 2001);
}

#[test]
fn eight_callers_in_ring_shape() {
    eight_callers("--dispatch ring");
}

#[test]
fn eight_callers_in_unified_shape() {
    eight_callers("--dispatch unified");
}

/// One caller's function does not return until all the others have been served.
#[test]
fn a_slow_function_delays_its_own_caller_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("go");
    let service = Service::with_plugin("--slots 64");
    let slow = service.session(transceiver());
    let path = file.to_str().expect("UTF-8").to_owned();
    let waiting = thread::spawn(move || {
        let outcome = call(slow.caller(), "c_wait_for_file", path.as_bytes());
        (outcome, call(slow.caller(), "echo", b"after"))
    });
    let requests = "roce_service_dispatch_total{event=\"requests\"}";
    wait_until("the slow function runs", || service.metric(requests) == 1);
    for _ in 0..3 {
        let session = service.session(transceiver());
        assert_eq!(call_many(session.caller(), 500, 8, CEILING).answered, 500);
    }
    assert!(!waiting.is_finished());
    fs::write(&file, []).expect("a file");
    let (outcome, after) = waiting.join().expect("no panic");
    assert_eq!((outcome.expect("answered"), after.expect("answered")), (vec![], b"after".to_vec()));
}
