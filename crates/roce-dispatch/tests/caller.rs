//! The caller on real rings; the test plays the service and the network.

mod common;

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use proptest::prelude::*;
use roce_dispatch::caller::{Acquired, Bits, CallCounts, CallError, Caller, Dispatched, Frame, Function};
use roce_dispatch::rpc::{HEADER_LEN, Request, Response, Status};
use roce_dispatch::schema::{HandlerSchema, PayloadType, TypeDesc};
use roce_dispatch::{DispatchError, FunctionTable, UnifiedLoop};
use roce_ring::Geometry;
use roce_transport::SpinPolicy;

const ECHO: Function<'_> = Function::new("echo");
/// For calls whose answer comes.
const LONG: Duration = CEILING;
/// For calls whose answer does not.
const SHORT: Duration = Duration::from_millis(5);

type Call<'c> = Frame<'c, RingLink, Dispatched>;

/// The far end of the caller's rings.
struct Service(Wire);

impl Service {
    /// The request in `slot`.
    fn request(&mut self, slot: u32) -> (Request, Vec<u8>) {
        let mut frame = vec![0; self.0.geometry.frame_size() as usize];
        self.0.tx.peek(slot).expect("a request").bytes().copy_to(0, &mut frame);
        self.0.tx.claim(slot);
        (Request::parse(&frame).expect("a request"), frame)
    }

    fn answer(&self, rx_slot: u32, request_id: u32, results: &[u8]) {
        self.answer_as(rx_slot, Response { request_id, ..response(results) }, results);
    }

    fn answer_as(&self, rx_slot: u32, header: Response, results: &[u8]) {
        let mut frame = vec![0; HEADER_LEN + results.len()];
        header.emit(&mut frame);
        frame[HEADER_LEN..].copy_from_slice(results);
        self.0.deliver(rx_slot, &frame);
    }
}

fn response(results: &[u8]) -> Response {
    Response { result_len: u32::try_from(results.len()).expect("short"), ..Response::default() }
}

fn caller_on(geometry: Geometry) -> (Service, Caller<RingLink>) {
    let (wire, link) = link(geometry);
    (Service(wire), Caller::new(link).expect("a frame holds a header"))
}

fn caller(slots: u32) -> (Service, Caller<RingLink>) {
    caller_on(geometry(slots, 128, 64))
}

fn frame<'c>(caller: &'c Caller<RingLink>, args: &[u8]) -> Frame<'c, RingLink, Acquired> {
    let mut frame = caller.acquire(&ECHO).expect("a free slot");
    frame.put(args).expect("it fits");
    frame
}

/// Sends a request and takes it off the wire.
fn start<'c>(caller: &'c Caller<RingLink>, service: &mut Service, timeout: Duration) -> (u32, Call<'c>) {
    let call = frame(caller, &[]).dispatch(timeout).expect("an open link");
    let (request, _) = service.request(call.slot());
    assert_eq!(request.request_id, call.request_id());
    (request.request_id, call)
}

/// Takes every message that is on its way, and says how many those were.
fn drain(caller: &Caller<RingLink>) -> usize {
    (0..POLLS_PAST_A_HOLE).map(|_| caller.poll().expect("open")).sum()
}

#[test]
fn a_request_is_exactly_what_was_put() {
    let (mut service, caller) = caller(1);
    let mut frame = caller.acquire(&ECHO).expect("free");
    frame.put(&[0xAA_u8; 40]).expect("the whole room");
    let first = frame.dispatch(LONG).expect("open");
    service.request(0);
    service.answer(0, 1, &[]);
    drop(first.wait().expect("answered"));

    let mut frame = caller.acquire(&ECHO).expect("free again");
    frame
        .put(&-1_i32)
        .and_then(|f| f.put(&[1.5_f32, 2.5]))
        .and_then(|f| f.put(&Bits(&[true; 3])))
        .expect("room");
    frame.ptp_timestamp(0x0102_0304_0506_0708);
    let call = frame.dispatch(LONG).expect("open");
    let (request, bytes) = service.request(0);
    let expected =
        Request { function_id: ECHO.id(), arg_len: 13, request_id: 2, ptp_timestamp: 0x0102_0304_0506_0708 };
    assert_eq!(request, expected);
    let mut args = vec![0xFF; 4];
    args.extend(1.5_f32.to_le_bytes());
    args.extend(2.5_f32.to_le_bytes());
    args.push(7);
    args.resize(40, 0);
    assert_eq!(&bytes[HEADER_LEN..], args, "stale bytes behind the arguments go out");
    drop(call);
}

