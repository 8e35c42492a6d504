//! Functions that work in the slots themselves.

mod common;

use std::ffi::c_void;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::{Arc, Mutex};

use common::*;
use roce_dispatch::rpc::{HandlerError, Request, Status};
use roce_dispatch::schema::{HandlerSchema, PayloadType, TypeDesc};
use roce_dispatch::{Arguments, DispatchCounts, DispatchError, FunctionTable, Results, UnifiedLoop};

/// Each byte one higher, by every way to read and to write.
fn increment_all(args: Arguments<'_>, results: &mut Results<'_>) -> Result<(), HandlerError> {
    let len = args.len();
    assert!(results.is_empty() && args.words().len() == len.div_ceil(8));
    let mut bytes = vec![0; len];
    args.copy_to(0, &mut bytes);
    for (at, word) in args.words().enumerate() {
        let mut expected = [0; 8];
        let rest = &bytes[8 * at..];
        expected[..rest.len().min(8)].copy_from_slice(&rest[..rest.len().min(8)]);
        assert_eq!((word, args.word(at)), (u64::from_le_bytes(expected), word));
    }
    if let Some(last) = len.checked_sub(1) {
        assert_eq!(args.read::<1>(last), [bytes[last]]);
    }
    bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    let (words, rest) = bytes.as_chunks();
    words.iter().for_each(|&word| results.put_word(u64::from_le_bytes(word)));
    results.put(&[]);
    rest.iter().for_each(|&byte| results.put(&[byte]));
    assert_eq!(results.len(), len);
    Ok(())
}

/// Puts some results, and then does what its first argument says.
fn misbehave(args: Arguments<'_>, results: &mut Results<'_>) -> Result<(), HandlerError> {
    results.put(&[0xEE; 9]);
    match args.word(0) {
        0 => return Err(HandlerError::new(7).expect("positive")),
        1 => panic!("a handler's bug"),
        2 => results.put(&vec![0xEE; results.room() - 8]), // one too many
        3 => (0..1000).for_each(|_| results.put_word(u64::MAX)),
        4 => results.put_word(args.word(1)),       // of one
        5 => results.put(&args.read::<9>(0)),      // of eight
        6 => results.put_word(args.word(1 << 61)), // whose offset does not wrap to 0
        _ => args.copy_to(usize::MAX, &mut [0]),
    }
    Ok(())
}

fn table() -> FunctionTable {
    let mut table = FunctionTable::new();
    table.register_in_place("increment", None, increment_all).expect("an empty table");
    table.register_in_place("misbehave", None, misbehave).expect("names differ");
    table
}

/// Slots with and without whole words and lines, frames shorter than a line and longer, every length of arguments.
#[test]
fn every_length_in_every_shape() {
    for (page, frame) in [(64, 64), (128, 64), (64, 37), (72, 72), (60, 60), (40, 40), (101, 77), (256, 200)]
    {
        let (mut wire, link) = link(geometry(2, page, frame));
        let mut dispatcher = UnifiedLoop::new(link, table()).expect("a frame holds a header");
        let room = frame - 24;
        for (id, len) in (0..).zip((0..=room).rev().chain(0..=room)) {
            let args: Vec<u8> = (0..len).map(|at| byte(id + at)).collect();
            wire.deliver(id % 2, &request("increment", id, &args));
            wait_until("a response", || dispatcher.poll() == Ok(1));
            let expected: Vec<u8> = args.iter().map(|b| b.wrapping_add(1)).collect();
            assert_answers(&wire.expect(id % 2), id, Status::SUCCESS, &expected);
        }
        for len in room + 1..=page - 24 {
            wire.deliver(0, &request("increment", len, &vec![0; len as usize]));
            wait_until("a response", || dispatcher.poll() == Ok(1));
            assert_answers(&wire.expect(0), len, Status::RESULT_TOO_LARGE, &[]);
        }
    }
}

/// Whatever a function does after it has put results, none of them is left in the response.
#[test]
fn what_a_function_does_becomes_a_status() {
    let error = Status::from_code(7);
    let statuses = [error, Status::HANDLER_PANICKED, Status::RESULT_TOO_LARGE, Status::RESULT_TOO_LARGE];
    for (page, frame) in [(256, 64), (256, 256), (60, 60), (64, 40)] {
        let (mut wire, mut dispatcher) = serve(geometry(4, page, frame), table());
        for (id, way) in (0..).zip((0..8).cycle().take(32)) {
            let expected = statuses.get(way).copied().unwrap_or(Status::HANDLER_PANICKED);
            let answer =
                wire.call(&mut dispatcher, id % 4, &request("misbehave", id, &(way as u64).to_le_bytes()));
            assert_answers(&answer, id, expected, &[]);
        }
        let expected = DispatchCounts {
            requests: 32,
            responses: 32,
            handler_errors: 4,
            panics: 20,
            result_too_large: 8,
            ..DispatchCounts::default()
        };
        assert_eq!(counts(&dispatcher), expected);
    }
}

