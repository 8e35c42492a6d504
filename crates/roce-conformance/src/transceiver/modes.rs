//! Messages through every mode, with both verbs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use roce_transport::{ConfigBuilder, Error, Mode, State, Transceiver, TxMode};

use super::{
    ANSWER, Station, ask, converse, join, peer_of, publish, read_frame, slot_of, stations, take, write_frame,
};
use crate::links::{Links, Side};
use crate::wait::{wait_for, wait_until};

const PAGES: u32 = 8;
const FRAME_SIZE: u32 = 72;
const COUNT: u64 = 300;

fn shape(mode: Mode, tx_mode: TxMode) -> impl Fn(ConfigBuilder) -> ConfigBuilder {
    move |config| config.num_pages(PAGES).page_size(128).frame_size(FRAME_SIZE).mode(mode).tx_mode(tx_mode)
}

pub(crate) fn threads_send<L: Links>(links: &L) {
    let both = shape(Mode::Threads, TxMode::Send);
    converse(links, COUNT, &both, &both);
}

pub(crate) fn threads_write<L: Links>(links: &L) {
    let both = shape(Mode::Threads, TxMode::WriteWithImm);
    converse(links, COUNT, &both, &both);
}

pub(crate) fn threads_write_and_send<L: Links>(links: &L) {
    let threads = |tx_mode| shape(Mode::Threads, tx_mode);
    converse(links, COUNT, threads(TxMode::WriteWithImm), threads(TxMode::Send));
    converse(links, COUNT, threads(TxMode::Send), threads(TxMode::WriteWithImm));
}

pub(crate) fn forward_sends<L: Links>(links: &L) {
    let forward = shape(Mode::Forward, TxMode::Send);
    converse(links, COUNT, shape(Mode::Threads, TxMode::Send), &forward);
    converse(links, COUNT, shape(Mode::Unified, TxMode::WriteWithImm), &forward);
}

pub(crate) fn forward_writes<L: Links>(links: &L) {
    let forward = shape(Mode::Forward, TxMode::WriteWithImm);
    converse(links, COUNT, shape(Mode::Unified, TxMode::Send), &forward);
    converse(links, COUNT, shape(Mode::Threads, TxMode::WriteWithImm), &forward);
}

pub(crate) fn unified_send<L: Links>(links: &L) {
    let both = shape(Mode::Unified, TxMode::Send);
    converse(links, COUNT, &both, &both);
}

pub(crate) fn unified_write<L: Links>(links: &L) {
    let both = shape(Mode::Unified, TxMode::WriteWithImm);
    converse(links, COUNT, &both, &both);
}

pub(crate) fn unified_serves_threads<L: Links>(links: &L) {
    let (write, send) = (TxMode::WriteWithImm, TxMode::Send);
    converse(links, COUNT, shape(Mode::Threads, write), shape(Mode::Unified, send));
    converse(links, COUNT, shape(Mode::Threads, send), shape(Mode::Unified, write));
}

/// Requests a ring's worth at a time; the answers to those that are at hand leave together.
fn unified_staged<L: Links>(links: &L, tx_mode: TxMode) {
    let (a, b) = stations(links, shape(Mode::Unified, tx_mode), shape(Mode::Unified, tx_mode));
    let (mut asking, mut serving) = (a.driver(), b.take_unified().expect("set up"));
    let serve = || {
        let mut staged = 0;
        while staged < COUNT {
            let slot = wait_for("a request", || serving.rx_poll().expect("open"));
            assert_eq!(read_frame(serving.rx_slot(slot), FRAME_SIZE), staged);
            write_frame(serving.tx_slot(slot), FRAME_SIZE, ANSWER + staged);
            wait_until("room for the answer", || serving.tx_stage(slot).expect("open"));
            staged += 1;
            if !serving.rx_has_more() {
                serving.tx_flush().expect("open");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(serve);
        ask(&mut asking, PAGES, COUNT, ANSWER);
    });
    assert_eq!((b.stats().received, b.stats().sent), (COUNT, COUNT));
    a.close_well();
    b.close_well();
}

pub(crate) fn unified_stages_sends<L: Links>(links: &L) {
    unified_staged(links, TxMode::Send);
}

pub(crate) fn unified_stages_writes<L: Links>(links: &L) {
    unified_staged(links, TxMode::WriteWithImm);
}

pub(crate) fn threads_serve_unified<L: Links>(links: &L) {
    let (write, send) = (TxMode::WriteWithImm, TxMode::Send);
    converse(links, COUNT, shape(Mode::Unified, write), shape(Mode::Threads, send));
    converse(links, COUNT, shape(Mode::Unified, send), shape(Mode::Threads, write));
}

/// A stream from an end that only sends to one that only receives.
fn one_way<L: Links>(links: &L, tx_mode: TxMode) {
    let (a, b) = stations(links, shape(Mode::TxOnly, tx_mode), shape(Mode::RxOnly, tx_mode));
    let (from, to) = (a.take_ends().expect("set up"), b.take_ends().expect("set up"));
    let consumed = &AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..COUNT {
                let slot = slot_of(n, PAGES);
                assert_eq!(wait_for("a message", || take(&to, slot)), n);
                consumed.store(n + 1, Ordering::Release);
            }
        });
        for n in 0..COUNT {
            let room = || consumed.load(Ordering::Acquire) + u64::from(PAGES) > n;
            wait_until("room in the peer's ring", room);
            publish(&from, slot_of(n, PAGES), n);
        }
    });
    assert_eq!((a.stats().sent, b.stats().received), (COUNT, COUNT));
    assert_eq!((a.stats().received, b.stats().sent), (0, 0));
    a.close_well();
    b.close_well();
}

