//! The dispatcher behind a real transceiver, called over real sockets on loopback.

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::*;
use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_dispatch::caller::{CallCounts, CallError, Caller, Function};
use roce_dispatch::rpc::{HEADER_LEN, Response, Status};
use roce_dispatch::{FunctionTable, RingLoop, UnifiedLoop};
use roce_transport::{Config, ConfigBuilder, Mode, SpinPolicy, Transceiver, TxMode, Unified};

const PAGES: u32 = 8;
const CALLS: u32 = 2000;

/// A loopback address that no other test of this machine uses at the same time.
fn unused_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let n = byte(NEXT.fetch_add(1, Ordering::Relaxed));
    Ipv4Addr::new(127, 32 | (n & 3) << 3 | a & 7, b, c)
}

fn config(mode: Mode, tx_mode: TxMode) -> ConfigBuilder {
    Config::builder(format!("soft:{}", unused_addr()))
        .num_pages(PAGES)
        .page_size(256)
        .frame_size(128)
        .mode(mode)
        .tx_mode(tx_mode)
}

fn end(config: ConfigBuilder) -> Arc<Transceiver> {
    Arc::new(Transceiver::new(config.build().expect("a valid configuration")))
}

fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

/// A caller that writes requests into the service's ring, and a service that sends its answers.
fn connected(service_mode: Mode) -> (Unified, Arc<Transceiver>, Arc<Transceiver>) {
    connected_as(config(Mode::Unified, TxMode::WriteWithImm), config(service_mode, TxMode::Send))
}

fn connected_as(
    caller: ConfigBuilder,
    service: ConfigBuilder,
) -> (Unified, Arc<Transceiver>, Arc<Transceiver>) {
    let (caller, service) = (end(caller), end(service));
    let ends = (caller.setup().expect("set-up"), service.setup().expect("set-up"));
    caller.connect(&peer_of(ends.1)).expect("connect");
    service.connect(&peer_of(ends.0)).expect("connect");
    (caller.take_unified().expect("once"), caller, service)
}

fn table() -> FunctionTable {
    let mut table = FunctionTable::new();
    table.register("rpc_increment", increment).expect("an empty table");
    table
}

/// Calls over the wire; every third asks for a function that is not there.
fn call_many(link: &mut Unified) {
    for id in 0..CALLS {
        let slot = id % PAGES;
        let name = if id % 3 == 2 { "nobody" } else { "rpc_increment" };
        let tx = link.tx_slot(slot);
        tx.fill_zero(0..128);
        tx.copy_from(0, &request(name, id, &[byte(id); 20]));
        link.tx_publish(slot).expect("sent");

        let mut arrived = None;
        wait_until("an answer", || {
            arrived = link.rx_poll().expect("open");
            arrived.is_some()
        });
        let slot = arrived.expect("waited for");
        let mut frame = vec![0; 128];
        link.rx_slot(slot).copy_to(0, &mut frame);
        let answer =
            Answer { slot, header: Response::parse(&frame[..HEADER_LEN]).expect("a response"), frame };
        if name == "nobody" {
            assert_answers(&answer, id, Status::UNKNOWN_FUNCTION, &[]);
        } else {
            assert_answers(&answer, id, Status::SUCCESS, &[byte(id).wrapping_add(1); 20]);
        }
    }
}

#[test]
fn a_unified_service_answers_over_the_wire() {
    let (mut link, _caller, service) = connected(Mode::Unified);
    let mut dispatcher =
        UnifiedLoop::new(service.take_unified().expect("once"), table()).expect("frames hold a header");
    let stats = dispatcher.stats();
    let runner = thread::spawn(move || dispatcher.run(&AtomicBool::new(false), SpinPolicy::default()));
    call_many(&mut link);
    service.close();
    wait_until("the loop ends", || runner.is_finished());
    runner.join().expect("no panic").expect("a close is no error");
    assert_eq!(stats.snapshot().responses, CALLS.into());
}