#[test]
fn arguments_that_are_not_all_there_or_not_as_the_schema_says_are_refused() {
    let long = TypeDesc::new(PayloadType::Int64, 1).expect("a scalar");
    let schema = HandlerSchema::new(&[long], &[long]).expect("short");
    for page in [64, 60] {
        let mut table = table();
        table.register_in_place("one_word", Some(&schema), increment_all).expect("names differ");
        let (mut wire, mut dispatcher) = serve(geometry(4, page, page), table);
        let mut slots = (0..4).cycle();
        for len in 0..=page - 24 {
            let slot = slots.next().expect("endless");
            let answer = wire.call(&mut dispatcher, slot, &request("one_word", len, &vec![4; len as usize]));
            match len {
                8 => assert_answers(&answer, 8, Status::SUCCESS, &[5; 8]),
                _ => assert_answers(&answer, len, Status::BAD_LENGTH, &[]),
            }
        }
        for arg_len in [page - 23, page, u32::MAX] {
            let mut frame = request("increment", 9, &[]);
            Request { arg_len, ..Request::parse(&frame).expect("a request") }.emit(&mut frame);
            let slot = slots.next().expect("endless");
            assert_answers(&wire.call(&mut dispatcher, slot, &frame), 9, Status::BAD_LENGTH, &[]);
        }
    }
}

/// So many that some are not found at once.
#[test]
fn a_hundred_functions_beside_others() {
    let mut table = FunctionTable::new();
    for n in 0..100u64 {
        let put = move |_: Arguments<'_>, results: &mut Results<'_>| {
            results.put_word(n);
            Ok(())
        };
        table.register_in_place(&format!("in place {n}"), None, put).expect("names differ");
        table.register(&format!("copied {n}"), increment).expect("names differ");
    }
    assert_eq!(table.len(), 200);
    let (mut wire, mut dispatcher) = serve(geometry(8, 64, 64), table);
    for n in 0..100 {
        let (slot, next) = (2 * n % 8, (2 * n + 1) % 8);
        let answer = wire.call(&mut dispatcher, slot, &request(&format!("in place {n}"), n, &[1, 2]));
        assert_answers(&answer, n, Status::SUCCESS, &u64::from(n).to_le_bytes());
        let answer = wire.call(&mut dispatcher, next, &request(&format!("copied {n}"), n, &[1, 2]));
        assert_answers(&answer, n, Status::SUCCESS, &[2, 3]);
    }
}

#[test]
fn a_name_is_taken_once_whatever_the_form() {
    let mut table = table();
    let again = table.register_in_place("increment", None, increment_all);
    assert!(matches!(again, Err(DispatchError::Duplicate { .. })), "{again:?}");
    let again = table.register("increment", increment);
    assert!(matches!(again, Err(DispatchError::Duplicate { .. })), "{again:?}");
    assert_eq!(table.len(), 2);
}

#[test]
fn arguments_overwritten_under_a_function_are_not_answered() {
    assert_overwritten_is_not_answered(|table, overwrite| {
        table.register_in_place("echo", None, move |args: Arguments<'_>, results: &mut Results<'_>| {
            if args.word(0) == 1 {
                overwrite();
            }
            results.put(&args.read::<1>(0));
            Ok(())
        })
    });
}

/// A response waits for its slot, and the function is called once all the same.
#[test]
fn a_taken_slot_is_waited_for() {
    let calls = Arc::new(Mutex::new(0));
    let count = Arc::clone(&calls);
    let mut table = FunctionTable::new();
    let note = move |_: Arguments<'_>, results: &mut Results<'_>| {
        *count.lock().expect("one thread") += 1;
        results.put(&[1]);
        Ok(())
    };
    table.register_in_place("note", None, note).expect("an empty table");
    let (mut wire, mut dispatcher) = serve(geometry(1, 64, 64), table);
    wire.deliver(0, &request("note", 1, &[]));
    assert_eq!(dispatcher.poll(), 1);
    wire.deliver(0, &request("note", 2, &[]));
    assert!((0..POLLS_PAST_A_HOLE).all(|_| dispatcher.poll() == 0));
    assert_eq!(counts(&dispatcher).requests, 1, "the second is not begun");
    assert_answers(&wire.expect(0), 1, Status::SUCCESS, &[1]);
    wait_until("the second response", || dispatcher.poll() == 1);
    assert_answers(&wire.expect(0), 2, Status::SUCCESS, &[1]);
    assert_eq!(*calls.lock().expect("one thread"), 2);
}

