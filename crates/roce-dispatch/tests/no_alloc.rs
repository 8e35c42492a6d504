//! Neither serving nor calling allocates, whatever comes in.

mod common;

use std::ffi::c_void;
use std::time::Duration;

use assert_no_alloc::{AllocDisabler, assert_no_alloc};
use common::*;
use roce_dispatch::caller::{CallError, Caller, Function};
use roce_dispatch::rpc::{HandlerError, Request};
use roce_dispatch::{Arguments, DispatchCounts, FunctionTable, Results, UnifiedLoop};

#[global_allocator]
static ALLOCATOR: AllocDisabler = AllocDisabler;

unsafe extern "C" fn echo_header(rx_slot: *const c_void, tx_slot: *mut c_void, _: usize) {
    // SAFETY: both are slots of at least a header each.
    unsafe {
        rx_slot.cast::<u8>().copy_to(tx_slot.cast::<u8>(), 24);
        tx_slot.cast::<u32>().write(roce_dispatch::rpc::RESPONSE_MAGIC);
        tx_slot.cast::<u64>().add(1).cast::<u32>().write(0);
        tx_slot.cast::<u32>().add(1).write(0);
    }
}

#[test]
fn serving_allocates_nothing() {
    let mut table = FunctionTable::new();
    let refusal = HandlerError::new(1).expect("positive");
    table.register("rpc_increment", increment).expect("an empty table");
    table.register("refuse", move |_, _| Err(refusal)).expect("names differ");
    table.register("too_much", |_, result| Ok(result.len() + 1)).expect("names differ");
    let in_place = move |args: Arguments<'_>, results: &mut Results<'_>| {
        args.words().for_each(|word| results.put_word(word));
        if args.is_empty() { Err(refusal) } else { Ok(()) }
    };
    table.register_in_place("in_place", None, in_place).expect("names differ");
    // SAFETY: the handler keeps to its slots and never unwinds.
    unsafe { table.register_raw("raw", echo_header) }.expect("names differ");
    let (mut wire, mut dispatcher) = serve(geometry(16, 256, 128), table);

    let mut too_long = request("rpc_increment", 0, &[]);
    Request { arg_len: 1000, ..Request::parse(&too_long).expect("a request") }.emit(&mut too_long);
    let frames = [
        request("rpc_increment", 1, &[1; 60]),
        request("raw", 2, &[2; 30]),
        request("refuse", 3, &[]),
        request("too_much", 4, &[]),
        request("nobody", 5, &[]),
        request("in_place", 6, &[3; 60]),
        request("in_place", 7, &[]),
        request("in_place", 8, &[3; 120]),
        too_long,
        vec![0; 64],
    ];
    let mut run = || {
        for round in 0..1000 {
            let first = if round % 3 == 0 { 1 } else { 0 }; // a hole now and then
            for (slot, frame) in (first..).zip(&frames) {
                wire.deliver(slot, frame);
            }
            let done: usize = (0..POLLS_PAST_A_HOLE).map(|_| dispatcher.poll()).sum();
            assert_eq!(done, frames.len());
            for slot in 0..16 {
                if wire.tx.peek(slot).is_some() {
                    wire.tx.claim(slot);
                }
            }
        }
    };
    assert_no_alloc(&mut run);

    let expected = DispatchCounts {
        requests: 9000,
        responses: 9000,
        bad_magic: 1000,
        unknown_function: 1000,
        bad_length: 1000,
        handler_errors: 2000,
        result_too_large: 2000,
        ..DispatchCounts::default()
    };
    assert_eq!(counts(&dispatcher), expected);
}

#[test]
fn calling_allocates_nothing() {
    let mut table = FunctionTable::new();
    table.register("rpc_increment", increment).expect("an empty table");
    let (wire, near) = link(geometry(8, 256, 128));
    let far = RingLink::new(wire.tx, wire.rx);
    let mut dispatcher = UnifiedLoop::new(far, table).expect("a frame holds a header");
    let caller = Caller::new(near).expect("a frame holds a header");
    let function = Function::new("rpc_increment");
    let mut pending = Vec::with_capacity(8);

    let mut run = || {
        for round in 0..1000_i32 {
            for _ in 0..6 {
                let mut frame = caller.acquire(&function).expect("free");
                frame.put(&round).and_then(|f| f.put(&[true as u8; 7])).expect("room");
                pending.push(frame.dispatch(CEILING).expect("open"));
            }
            caller.acquire(&function).expect("free").dispatch_and_forget(CEILING).expect("open");
            let nobody =
                caller.acquire(&Function::new("nobody")).expect("free").dispatch(CEILING).expect("open");
            assert!(matches!(caller.acquire(&function), Err(CallError::Busy { .. })));
            assert_eq!(dispatcher.poll(), Ok(8));
            while let Some((_, outcome)) = caller.wait_any(&mut pending) {
                let mut results = [0; 11];
                outcome.expect("answered").copy_to(0, &mut results).expect("11 bytes");
                assert_eq!(results[4..], [2; 7]);
            }
            assert!(matches!(nobody.wait(), Err(CallError::Remote { .. })));
            caller.poll().expect("open");
        }
        // Nobody serves.
        let call = caller.acquire(&function).expect("free").dispatch(Duration::ZERO).expect("open");
        assert!(matches!(call.wait(), Err(CallError::Timeout { .. })));
    };
    assert_no_alloc(&mut run);
    assert_eq!(caller.stats().snapshot().answers, 7000);
}
