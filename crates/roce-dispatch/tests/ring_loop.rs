//! The dispatcher on real rings; the test plays the transport.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use common::*;
use roce_dispatch::rpc::{HEADER_LEN, HandlerError, Request, Status, function_id};
use roce_dispatch::schema::{HandlerSchema, PayloadType, TypeDesc};
use roce_dispatch::{DispatchCounts, DispatchError, FunctionTable, RingLoop};
use roce_ring::{MemoryOptions, Ring};
use roce_transport::SpinPolicy;

fn increment_table() -> FunctionTable {
    let mut table = FunctionTable::new();
    table.register("rpc_increment", increment).expect("an empty table");
    table
}

#[test]
fn a_request_is_answered_in_its_own_slot() {
    let (mut wire, mut dispatcher) = serve(geometry(8, 256, 256), increment_table());
    for slot in 0..8 {
        let answer = wire.call(&mut dispatcher, slot, &request("rpc_increment", 100 + slot, &[1, 2, 255]));
        assert_answers(&answer, 100 + slot, Status::SUCCESS, &[2, 3, 0]);
    }
    let expected = DispatchCounts { requests: 8, responses: 8, ..DispatchCounts::default() };
    assert_eq!(counts(&dispatcher), expected);
    assert_eq!(dispatcher.poll(), 0);
}

#[test]
fn a_poll_serves_all_that_is_there() {
    let (mut wire, mut dispatcher) = serve(geometry(8, 256, 256), increment_table());
    for slot in 0..8 {
        wire.deliver(slot, &request("rpc_increment", slot, &[7]));
    }
    assert_eq!(dispatcher.poll(), 8);
    for slot in 0..8 {
        assert_answers(&wire.expect(slot), slot, Status::SUCCESS, &[8]);
    }
}

#[test]
fn a_ring_of_one_slot_works() {
    let (mut wire, mut dispatcher) = serve(geometry(1, 64, 64), increment_table());
    for id in 0..100 {
        let answer = wire.call(&mut dispatcher, 0, &request("rpc_increment", id, &id.to_le_bytes()));
        assert_eq!(answer.header.request_id, id);
    }
}

#[test]
fn an_unknown_function_is_answered() {
    let (mut wire, mut dispatcher) = serve(geometry(4, 256, 256), increment_table());
    let answer = wire.call(&mut dispatcher, 0, &request("no_such_thing", 5, &[1, 2, 3]));
    assert_answers(&answer, 5, Status::UNKNOWN_FUNCTION, &[]);
    assert_eq!(counts(&dispatcher).unknown_function, 1);
}

#[test]
fn arguments_may_fill_the_slot_and_not_one_byte_more() {
    let mut table = FunctionTable::new();
    table
        .register("sum", |args, result| {
            let sum: u32 = args.iter().map(|&b| u32::from(b)).sum();
            result[..4].copy_from_slice(&sum.to_le_bytes());
            Ok(4)
        })
        .expect("an empty table");
    let (mut wire, mut dispatcher) = serve(geometry(4, 128, 64), table);

    let answer = wire.call(&mut dispatcher, 0, &request("sum", 1, &[1; 104]));
    assert_answers(&answer, 1, Status::SUCCESS, &104_u32.to_le_bytes());

    for (slot, arg_len) in [(1, 105), (2, u32::MAX)] {
        let header = Request {
            function_id: function_id("sum"),
            arg_len,
            request_id: slot,
            ptp_timestamp: timestamp(slot),
        };
        let mut frame = [0; HEADER_LEN];
        header.emit(&mut frame);
        let answer = wire.call(&mut dispatcher, slot, &frame);
        assert_answers(&answer, slot, Status::BAD_LENGTH, &[]);
    }
    assert_eq!(counts(&dispatcher).bad_length, 2);
}