#[test]
fn arguments_may_be_written_in_any_order() {
    let (mut service, caller) = caller(1);
    drop(frame(&caller, &[0xAA; 40]));
    let mut frame = caller.acquire(&ECHO).expect("free");
    frame.write_at(6, &[6]).and_then(|f| f.write_at(1, &[1, 2])).expect("room");
    assert!(matches!(frame.write_at(40, &[1]), Err(CallError::TooLong { len: 41, room: 40 })));
    assert!(matches!(frame.write_at(usize::MAX, &[1]), Err(CallError::TooLong { .. })));
    let _call = frame.dispatch(LONG).expect("open");
    let (request, bytes) = service.request(0);
    assert_eq!(request.arg_len, 7);
    assert_eq!(&bytes[HEADER_LEN..HEADER_LEN + 8], [0, 1, 2, 0, 0, 0, 6, 0]);
    assert!(bytes[HEADER_LEN + 7..].iter().all(|&b| b == 0));
}

#[test]
fn results_are_read_by_type() {
    let (mut service, caller) = caller(2);
    let (id, call) = start(&caller, &mut service, LONG);
    let mut results = 7_u8.to_le_bytes().to_vec();
    results.extend((-9_i64).to_le_bytes());
    results.extend(0.25_f64.to_le_bytes());
    results.extend([1, 0, 0, 0, 2, 0, 0, 0]);
    results.push(0b101);
    let header = Response { request_id: id, ptp_timestamp: 77, ..response(&results) };
    service.answer_as(0, header, &results);

    let mut answer = call.wait().expect("answered");
    assert_eq!((answer.len(), answer.ptp_timestamp()), (26, 77));
    assert_eq!(answer.take::<u8>().expect("u8"), 7);
    assert_eq!(answer.take::<i64>().expect("i64"), -9);
    assert_eq!(answer.take::<f64>().expect("f64"), 0.25);
    let mut ints = [0; 2];
    answer.take_array::<i32>(&mut ints).expect("two i32");
    assert_eq!(ints, [1, 2]);
    let mut bits = [false; 3];
    assert!(matches!(answer.take::<i32>(), Err(CallError::Exhausted { wanted: 4, left: 1 })));
    answer.take_bits(&mut bits).expect("three bits");
    assert_eq!(bits, [true, false, true]);
    assert!(matches!(answer.take::<u8>(), Err(CallError::Exhausted { wanted: 1, left: 0 })));
    assert_eq!(answer.to_vec(), results);
}

#[test]
fn spare_bits_are_an_error() {
    let (mut service, caller) = caller(1);
    let (id, call) = start(&caller, &mut service, LONG);
    service.answer(0, id, &[0b1001]);
    let mut answer = call.wait().expect("answered");
    assert!(matches!(answer.take_bits(&mut [false; 3]), Err(CallError::SpareBits { bits: 3 })));
}

