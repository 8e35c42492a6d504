//! The dispatcher behind a real transceiver, called over real sockets on loopback.

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use common::*;
use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_dispatch::rpc::{HEADER_LEN, Response, Status};
use roce_dispatch::{FunctionTable, RingLoop, UnifiedLoop};
use roce_transport::{Config, Mode, SpinPolicy, Transceiver, TxMode, Unified};

const PAGES: u32 = 8;
const CALLS: u32 = 2000;

/// A loopback address that no other test of this machine uses at the same time.
fn unused_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let n = byte(NEXT.fetch_add(1, Ordering::Relaxed));
    Ipv4Addr::new(127, 32 | (n & 3) << 3 | a & 7, b, c)
}

fn end(mode: Mode, tx_mode: TxMode) -> Arc<Transceiver> {
    let config = Config::builder(format!("soft:{}", unused_addr()))
        .num_pages(PAGES)
        .page_size(256)
        .frame_size(128)
        .mode(mode)
        .tx_mode(tx_mode);
    Arc::new(Transceiver::new(config.build().expect("a valid configuration")))
}

fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

/// A caller that writes requests into the service's ring, and a service that sends its answers.
fn connected(service_mode: Mode) -> (Unified, Arc<Transceiver>, Arc<Transceiver>) {
    let caller = end(Mode::Unified, TxMode::WriteWithImm);
    let service = end(service_mode, TxMode::Send);
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