#[test]
fn a_schema_keeps_wrong_lengths_from_the_handler() {
    let bits = TypeDesc::new(PayloadType::BitPacked, 12).expect("a descriptor");
    let schema = HandlerSchema::new(&[bits], &[]).expect("a schema");
    let calls = Arc::new(AtomicU32::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move |_: &[u8], _: &mut [u8]| {
            calls.fetch_add(1, Ordering::Relaxed);
            Ok(0)
        }
    };
    let mut table = FunctionTable::new();
    table.register_with_schema("decode", &schema, handler).expect("an empty table");
    let (mut wire, mut dispatcher) = serve(geometry(4, 64, 64), table);

    for (slot, args) in (0..).zip([&[0; 1][..], &[0; 3]]) {
        let answer = wire.call(&mut dispatcher, slot, &request("decode", slot, args));
        assert_answers(&answer, slot, Status::BAD_LENGTH, &[]);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    let answer = wire.call(&mut dispatcher, 2, &request("decode", 2, &[0; 2]));
    assert_answers(&answer, 2, Status::SUCCESS, &[]);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_handlers_own_error_reaches_the_caller_without_results() {
    let mut table = FunctionTable::new();
    let code = HandlerError::new(42).expect("positive");
    table
        .register("refuse", move |_, result| {
            result.fill(0xEE);
            Err(code)
        })
        .expect("an empty table");
    let (mut wire, mut dispatcher) = serve(geometry(4, 64, 64), table);
    let answer = wire.call(&mut dispatcher, 0, &request("refuse", 9, &[]));
    assert_answers(&answer, 9, Status::from_code(42), &[]);
    assert_eq!(counts(&dispatcher).handler_errors, 1);
}

#[test]
fn a_panic_costs_one_answer_and_nothing_else() {
    let mut table = increment_table();
    table
        .register("fragile", |args, result| {
            result[0] = 0xAB;
            assert!(args[0] == 0, "told to");
            Ok(1)
        })
        .expect("names differ");
    let (mut wire, mut dispatcher) = serve(geometry(4, 64, 64), table);
    let answer = wire.call(&mut dispatcher, 0, &request("fragile", 1, &[1]));
    assert_answers(&answer, 1, Status::HANDLER_PANICKED, &[]);
    let answer = wire.call(&mut dispatcher, 1, &request("fragile", 2, &[0]));
    assert_answers(&answer, 2, Status::SUCCESS, &[0xAB]);
    let answer = wire.call(&mut dispatcher, 2, &request("rpc_increment", 3, &[9]));
    assert_answers(&answer, 3, Status::SUCCESS, &[10]);
    assert_eq!(counts(&dispatcher).panics, 1);
}

#[test]
fn results_are_bounded_by_the_frame() {
    let mut table = FunctionTable::new();
    table
        .register("fill", |args, result| {
            let len = usize::from(args[0]);
            let room = len.min(result.len());
            result[..room].fill(0x77);
            Ok(len)
        })
        .expect("an empty table");
    let (mut wire, mut dispatcher) = serve(geometry(4, 256, 64), table);
    let answer = wire.call(&mut dispatcher, 0, &request("fill", 1, &[40]));
    assert_answers(&answer, 1, Status::SUCCESS, &[0x77; 40]);
    let answer = wire.call(&mut dispatcher, 1, &request("fill", 2, &[41]));
    assert_answers(&answer, 2, Status::RESULT_TOO_LARGE, &[]);
    assert_eq!(counts(&dispatcher).result_too_large, 1);
}

#[test]
fn no_stale_byte_goes_out() {
    let mut table = FunctionTable::new();
    table
        .register("lazy", |args, _| Ok(usize::from(args[0]))) // writes nothing of what it returns
        .expect("an empty table");
    table
        .register("scribble", |args, result| {
            result.fill(0xEE);
            Ok(usize::from(args[0]))
        })
        .expect("names differ");
    let (mut wire, rx, tx) = rings(geometry(1, 128, 100));
    tx.slot(0).copy_from(0, &[0xDD; 128]); // whoever had the ring before
    let mut dispatcher = RingLoop::new(rx, tx, table).expect("rings of one shape");

    let calls = [
        ("scribble", 10, 0xEE),
        ("scribble", 76, 0xEE),
        ("scribble", 3, 0xEE),
        ("lazy", 50, 0),
        ("scribble", 0, 0xEE),
    ];
    for (id, (name, len, byte)) in (0..).zip(calls) {
        let answer = wire.call(&mut dispatcher, 0, &request(name, id, &[len]));
        assert_answers(&answer, id, Status::SUCCESS, &vec![byte; len.into()]);
    }
}

#[test]
fn what_is_no_request_is_dropped_and_holds_nothing_up() {
    let (mut wire, mut dispatcher) = serve(geometry(8, 64, 64), increment_table());
    wire.deliver(0, &request("rpc_increment", 1, &[1]));
    wire.deliver(1, &[0xFF; 64]);
    wire.deliver(2, &request("rpc_increment", 3, &[3]));
    assert_eq!(dispatcher.poll(), 3);
    assert_answers(&wire.expect(0), 1, Status::SUCCESS, &[2]);
    assert!(wire.take(1).is_none());
    assert!(wire.rx.is_free(1));
    assert_answers(&wire.expect(2), 3, Status::SUCCESS, &[4]);
    let expected = DispatchCounts { requests: 2, responses: 2, bad_magic: 1, ..DispatchCounts::default() };
    assert_eq!(counts(&dispatcher), expected);
}

#[test]
fn what_is_no_request_waits_for_no_tx_slot() {
    let (mut wire, mut dispatcher) = serve(geometry(4, 64, 64), increment_table());
    for slot in 0..4 {
        wire.deliver(slot, &request("rpc_increment", slot, &[0]));
    }
    assert_eq!(dispatcher.poll(), 4);
    wire.deliver(0, &[0; 64]);
    assert_eq!(dispatcher.poll(), 1);
    assert_eq!(wire.expect(0).header.request_id, 0);
}

#[test]
fn a_lost_message_leaves_a_hole_that_is_passed_over() {
    let (mut wire, mut dispatcher) = serve(geometry(8, 64, 64), increment_table());
    for slot in [0, 3, 4] {
        wire.deliver(slot, &request("rpc_increment", slot, &[0]));
    }
    let done: usize = (0..POLLS_PAST_A_HOLE).map(|_| dispatcher.poll()).sum();
    assert_eq!(done, 3);
    for slot in [0, 3, 4] {
        assert_answers(&wire.expect(slot), slot, Status::SUCCESS, &[1]);
    }
    // In order from there on, and across the ring's end.
    for slot in [5, 6, 7, 0, 1] {
        wire.call(&mut dispatcher, slot, &request("rpc_increment", slot, &[0]));
    }
}

#[test]
fn a_taken_tx_slot_holds_the_response_back() {
    let (mut wire, mut dispatcher) = serve(geometry(2, 64, 64), increment_table());
    for slot in [0, 1] {
        wire.deliver(slot, &request("rpc_increment", slot, &[0]));
    }
    assert_eq!(dispatcher.poll(), 2);
    wire.deliver(0, &request("rpc_increment", 2, &[0]));
    assert_eq!(dispatcher.poll(), 0);
    assert!(!wire.rx.is_free(0), "a request that waits is still its slot's");
    assert_answers(&wire.expect(0), 0, Status::SUCCESS, &[1]);
    assert_eq!(dispatcher.poll(), 1);
    assert_answers(&wire.expect(0), 2, Status::SUCCESS, &[1]);
}

#[test]
fn stop_ends_a_loop_whose_tx_slot_never_comes_free() {
    let (mut wire, mut dispatcher) = serve(geometry(1, 64, 64), increment_table());
    wire.call(&mut dispatcher, 0, &request("rpc_increment", 0, &[0]));
    wire.deliver(0, &request("rpc_increment", 1, &[0]));
    assert_eq!(dispatcher.poll(), 1);
    wire.deliver(0, &request("rpc_increment", 2, &[0]));

    let stop = Arc::new(AtomicBool::new(false));
    let runner = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            dispatcher.run(&stop, SpinPolicy::SpinThenYield { polls: 10 });
            dispatcher
        }
    });
    stop.store(true, Ordering::Relaxed);
    wait_until("the loop ends", || runner.is_finished());
    let dispatcher = runner.join().expect("no panic");
    assert_eq!(counts(&dispatcher).responses, 2);
    assert_eq!(wire.expect(0).header.request_id, 1);
}