#[test]
fn answers_come_in_any_order_and_any_slot() {
    let (mut service, caller) = caller(8);
    let mut calls: Vec<_> = (0..8).map(|_| start(&caller, &mut service, LONG)).collect();
    assert_eq!(calls.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    for (rx_slot, id) in [(0, 5), (1, 8), (2, 1), (3, 3), (4, 2), (5, 7), (6, 4), (7, 6)] {
        service.answer(rx_slot, id, &id.to_le_bytes());
    }
    for at in [3, 0, 4, 4, 1, 0, 1, 0] {
        let (id, call) = calls.remove(at);
        assert_eq!(call.wait().expect("answered").to_vec(), id.to_le_bytes());
    }
    assert_eq!(caller.in_use(), 0);
}

#[test]
fn unread_results_are_out_of_the_peers_reach() {
    let (mut service, caller) = caller(4);
    let (first, call) = start(&caller, &mut service, LONG);
    service.answer(2, first, &[1; 40]);
    let answer = call.wait().expect("answered");
    // A peer comes back to the slot after a lap of the ring.
    for rx_slot in [3, 0, 1, 2, 3, 0, 1, 2] {
        let (id, call) = start(&caller, &mut service, LONG);
        service.answer(rx_slot, id, &[0xEE; 40]);
        drop(call.wait().expect("answered"));
    }
    assert_eq!(answer.to_vec(), [1; 40]);
}

#[test]
fn as_many_calls_as_slots() {
    let (mut service, caller) = caller(4);
    let mut calls: Vec<_> = (0..4).map(|_| start(&caller, &mut service, LONG)).collect();
    assert!(matches!(caller.acquire(&ECHO), Err(CallError::Busy { slots: 4 })));
    service.answer(0, 3, &[]);
    let (_, third) = calls.remove(2);
    let answer = third.wait().expect("answered");
    assert!(matches!(caller.acquire(&ECHO), Err(CallError::Busy { .. })), "the answer holds its slot");
    drop(answer);
    let frame = caller.acquire(&ECHO).expect("released");
    assert_eq!((frame.slot(), frame.request_id()), (2, 7), "the slot follows from the id");
}

#[test]
fn a_frame_that_is_dropped_leaves_no_hole() {
    let (_service, caller) = caller(4);
    for _ in 0..3 {
        assert_eq!(frame(&caller, &[1]).slot(), 0);
    }
    let (first, second) = (frame(&caller, &[]), frame(&caller, &[]));
    drop(first);
    assert_eq!(frame(&caller, &[]).slot(), 2, "the second one is still there");
    drop(second);
    assert_eq!(caller.in_use(), 0);
}

#[test]
fn a_lost_answer_costs_its_call_alone() {
    let (mut service, caller) = caller(4);
    let (lost, call) = start(&caller, &mut service, SHORT);
    let (other, waiting) = start(&caller, &mut service, LONG);
    let before = Instant::now();
    let error = call.wait().expect_err("nobody answers");
    assert!(before.elapsed() >= SHORT, "its time is never cut short");
    assert!(matches!(error, CallError::Timeout { request_id, timeout: SHORT } if request_id == lost));

    // The late answer finds its slot in the hands of another call.
    let calls: Vec<_> = (0..3).map(|_| start(&caller, &mut service, LONG)).collect();
    service.answer(0, lost, &[0xEE]);
    for (rx_slot, id) in (1..).zip(calls.iter().map(|(id, _)| *id)) {
        service.answer(rx_slot, id, &id.to_le_bytes());
    }
    for (id, call) in calls {
        assert_eq!(call.wait().expect("answered").to_vec(), id.to_le_bytes());
    }
    service.answer(0, other, &[9]);
    assert_eq!(waiting.wait().expect("answered").to_vec(), [9]);
    let expected = CallCounts { calls: 5, answers: 4, timeouts: 1, late: 1, ..CallCounts::default() };
    assert_eq!(caller.stats().snapshot(), expected);
}

#[test]
fn a_second_answer_is_late() {
    let (mut service, caller) = caller(4);
    let (id, call) = start(&caller, &mut service, LONG);
    service.answer(0, id, &[1]);
    service.answer(1, id, &[2]);
    assert_eq!(drain(&caller), 2);
    assert_eq!(call.wait().expect("answered").to_vec(), [1]);
    assert_eq!(caller.stats().snapshot().late, 1);
}

#[test]
fn forgotten_calls_hold_their_slot_until_answered_or_expired() {
    let (mut service, caller) = caller(1);
    frame(&caller, &[1]).dispatch_and_forget(LONG).expect("open");
    assert_eq!(service.request(0).0.request_id, 1);
    assert!(matches!(caller.acquire(&ECHO), Err(CallError::Busy { .. })));
    service.answer(0, 1, &[0xEE; 8]);
    let second = frame(&caller, &[2]);
    assert_eq!(second.request_id(), 2);
    second.dispatch_and_forget(SHORT).expect("open");
    service.request(0);
    wait_until("the call expires", || caller.poll().is_ok() && caller.in_use() == 0);

    // Its answer comes late, and is not the third call's.
    let (id, call) = start(&caller, &mut service, LONG);
    service.answer(0, 2, &[0xEE]);
    assert_eq!(drain(&caller), 1);
    assert!(!call.is_over());
    service.answer(0, id, &[3]);
    assert_eq!(call.wait().expect("answered").to_vec(), [3]);
    let expected = CallCounts { calls: 3, answers: 2, timeouts: 1, late: 1, ..CallCounts::default() };
    assert_eq!(caller.stats().snapshot(), expected);
}

#[test]
fn a_call_that_is_given_up_frees_its_slot_when_answered() {
    let (mut service, caller) = caller(2);
    let (id, call) = start(&caller, &mut service, LONG);
    drop(call);
    assert_eq!(caller.in_use(), 1);
    service.answer(1, id, &[1]);
    assert_eq!(drain(&caller), 1);
    assert_eq!(caller.in_use(), 0);
}

#[test]
fn what_the_service_refuses_is_an_error_at_once() {
    let (mut service, caller) = caller(4);
    for status in [Status::UNKNOWN_FUNCTION, Status::HANDLER_PANICKED, Status::from_code(17)] {
        let (id, call) = start(&caller, &mut service, LONG);
        // Results beside an error are not looked at, not even their length.
        let header = Response { status, request_id: id, result_len: u32::MAX, ptp_timestamp: 0 };
        service.answer_as(0, header, &[]);
        let error = call.wait().expect_err("refused");
        assert!(
            matches!(error, CallError::Remote { request_id, status: s } if request_id == id && s == status)
        );
        assert_eq!(error.code(), 6);
    }
    assert_eq!(caller.stats().snapshot().errors, 3);
}

#[test]
fn results_beyond_the_room_are_an_error() {
    let (mut service, caller) = caller(4);
    let mut frame = frame(&caller, &[]);
    assert!(matches!(frame.capacity(41), Err(CallError::Capacity { capacity: 41, room: 40 })));
    frame.capacity(3).expect("a frame holds more");
    let call = frame.dispatch(LONG).expect("open");
    service.request(0);
    service.answer(0, 1, &[0; 4]);
    let error = call.wait().expect_err("4 > 3");
    assert!(matches!(error, CallError::ResponseTooLarge { len: 4, capacity: 3 }));

    let (id, call) = start(&caller, &mut service, LONG);
    service.answer_as(0, Response { request_id: id, result_len: u32::MAX, ..response(&[]) }, &[]);
    let error = call.wait().expect_err("more than a frame");
    assert!(matches!(error, CallError::ResponseTooLarge { len: u32::MAX, capacity: 40 }));
    assert_eq!(error.code(), 5);
}

#[test]
fn what_answers_nothing_is_counted() {
    let (mut service, caller) = caller(4);
    let (id, call) = start(&caller, &mut service, LONG);
    service.0.deliver(0, &[0; 64]);
    service.0.deliver(1, &request("echo", id, &[]));
    service.answer(2, id + 1, &[]);
    service.answer(3, 0, &[]);
    assert_eq!(drain(&caller), 4);
    assert!(!call.is_over());
    let counts = caller.stats().snapshot();
    // Of ids that were never given away, those behind the last count as old.
    assert_eq!((counts.malformed, counts.late), (3, 1));
}

#[test]
fn a_schema_is_checked_on_both_ways() {
    let one = |t, n| TypeDesc::new(t, n).expect("a descriptor");
    let args = [one(PayloadType::BitPacked, 12), one(PayloadType::Int32, 1)];
    let schema = HandlerSchema::new(&args, &[one(PayloadType::ArrayFloat32, 2)]).expect("a schema");
    let function = Function::new("f").with_schema(&schema);
    let (mut service, caller) = caller(4);
    let acquire = || caller.acquire(&function).expect("free");

    let mut frame = acquire();
    let error = frame.put(&1_i32).expect_err("bits come first");
    assert!(matches!(error, CallError::Type { what: "argument", index: 0, got: PayloadType::Int32, .. }));
    assert_eq!(error.code(), 1);
    assert!(frame.put(&Bits(&[true; 11])).is_err(), "12 bits");
    frame.put(&Bits(&[true; 12])).expect("12 bits");
    let error = acquire().put(&Bits(&[true; 12])).expect("12 bits").put(&[1_i32]).expect_err("an array");
    assert!(matches!(error, CallError::Type { index: 1, got: PayloadType::ArrayInt32, .. }));
    assert!(matches!(frame.dispatch(LONG), Err(CallError::Length { what: "argument", len: 2, expected: 6 })));

    let mut dispatch = || {
        let mut frame = acquire();
        frame.put(&Bits(&[true; 12])).and_then(|f| f.put(&1_i32)).expect("as the schema says");
        assert!(frame.put(&1_i32).is_err(), "one too many");
        let call = frame.dispatch(LONG).expect("complete");
        service.request(call.slot());
        call
    };
    let (first, second) = (dispatch(), dispatch());
    service.answer(0, first.request_id(), &[0; 8]);
    service.answer(1, second.request_id(), &[0; 7]);
    let mut answer = first.wait().expect("8 bytes");
    assert!(matches!(answer.take::<f32>(), Err(CallError::Type { what: "result", index: 0, .. })));
    assert!(answer.take_array::<f32>(&mut [0.0; 3]).is_err());
    answer.take_array::<f32>(&mut [0.0; 2]).expect("two floats");
    assert!(matches!(second.wait(), Err(CallError::Length { what: "result", len: 7, expected: 8 })));
}

#[test]
fn a_closed_link_ends_a_wait() {
    let (wire, link) = link(geometry(4, 128, 64));
    let open = link.open.clone();
    let caller = Caller::new(link).expect("a frame holds a header");
    let mut service = Service(wire);
    let (_, call) = start(&caller, &mut service, LONG);
    open.store(false, Ordering::Relaxed);
    let error = call.wait().expect_err("closed");
    assert!(matches!(error, CallError::Closed));
    assert_eq!(error.code(), 2);
}

#[test]
fn a_reconnected_caller_begins_at_slot_0_with_fresh_ids() {
    let (mut service, mut caller) = caller(4);
    let (first, call) = start(&caller, &mut service, LONG);
    drop(call);
    drop(start(&caller, &mut service, LONG));
    let (wire, fresh) = link(geometry(8, 128, 64));
    caller.reconnect(fresh).expect("a frame holds a header");
    let mut service = Service(wire);
    assert_eq!((caller.in_use(), caller.geometry().num_pages()), (0, 8));
    let (id, call) = start(&caller, &mut service, LONG);
    assert_eq!((call.slot(), id), (0, 9));
    service.answer(1, first, &[0xEE]);
    service.answer(0, id, &[1]);
    assert_eq!(call.wait().expect("answered").to_vec(), [1]);
    assert_eq!(caller.stats().snapshot().calls, 3, "counters go on");

    let (_wire, narrow) = link(geometry(4, 64, 20));
    assert_eq!(caller.reconnect(narrow).err(), Some(DispatchError::FrameTooSmall { frame_size: 20 }));
}

#[test]
fn the_first_of_several_calls_is_waited_for() {
    let (mut service, caller) = caller(4);
    let calls: Vec<_> = (0..3).map(|_| start(&caller, &mut service, SHORT)).collect();
    let (ids, mut pending): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    service.answer(0, ids[1], &[5]);
    let (id, outcome) = caller.wait_any(&mut pending).expect("three calls");
    assert_eq!((id, outcome.expect("answered").to_vec()), (ids[1], vec![5]));
    let mut expired = Vec::new();
    while let Some((id, outcome)) = caller.wait_any(&mut pending) {
        assert!(matches!(outcome, Err(CallError::Timeout { request_id, .. }) if request_id == id));
        expired.push(id);
    }
    expired.sort_unstable();
    assert_eq!(expired, [ids[0], ids[2]]);
}

/// What may happen to a call.
#[derive(Debug, Clone, Copy)]
enum Step {
    Start {
        forget: bool,
    },
    /// The service answers the n-th request that it has, in this RX slot, and maybe has it for another answer.
    Answer {
        nth: usize,
        rx_slot: u32,
        again: bool,
    },
    /// The n-th request never arrived.
    Lose {
        nth: usize,
    },
    GiveUp {
        nth: usize,
    },
    Collect {
        nth: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(|forget| Step::Start { forget }),
        4 => (0..8_usize, 0..4_u32, any::<bool>())
            .prop_map(|(nth, rx_slot, again)| Step::Answer { nth, rx_slot, again }),
        1 => (0..8_usize).prop_map(|nth| Step::Lose { nth }),
        1 => (0..8_usize).prop_map(|nth| Step::GiveUp { nth }),
        3 => (0..8_usize).prop_map(|nth| Step::Collect { nth }),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// Whatever is lost, doubled, late or out of order: a call's results are its own, and no slot is lost.
    #[test]
    fn no_call_gets_anothers_answer(steps in steps()) {
        let (mut service, caller) = caller(4);
        let mut requests = Vec::new();
        let mut calls: Vec<Call<'_>> = Vec::new();
        for step in steps {
            match step {
                Step::Start { forget } => {
                    let Ok(frame) = caller.acquire(&ECHO) else { continue };
                    let slot = frame.slot();
                    if forget {
                        frame.dispatch_and_forget(LONG).expect("open");
                    } else {
                        calls.push(frame.dispatch(LONG).expect("open"));
                    }
                    requests.push(service.request(slot).0.request_id);
                }
                Step::Answer { nth, rx_slot, again } if !requests.is_empty() => {
                    let nth = nth % requests.len();
                    let id = if again { requests[nth] } else { requests.remove(nth) };
                    service.answer(rx_slot, id, &id.to_le_bytes());
                    drain(&caller);
                }
                Step::Lose { nth } if !requests.is_empty() => {
                    requests.remove(nth % requests.len());
                }
                Step::GiveUp { nth } if !calls.is_empty() => drop(calls.remove(nth % calls.len())),
                Step::Collect { nth } if !calls.is_empty() => {
                    let nth = nth % calls.len();
                    if calls[nth].is_over() {
                        let call = calls.remove(nth);
                        let id = call.request_id();
                        prop_assert_eq!(call.wait().expect("answered").to_vec(), id.to_le_bytes());
                    }
                }
                _ => {}
            }
        }
        let (unanswered, held) = (calls.iter().filter(|c| !c.is_over()).count(), calls.len());
        prop_assert!(caller.in_use() as usize >= held && unanswered <= held);
        let counts = caller.stats().snapshot();
        let in_flight = u64::from(caller.in_use()) - (held - unanswered) as u64;
        prop_assert_eq!(counts.calls, counts.answers + in_flight);
        prop_assert_eq!(counts.malformed, 0);
    }
}

/// A service that answers in another thread, through the same rings.
fn serve_in_thread(wire: Wire) -> impl FnOnce() {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut table = FunctionTable::new();
    table.register("rpc_increment", increment).expect("an empty table");
    let thread = thread::spawn({
        let stop = stop.clone();
        move || {
            let link = RingLink::new(wire.tx, wire.rx);
            link.open.store(true, Ordering::Relaxed);
            let mut dispatcher = UnifiedLoop::new(link, table).expect("a frame holds a header");
            dispatcher.run(&stop, SpinPolicy::default()).expect("rings do not fail");
        }
    });
    move || {
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("no panic");
    }
}

#[test]
fn a_handle_serves_several_threads() {
    const THREADS: u8 = 6;
    const CALLS: u8 = 200;
    let (wire, link) = link(geometry(4, 128, 64));
    let stop = serve_in_thread(wire);
    let handle = Caller::new(link).expect("a frame holds a header").into_handle().expect("a thread");
    let stats = handle.stats();
    let callers: Vec<_> = (0..THREADS)
        .map(|t| {
            let handle = handle.clone();
            thread::spawn(move || {
                let function = Function::new("rpc_increment");
                for n in 0..CALLS {
                    let mut results = [0; 40];
                    let args = [t, n, 255];
                    let len = handle.call(&function, &args, &mut results, LONG).expect("answered");
                    assert_eq!(results[..len], [t + 1, n.wrapping_add(1), 0]);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("no panic");
    }
    let calls = u64::from(THREADS) * u64::from(CALLS);
    assert_eq!(stats.snapshot(), CallCounts { calls, answers: calls, ..CallCounts::default() });

    let nobody = handle.call(&Function::new("nobody"), &[], &mut [], LONG);
    assert!(matches!(nobody, Err(CallError::Remote { status: Status::UNKNOWN_FUNCTION, .. })));
    let small = handle.call(&Function::new("rpc_increment"), &[1; 4], &mut [0; 3], LONG);
    assert!(matches!(small, Err(CallError::ResponseTooLarge { len: 4, capacity: 3 })));
    let long = handle.call(&Function::new("rpc_increment"), &[1; 41], &mut [0; 3], LONG);
    assert!(matches!(long, Err(CallError::TooLong { len: 41, room: 40 })));
    stop();
    let lost = handle.call(&Function::new("rpc_increment"), &[1], &mut [0; 3], SHORT);
    assert!(matches!(lost, Err(CallError::Timeout { timeout: SHORT, .. })));
}

/// Calls that were forgotten before there was a handle, and are not answered.
#[test]
fn a_handle_without_a_free_slot_keeps_no_call_past_its_time() {
    let (_service, caller) = caller(2);
    for _ in 0..2 {
        frame(&caller, &[]).dispatch_and_forget(LONG).expect("open");
    }
    let handle = caller.into_handle().expect("a thread");
    let refused = handle.call(&ECHO, &[], &mut [], SHORT);
    assert!(matches!(refused, Err(CallError::NoRoom { timeout: SHORT })), "{refused:?}");
    assert_eq!(handle.stats().snapshot(), CallCounts { calls: 2, no_room: 1, ..CallCounts::default() });
}

#[test]
fn a_handle_on_a_closed_link_says_so() {
    let (_wire, link) = link(geometry(4, 128, 64));
    let open = link.open.clone();
    let handle = Caller::new(link).expect("a frame holds a header").into_handle().expect("a thread");
    let waiting = thread::spawn({
        let handle = handle.clone();
        move || handle.call(&ECHO, &[], &mut [], LONG)
    });
    wait_until("it is called", || handle.stats().snapshot().calls == 1);
    open.store(false, Ordering::Relaxed);
    assert!(matches!(waiting.join().expect("no panic"), Err(CallError::Closed)));
    assert!(matches!(handle.call(&ECHO, &[], &mut [], LONG), Err(CallError::Closed)));
}

#[test]
fn frames_without_room_for_a_header_are_refused() {
    let (_wire, link) = link(geometry(4, 64, 20));
    assert_eq!(Caller::new(link).err(), Some(DispatchError::FrameTooSmall { frame_size: 20 }));
}