pub(crate) fn one_way_send<L: Links>(links: &L) {
    one_way(links, TxMode::Send);
}

pub(crate) fn one_way_write<L: Links>(links: &L) {
    one_way(links, TxMode::WriteWithImm);
}

pub(crate) fn rx_only_sends_nothing<L: Links>(links: &L) {
    let write = TxMode::WriteWithImm;
    let (a, b) = stations(links, shape(Mode::Threads, write), shape(Mode::RxOnly, write));
    let (from, to) = (a.take_ends().expect("set up"), b.take_ends().expect("set up"));
    publish(&to, 0, 1);
    for n in 0..u64::from(PAGES) {
        publish(&from, slot_of(n, PAGES), n);
        assert_eq!(wait_for("a message", || take(&to, slot_of(n, PAGES))), n);
    }
    assert!(!to.tx.is_free(0), "nobody takes what is published");
    assert_eq!((b.stats().sent, a.stats().received), (0, 0));
    a.close_well();
    b.close_well();
}

pub(crate) fn calls_out_of_order_are_refused<L: Links>(links: &L) {
    let config = |side, mode| shape(mode, TxMode::WriteWithImm)(links.config(side)).build().expect("valid");
    let idle = Transceiver::new(config(Side::A, Mode::Threads));
    assert!(matches!(idle.blocking_monitor(), Err(Error::State { state: State::Created, .. })));
    assert!(idle.endpoint().is_none() && idle.take_ends().is_none());
    assert!(matches!(idle.start(), Err(Error::NoPeer)));
    idle.close();
    assert!(matches!(idle.setup(), Err(Error::Closed)));

    let mut a = Station::set_up(shape(Mode::Threads, TxMode::WriteWithImm)(links.config(Side::A)));
    let mut b = Station::set_up(shape(Mode::Unified, TxMode::WriteWithImm)(links.config(Side::B)));
    let at_b = b.endpoint().expect("set up");
    let never = Transceiver::new(config(Side::A, Mode::Threads));
    assert!(matches!(never.connect(&peer_of(at_b)), Err(Error::State { state: State::Created, .. })));
    assert!(b.take_unified().is_none(), "not connected yet");
    assert!(matches!(a.blocking_monitor(), Err(Error::State { state: State::SetUp, .. })));

    join(&mut a, &mut b);
    assert!(a.take_unified().is_none(), "not unified");
    assert!(matches!(b.blocking_monitor(), Err(Error::State { .. })), "unified has no threads");
    let mut unified = b.take_unified().expect("connected");
    assert!(b.take_unified().is_none(), "once");
    for slot in [PAGES, u32::MAX] {
        assert!(matches!(unified.tx_publish(slot), Err(Error::Slot { .. })));
    }
    assert!(unified.is_open(), "a slot out of range harms nothing");
    unified.tx_publish(PAGES - 1).expect("open");
    wait_until("the message", || a.stats().received == 1);
    assert_eq!(a.setup().expect("again"), a.endpoint().expect("set up"), "set up already");
    a.connect(&peer_of(at_b)).expect("connected already");
    assert!(matches!(a.blocking_monitor(), Err(Error::State { .. })), "running already");

    b.close();
    assert!(matches!(unified.rx_poll(), Err(Error::Closed)));
    assert!(matches!(unified.tx_publish(0), Err(Error::Closed)));
    assert!(matches!(b.blocking_monitor(), Err(Error::Closed)));
    a.close_well();
    b.close_well();
}