#[test]
fn a_request_overwritten_under_its_handler_is_not_answered() {
    assert_overwritten_is_not_answered(|table, overwrite| {
        table.register("echo", move |args, result| {
            if args == [1] {
                overwrite();
                assert_eq!(args, [1], "the copy is private");
            }
            result[..args.len()].copy_from_slice(args);
            Ok(args.len())
        })
    });
}

#[test]
fn rings_that_do_not_match_are_refused() {
    let (_, rx, _) = rings(geometry(4, 64, 64));
    let (_, _, tx) = rings(geometry(8, 64, 64));
    assert_eq!(
        RingLoop::new(rx, tx, FunctionTable::new()).map(|_| ()),
        Err(DispatchError::SlotCounts { rx: 4, tx: 8 })
    );
    let (_, rx, tx) = rings(geometry(4, 64, 23));
    assert_eq!(
        RingLoop::new(rx, tx, FunctionTable::new()).map(|_| ()),
        Err(DispatchError::FrameTooSmall { frame_size: 23 })
    );
}

#[test]
fn a_larger_rx_page_serves_a_smaller_tx_frame() {
    let ring = |page| {
        let ring = Ring::allocate(geometry(2, page, page), MemoryOptions::default()).expect("memory");
        ring.split().expect("first split")
    };
    let (rx, dispatcher_rx) = ring(1024);
    let (dispatcher_tx, tx) = ring(32);
    let mut wire = Wire { rx, tx, geometry: geometry(2, 32, 32) };
    let mut table = FunctionTable::new();
    table
        .register("len", |args, result| {
            result[..8].copy_from_slice(&args.len().to_le_bytes());
            Ok(8)
        })
        .expect("an empty table");
    let mut dispatcher = RingLoop::new(dispatcher_rx, dispatcher_tx, table).expect("slots match");
    let answer = wire.call(&mut dispatcher, 0, &request("len", 1, &[0; 1000]));
    assert_answers(&answer, 1, Status::SUCCESS, &1000_u64.to_le_bytes());
}