/// Fails after it has written all that it can.
fn fail(_: &[u8], result: &mut [u8]) -> Result<usize, HandlerError> {
    result.fill(0xEE);
    Err(HandlerError::new(7).expect("positive"))
}

/// Leaves bytes everywhere, and no header.
unsafe extern "C" fn c_garbage(_: *const c_void, tx_slot: *mut c_void, slot_size: usize) {
    // SAFETY: the dispatcher passes `slot_size` bytes there, and nobody else uses them during the call.
    unsafe { tx_slot.cast::<u8>().write_bytes(0xEE, slot_size) }
}

/// A table of each kind of function, behind so many others that work in place.
fn all_kinds(others: u32) -> FunctionTable {
    let mut table = FunctionTable::new();
    for n in 0..others {
        let nothing = |_: Arguments<'_>, _: &mut Results<'_>| Ok(());
        table.register_in_place(&format!("other {n}"), None, nothing).expect("names differ");
    }
    table.register_in_place("increment", None, increment_all).expect("names differ");
    table.register_in_place("misbehave", None, misbehave).expect("names differ");
    table.register("copied", increment).expect("names differ");
    table.register("fail", fail).expect("names differ");
    // SAFETY: both keep to their slots, and do not unwind when the dispatcher is right.
    unsafe {
        table.register_raw("c", c_increment).expect("names differ");
        table.register_raw("c_garbage", c_garbage).expect("names differ");
    }
    table
}

/// Requests of each kind, with the status of their answers.
fn requests_of_all_kinds(room: usize) -> Vec<(&'static str, Vec<u8>, Status)> {
    let mut kinds = Vec::new();
    for name in ["increment", "copied", "c"] {
        kinds.extend([0, 5, 8, room].map(|len| (name, vec![7; len], Status::SUCCESS)));
    }
    let error = Status::from_code(7);
    let ways = [error, Status::HANDLER_PANICKED, Status::RESULT_TOO_LARGE, Status::RESULT_TOO_LARGE];
    kinds.extend((0u64..).zip(ways).map(|(way, status)| ("misbehave", way.to_le_bytes().to_vec(), status)));
    kinds.push(("fail", vec![7], error));
    kinds.push(("c_garbage", vec![7], Status::NO_RESPONSE));
    kinds.push(("nobody", vec![7], Status::UNKNOWN_FUNCTION));
    kinds
}

/// In one slot, in every order of two: no answer has a byte of the one before.
#[test]
fn whatever_follows_whatever_no_stale_byte_goes_out() {
    for (page, frame) in [(64, 64), (256, 200), (256, 64), (60, 60), (128, 40)] {
        for others in [0, 100] {
            let (mut wire, mut dispatcher) = serve(geometry(1, page, frame), all_kinds(others));
            let kinds = requests_of_all_kinds(frame as usize - 24);
            let pairs = kinds.iter().flat_map(|first| kinds.iter().flat_map(move |second| [first, second]));
            for (id, (name, args, status)) in (0..).zip(pairs) {
                let answer = wire.call(&mut dispatcher, 0, &request(name, id, args));
                let results = if status.is_success() { vec![8; args.len()] } else { Vec::new() };
                assert_answers(&answer, id, *status, &results);
            }
            let counts = counts(&dispatcher);
            assert_eq!(counts.requests, 2 * (kinds.len() * kinds.len()) as u64);
            assert_eq!(counts.requests, counts.responses);
        }
    }
}

/// What a panic carries, and what panics once more when it is dropped, each time anew.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Self);
    }
}

#[test]
fn a_panic_that_panics_again_costs_one_answer_too() {
    let mut table = table();
    let in_place = |_: Arguments<'_>, results: &mut Results<'_>| {
        results.put(&[0xEE; 9]);
        panic_any(Bomb)
    };
    table.register_in_place("bomb", None, in_place).expect("names differ");
    table.register("copied bomb", |_, _| panic_any(Bomb)).expect("names differ");
    let (mut wire, mut dispatcher) = serve(geometry(1, 64, 64), table);
    for (id, name) in (0..).zip(["bomb", "copied bomb", "bomb"]) {
        let answer =
            catch_unwind(AssertUnwindSafe(|| wire.call(&mut dispatcher, 0, &request(name, id, &[1]))));
        let answer = answer.unwrap_or_else(|bomb| {
            forget(bomb);
            panic!("{name}: a panic has left the dispatcher")
        });
        assert_answers(&answer, id, Status::HANDLER_PANICKED, &[]);
    }
    let answer = wire.call(&mut dispatcher, 0, &request("increment", 3, &[1]));
    assert_answers(&answer, 3, Status::SUCCESS, &[2]);
    let expected = DispatchCounts { requests: 4, responses: 4, panics: 3, ..DispatchCounts::default() };
    assert_eq!(counts(&dispatcher), expected);
}
