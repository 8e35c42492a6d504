//! Round trips of the ways that a transceiver moves messages.

use std::sync::Arc;
use std::thread;

use roce_conformance::{Links, Side};
use roce_core::PeerEndpoint;
use roce_dispatch::rpc::{Request, function_id};
use roce_dispatch::{FunctionTable, UnifiedLoop};
use roce_transport::{Mode, PollerOptions, SharedPoller, Transceiver, TxMode, Unified};

const PAGES: u32 = 64;
const FRAME: u32 = 64;

/// Both ends on this thread.
pub(crate) fn unified<L: Links>(links: &L) -> impl FnMut(u32) + use<L> {
    let [mut caller, mut service] = connected(links, Mode::Unified, Mode::Unified).map(unified_of);
    move |n| {
        call(&mut caller, n);
        let slot = until(|| service.rx_poll().expect("open"));
        service.tx_publish(slot).expect("open");
        assert_eq!(until(|| caller.rx_poll().expect("open")), n % PAGES);
    }
}

/// With a dispatcher at the far end.
pub(crate) fn dispatched<L: Links>(links: &L) -> impl FnMut(u32) + use<L> {
    let [mut caller, service] = connected(links, Mode::Unified, Mode::Unified).map(unified_of);
    let mut table = FunctionTable::new();
    let increment = |arguments: &[u8], results: &mut [u8]| {
        results[0] = arguments[0].wrapping_add(1);
        Ok(1)
    };
    table.register("increment", increment).expect("the only one");
    let mut service = UnifiedLoop::new(service, table).expect("a frame holds a header");
    move |n| {
        call(&mut caller, n);
        until(|| (service.poll().expect("open") > 0).then_some(()));
        let slot = until(|| caller.rx_poll().expect("open"));
        assert_eq!(caller.rx_slot(slot).read::<1>(roce_dispatch::rpc::HEADER_LEN), [8]);
    }
}

/// Two threads at each end, and this one beside them.
pub(crate) fn threads<L: Links>(links: &L) -> impl FnMut(u32) + use<L> {
    let [a, b] = connected(links, Mode::Threads, Mode::Threads);
    let [mut caller, mut service] = [&a, &b].map(|end| end.take_ends().expect("once"));
    monitor([a, b]);
    move |n| {
        let slot = n % PAGES;
        until_yielding(|| caller.tx.is_free(slot).then_some(()));
        caller.tx.publish(slot);
        let got = until_yielding(|| service.rx.next_published());
        service.rx.claim(got);
        until_yielding(|| service.tx.is_free(got).then_some(()));
        service.tx.publish(got);
        let back = until_yielding(|| caller.rx.next_published());
        caller.rx.claim(back);
        assert_eq!(back, slot);
    }
}

/// A thread at the far end that sends back what it gets.
pub(crate) fn forward<L: Links>(links: &L) -> impl FnMut(u32) + use<L> {
    let [caller, service] = connected(links, Mode::Unified, Mode::Forward);
    let mut caller = unified_of(caller);
    monitor([service]);
    move |n| {
        caller.tx_publish(n % PAGES).expect("open");
        assert_eq!(until_yielding(|| caller.rx_poll().expect("open")), n % PAGES);
    }
}

/// Half a ring at a time: requests that leave together, and answers.
pub(crate) fn bursts<L: Links>(links: &L) -> impl FnMut(u32) + use<L> {
    const BURST: u32 = PAGES / 2;
    let [mut caller, mut service] = connected(links, Mode::Unified, Mode::Unified).map(unified_of);
    move |n| {
        let slots = (0..BURST).map(|k| (n * BURST + k) % PAGES);
        slots.clone().for_each(|slot| until(|| caller.tx_stage(slot).expect("open").then_some(())));
        caller.tx_flush().expect("open");
        for _ in 0..BURST {
            let slot = until(|| service.rx_poll().expect("open"));
            until(|| service.tx_stage(slot).expect("open").then_some(()));
            if !service.rx_has_more() {
                service.tx_flush().expect("open");
            }
        }
        slots.for_each(|slot| assert_eq!(until(|| caller.rx_poll().expect("open")), slot));
    }
}

/// Many at the far end, under one poller: some that send back, and some whose messages this thread passes on.
pub(crate) fn poller<L: Links>(links: &L) -> impl FnMut(u32) + use<L> {
    let poller = SharedPoller::start(PollerOptions::default()).expect("a thread");
    let modes = [Mode::Forward, Mode::Threads, Mode::Forward, Mode::Threads];
    let mut members = modes.map(|mode| {
        let [caller, service] = connected(links, Mode::Unified, mode);
        poller.add(&service).expect("connected");
        let ends = service.take_ends().expect("once");
        std::mem::forget(service);
        (unified_of(caller), ends, mode)
    });
    std::mem::forget(poller);
    move |n| {
        members.iter_mut().for_each(|(caller, ..)| caller.tx_publish(n % PAGES).expect("open"));
        for (caller, service, mode) in &mut members {
            if *mode == Mode::Threads {
                let got = until_yielding(|| service.rx.next_published());
                service.rx.claim(got);
                until_yielding(|| service.tx.is_free(got).then_some(()));
                service.tx.publish(got);
            }
            assert_eq!(until_yielding(|| caller.rx_poll().expect("open")), n % PAGES);
        }
    }
}

fn call(caller: &mut Unified, n: u32) {
    let mut frame = [0; FRAME as usize];
    Request { function_id: function_id("increment"), arg_len: 1, request_id: n, ptp_timestamp: 0 }
        .emit(&mut frame);
    frame[roce_dispatch::rpc::HEADER_LEN] = 7;
    caller.tx_slot(n % PAGES).copy_from(0, &frame);
    caller.tx_publish(n % PAGES).expect("open");
}

/// Without giving the CPU away: the other end is on this thread.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
    }
}

fn until_yielding<T>(mut look: impl FnMut() -> Option<T>) -> T {
    until(|| {
        let found = look();
        if found.is_none() {
            thread::yield_now();
        }
        found
    })
}

fn connected<L: Links>(links: &L, a: Mode, b: Mode) -> [Arc<Transceiver>; 2] {
    let ends = [(Side::A, a), (Side::B, b)].map(|(side, mode)| {
        let config = links.config(side).num_pages(PAGES).page_size(FRAME).mode(mode);
        let config = config.tx_mode(TxMode::WriteWithImm).build().expect("valid");
        Arc::new(Transceiver::new(config))
    });
    let [at_a, at_b] = [&ends[0], &ends[1]].map(|end| {
        let end = end.setup().unwrap_or_else(|e| panic!("set-up: {e}"));
        PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
    });
    ends[0].connect(&at_b).unwrap_or_else(|e| panic!("connect: {e}"));
    ends[1].connect(&at_a).unwrap_or_else(|e| panic!("connect: {e}"));
    ends
}

/// The transceiver stays for the rest of the process.
fn unified_of(end: Arc<Transceiver>) -> Unified {
    let unified = end.take_unified().expect("connected");
    std::mem::forget(end);
    unified
}

/// For the rest of the process.
fn monitor<const N: usize>(ends: [Arc<Transceiver>; N]) {
    for end in ends {
        thread::spawn(move || end.blocking_monitor());
    }
}