/// Every 17th message is no request, every 13th asks for an unknown function; all others must come back right.
#[test]
fn two_threads_over_thousands_of_wraps() {
    const MESSAGES: u32 = 40_000;
    const SLOTS: u32 = 8;
    let (mut wire, mut dispatcher) = serve(geometry(SLOTS, 256, 128), increment_table());
    let stats = dispatcher.stats();
    let stop = Arc::new(AtomicBool::new(false));
    let runner = thread::spawn({
        let stop = Arc::clone(&stop);
        move || dispatcher.run(&stop, SpinPolicy::default())
    });

    let junk = |id: u32| id % 17 == 16;
    let unknown = |id: u32| id % 13 == 12;
    let args = |id: u32| [byte(id); 60][..(id % 60) as usize].to_vec();
    let (mut sent, mut taken) = (0, 0);
    while taken < MESSAGES {
        while sent < MESSAGES && sent - taken < SLOTS && wire.rx.is_free(sent % SLOTS) {
            let name = if unknown(sent) { "nobody" } else { "rpc_increment" };
            let mut frame = request(name, sent, &args(sent));
            if junk(sent) {
                frame[0] ^= 1;
            }
            wire.deliver(sent % SLOTS, &frame);
            sent += 1;
        }
        let slot = taken % SLOTS;
        if junk(taken) {
            wait_until("junk is dropped", || wire.rx.is_free(slot));
            assert!(wire.take(slot).is_none(), "junk {taken} was answered");
        } else {
            wait_until("a response", || wire.tx.peek(slot).is_some());
            let answer = wire.expect(slot);
            if unknown(taken) {
                assert_answers(&answer, taken, Status::UNKNOWN_FUNCTION, &[]);
            } else {
                let expected: Vec<_> = args(taken).iter().map(|b| b.wrapping_add(1)).collect();
                assert_answers(&answer, taken, Status::SUCCESS, &expected);
            }
        }
        taken += 1;
    }

    let junk_count = (0..MESSAGES).filter(|&id| junk(id)).count() as u64;
    let expected = DispatchCounts {
        requests: u64::from(MESSAGES) - junk_count,
        responses: u64::from(MESSAGES) - junk_count,
        bad_magic: junk_count,
        unknown_function: (0..MESSAGES).filter(|&id| unknown(id) && !junk(id)).count() as u64,
        ..DispatchCounts::default()
    };
    assert_eq!(stats.snapshot(), expected, "read while the loop runs");
    stop.store(true, Ordering::Relaxed);
    wait_until("the loop ends", || runner.is_finished());
    runner.join().expect("no panic");
}

/// A sender that waits for nothing loses messages, and may tear one that is being read. Once it behaves again, all
/// is well at once.
#[test]
fn a_lapping_sender_harms_only_itself() {
    const SLOTS: u32 = 4;
    let (mut wire, mut dispatcher) = serve(geometry(SLOTS, 256, 128), increment_table());
    let stats = dispatcher.stats();
    let stop = Arc::new(AtomicBool::new(false));
    let runner = thread::spawn({
        let stop = Arc::clone(&stop);
        move || dispatcher.run(&stop, SpinPolicy::default())
    });

    let mut answered = 0;
    for id in 0..20_000 {
        let slot = id % SLOTS;
        let frame = request("rpc_increment", id, &[byte(id); 40]);
        if wire.rx.is_free(slot) {
            wire.deliver(slot, &frame);
        } else {
            wire.rx.slot(slot).copy_from(0, &frame);
            wire.rx.note_overrun(slot);
        }
        answered += u64::from(wire.take(slot).is_some());
    }
    wait_until("the loop has caught up", || {
        answered += (0..SLOTS).filter(|&slot| wire.take(slot).is_some()).count() as u64;
        (0..SLOTS).all(|slot| wire.rx.is_free(slot)) && stats.snapshot().responses == answered
    });

    for id in 0..100 {
        let slot = id % SLOTS;
        wire.deliver(slot, &request("rpc_increment", id, &[byte(id); 40]));
        wait_until("a response", || wire.tx.peek(slot).is_some());
        assert_answers(&wire.expect(slot), id, Status::SUCCESS, &[byte(id) + 1; 40]);
    }
    stop.store(true, Ordering::Relaxed);
    wait_until("the loop ends", || runner.is_finished());
    runner.join().expect("no panic");
}