#[test]
fn a_threaded_service_answers_over_the_wire() {
    let (mut link, _caller, service) = connected(Mode::Threads);
    let ends = service.take_ends().expect("once");
    let mut dispatcher = RingLoop::new(ends.rx, ends.tx, table()).expect("rings of one shape");
    let stats = dispatcher.stats();
    let stop = Arc::new(AtomicBool::new(false));
    let monitor = thread::spawn({
        let service = Arc::clone(&service);
        move || service.blocking_monitor()
    });
    let runner = thread::spawn({
        let stop = Arc::clone(&stop);
        move || dispatcher.run(&stop, SpinPolicy::default())
    });
    call_many(&mut link);
    stop.store(true, Ordering::Relaxed);
    service.close();
    wait_until("the loops end", || runner.is_finished() && monitor.is_finished());
    runner.join().expect("no panic");
    monitor.join().expect("no panic").expect("a close is no error");
    assert_eq!(stats.snapshot().responses, CALLS.into());
}

/// Eight under way at a time, staged and answered in batches.
#[test]
fn batches_over_the_wire_are_all_answered_once() {
    let (link, _caller, service) = connected(Mode::Unified);
    let dispatcher =
        UnifiedLoop::new(service.take_unified().expect("once"), table()).expect("frames hold a header");
    let mut dispatcher = dispatcher.answers_per_flush(16);
    let stats = dispatcher.stats();
    let runner = thread::spawn(move || dispatcher.run(&AtomicBool::new(false), SpinPolicy::default()));
    let caller = Caller::new(link).expect("frames hold a header");
    let function = Function::new("rpc_increment");
    let mut pending = Vec::new();
    for round in 0..CALLS / PAGES {
        for n in 0..PAGES {
            let mut frame = caller.acquire(&function).expect("all are free");
            frame.put(&[byte(round), byte(n)]).expect("room");
            pending.push((frame.stage(CEILING).expect("room"), [byte(round), byte(n)]));
        }
        for (call, args) in pending.drain(..) {
            let answer = call.wait().expect("answered");
            assert_eq!(answer.to_vec(), args.map(|byte| byte.wrapping_add(1)));
        }
    }
    let calls = u64::from(CALLS);
    assert_eq!(caller.stats().snapshot(), CallCounts { calls, answers: calls, ..CallCounts::default() });
    service.close();
    wait_until("the loop ends", || runner.is_finished());
    runner.join().expect("no panic").expect("a close is no error");
    assert_eq!((stats.snapshot().requests, stats.snapshot().responses), (calls, calls));
}

/// The link keeps each packet for a second: it takes as many as it holds, and then none.
#[test]
fn a_link_that_stands_still_keeps_no_caller_past_its_time() {
    const SHORT: Duration = Duration::from_millis(1);
    let held = "delay=1:1000ms".parse().expect("faults");
    let near = config(Mode::Unified, TxMode::WriteWithImm).faults(held);
    let (link, _caller, service) = connected_as(near, config(Mode::Unified, TxMode::Send));
    let caller = Caller::new(link).expect("frames hold a header");
    let function = Function::new("rpc_increment");
    let start = || loop {
        // A slot is free again once the time of the call before is over.
        if let Ok(mut frame) = caller.acquire(&function) {
            frame.put(&7_u8).expect("room");
            return frame;
        }
    };
    let mut sent = 0;
    let refused = loop {
        match start().dispatch_and_forget(SHORT) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, CallError::NoRoom { timeout: SHORT }), "{refused}");
    let counts = caller.stats().snapshot();
    assert_eq!((counts.calls, counts.no_room), (sent, 1));

    // It moves again, a second later.
    let last = start().dispatch(CEILING).expect("room, in a while");
    let mut dispatcher =
        UnifiedLoop::new(service.take_unified().expect("once"), table()).expect("frames hold a header");
    wait_until("the end of all calls", || {
        dispatcher.poll().expect("open");
        caller.poll().expect("open");
        caller.in_use() == 1 && last.is_over()
    });
    assert_eq!(last.wait().expect("answered").to_vec(), [8]);
    let counts = caller.stats().snapshot();
    assert_eq!(counts.calls, sent + 1);
    assert_eq!(counts.calls, counts.answers + counts.errors + counts.timeouts, "each is over once");
}
