//! The dispatcher on a link that it drives itself.

mod common;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::*;
use roce_dispatch::rpc::{HEADER_LEN, HandlerError, Request, Response, Status};
use roce_dispatch::{DispatchCounts, DispatchError, FunctionTable, UnifiedLink, UnifiedLoop};
use roce_ring::{Geometry, SlotBytes};
use roce_transport::SpinPolicy;

fn table() -> FunctionTable {
    let mut table = FunctionTable::new();
    table.register("rpc_increment", increment).expect("an empty table");
    table
}

#[test]
fn serves_and_drops_as_the_ring_loop_does() {
    let (mut wire, link) = link(geometry(4, 64, 64));
    let mut dispatcher = UnifiedLoop::new(link, table()).expect("a frame holds a header");
    wire.deliver(0, &request("rpc_increment", 1, &[1]));
    wire.deliver(1, &[0; 64]);
    wire.deliver(2, &request("nobody", 3, &[]));
    assert_eq!(dispatcher.poll(), Ok(3));
    assert_answers(&wire.expect(0), 1, Status::SUCCESS, &[2]);
    assert!(wire.take(1).is_none());
    assert_answers(&wire.expect(2), 3, Status::UNKNOWN_FUNCTION, &[]);
    let expected = DispatchCounts {
        requests: 2,
        responses: 2,
        bad_magic: 1,
        unknown_function: 1,
        ..DispatchCounts::default()
    };
    assert_eq!(dispatcher.stats().snapshot(), expected);
}

/// Uses its whole room, whatever it then says of its results.
fn untidy(args: &[u8], result: &mut [u8]) -> Result<usize, HandlerError> {
    assert!(result.iter().all(|&b| b == 0), "the room is not zeroed");
    result.fill(0xEE);
    increment(args, result)
}

/// Checks its request as a C author might: no byte of an earlier one behind the arguments.
unsafe extern "C" fn c_untidy(rx_slot: *const c_void, tx_slot: *mut c_void, slot_size: usize) {
    // SAFETY: the dispatcher passes `slot_size` bytes at both, and nobody else uses them during the call.
    let (rx, tx) = unsafe { slots(rx_slot, tx_slot, slot_size) };
    let request = Request::parse(rx).expect("the dispatcher checked it");
    let args = request.payload(rx).expect("the dispatcher checked it");
    let end = HEADER_LEN + args.len();
    let (request_id, ptp_timestamp) = (request.request_id, request.ptp_timestamp);
    let status = Status::from_code(i32::from(rx[end..].iter().any(|&b| b != 0)));
    Response { status, result_len: request.arg_len, request_id, ptp_timestamp }.emit(tx);
    increment(args, &mut tx[HEADER_LEN..end]).expect("it always counts");
}

/// Slots with and without whole words and lines, frames shorter than a line and longer, every length of arguments.
#[test]
fn every_length_in_every_shape() {
    for (page, frame) in [(64, 64), (128, 64), (64, 37), (72, 30), (60, 60), (40, 40), (101, 77), (256, 200)]
    {
        let mut table = FunctionTable::new();
        table.register("untidy", untidy).expect("an empty table");
        // SAFETY: the handler keeps to its slots and does not unwind when the dispatcher is right.
        unsafe { table.register_raw("c_untidy", c_untidy) }.expect("names differ");
        let (mut wire, link) = link(geometry(2, page, frame));
        let mut dispatcher = UnifiedLoop::new(link, table).expect("a frame holds a header");
        let room = frame - 24;
        for (id, len) in (0..).zip((0..=room).rev().chain(0..=room)) {
            let (slot, name) = (id % 2, if id % 3 == 0 { "c_untidy" } else { "untidy" });
            let args: Vec<u8> = (0..len).map(|at| byte(id + at)).collect();
            wire.deliver(slot, &request(name, id, &args));
            wait_until("a response", || dispatcher.poll() == Ok(1));
            let expected: Vec<u8> = args.iter().map(|b| b.wrapping_add(1)).collect();
            assert_answers(&wire.expect(slot), id, Status::SUCCESS, &expected);
        }
        wire.deliver(0, &request("untidy", 1, &vec![0; (page - 24) as usize]));
        wait_until("a response", || dispatcher.poll() == Ok(1));
        let status = if page == frame { Status::SUCCESS } else { Status::RESULT_TOO_LARGE };
        let results = if page == frame { vec![1; room as usize] } else { Vec::new() };
        assert_answers(&wire.expect(0), 1, status, &results);
    }
}

#[test]
fn ends_when_the_link_is_closed() {
    let (mut wire, link) = link(geometry(4, 64, 64));
    let open = Arc::clone(&link.open);
    let mut dispatcher = UnifiedLoop::new(link, table()).expect("a frame holds a header");
    let runner = thread::spawn(move || dispatcher.run(&AtomicBool::new(false), SpinPolicy::default()));
    for id in 0..10_000 {
        let slot = id % 4;
        wire.deliver(slot, &request("rpc_increment", id, &[byte(id)]));
        wait_until("a response", || wire.tx.peek(slot).is_some());
        assert_answers(&wire.expect(slot), id, Status::SUCCESS, &[byte(id).wrapping_add(1)]);
    }
    open.store(false, Ordering::Relaxed);
    wait_until("the loop ends", || runner.is_finished());
    assert_eq!(runner.join().expect("no panic"), Ok(()));
}

/// Fails on the second poll, as a link whose queue pair is in error.
struct Broken(RingLink, u32);

impl UnifiedLink for Broken {
    type Error = LinkDown;

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn is_open(&self) -> bool {
        true
    }

    fn rx_poll(&mut self) -> Result<Option<u32>, LinkDown> {
        self.1 += 1;
        if self.1 < 2 { Ok(None) } else { Err(LinkDown) }
    }

    fn tx_publish(&mut self, _: u32) -> Result<bool, LinkDown> {
        Err(LinkDown)
    }

    fn rx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.0.rx_slot(slot)
    }

    fn tx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.0.tx_slot(slot)
    }
}

#[test]
fn a_links_error_ends_the_run() {
    let (_wire, link) = link(geometry(4, 64, 64));
    let mut dispatcher = UnifiedLoop::new(Broken(link, 0), table()).expect("a frame holds a header");
    assert_eq!(dispatcher.run(&AtomicBool::new(false), SpinPolicy::Spin), Err(LinkDown));
}

#[test]
fn frames_without_room_for_a_header_are_refused() {
    let (_wire, link) = link(geometry(4, 64, 20));
    let refused = UnifiedLoop::new(link, table()).map(|_| ());
    assert_eq!(refused, Err(DispatchError::FrameTooSmall { frame_size: 20 }));
}
