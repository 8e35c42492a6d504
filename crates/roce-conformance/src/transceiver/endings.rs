//! Ends that are closed, or lose their peer, at any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use roce_transport::{ConfigBuilder, Mode, State, TxMode};

use super::{Driver, Station, converse, join, round_trips, slot_of, stations};
use crate::links::{Links, Side};
use crate::rng::Rng;
use crate::wait::wait_until;

const PAGES: u32 = 8;

fn shape(mode: Mode, tx_mode: TxMode) -> impl Fn(ConfigBuilder) -> ConfigBuilder {
    move |config| config.num_pages(PAGES).page_size(128).frame_size(72).mode(mode).tx_mode(tx_mode)
}

/// Sends and receives as fast as it goes until told to stop, or until the transceiver is closed.
fn make_traffic(mut driver: Driver, stop: &AtomicBool) {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        match driver.send(slot_of(sent, PAGES), sent) {
            Ok(was_free) => sent += u64::from(was_free),
            Err(_) => break,
        }
        // Nobody waits for anybody here, so messages are overwritten while they are looked at.
        let received = match &mut driver {
            Driver::Rings { ends, .. } => {
                for message in (0..PAGES).filter_map(|slot| ends.rx.peek(slot)) {
                    let _ = message.release();
                }
                Ok(None)
            }
            Driver::Unified(unified) => unified.rx_poll(),
        };
        if received.is_err() {
            break;
        }
        thread::yield_now();
    }
}

/// Fifty times: two ends in full traffic, each closed by a thread of its own after a while of no fixed length.
fn close_at_random_moments<L: Links>(links: &L, a_mode: Mode, b_mode: Mode) {
    let mut rng = Rng::new(3);
    for round in 0..50 {
        let verb = if round % 2 == 0 { TxMode::Send } else { TxMode::WriteWithImm };
        let (mut a, mut b) = stations(links, shape(a_mode, verb), shape(b_mode, verb));
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            for station in [&a, &b] {
                let driver = station.driver();
                scope.spawn(move || make_traffic(driver, stop));
            }
            let closers = [&a, &b].map(|station| {
                let patience = rng.below(300);
                scope.spawn(move || {
                    (0..patience).for_each(|_| thread::yield_now());
                    station.close();
                })
            });
            for closer in closers {
                closer.join().expect("close never panics");
            }
            stop.store(true, Ordering::Relaxed);
        });
        for station in [&mut a, &mut b] {
            station.ended().expect("no error up to close");
            assert_eq!(station.state(), State::Closed);
        }
    }
}

pub(crate) fn close_at_random_moments_of_threads<L: Links>(links: &L) {
    close_at_random_moments(links, Mode::Threads, Mode::Threads);
}

pub(crate) fn close_at_random_moments_of_forward<L: Links>(links: &L) {
    close_at_random_moments(links, Mode::Threads, Mode::Forward);
}

pub(crate) fn close_at_random_moments_of_unified<L: Links>(links: &L) {
    close_at_random_moments(links, Mode::Unified, Mode::Unified);
}

pub(crate) fn close_from_many_threads<L: Links>(links: &L) {
    for mode in [Mode::Threads, Mode::Unified, Mode::Forward] {
        let (mut a, b) = stations(links, shape(mode, TxMode::Send), shape(Mode::Threads, TxMode::Send));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    a.close();
                    assert_eq!(a.state(), State::Closed, "closed when close returns");
                });
            }
        });
        a.ended().expect("no error up to close");
        b.close_well();
    }
}

pub(crate) fn the_peer_goes_and_a_new_one_comes<L: Links>(links: &L) {
    for mode in [Mode::Threads, Mode::Unified] {
        for verb in [TxMode::Send, TxMode::WriteWithImm] {
            let (a, b) = stations(links, shape(mode, verb), shape(Mode::Threads, verb));
            round_trips_until_gone(&a, b);
            assert!(a.error().is_none(), "UC does not see that its peer is gone: {:?}", a.error());
            a.close_well();
            // Both ends may have their addresses again, and meet nothing of the old traffic.
            converse(links, 100, shape(mode, verb), shape(Mode::Threads, verb));
        }
    }
    a_peer_goes_while_another_stays(links);
}

/// `a` goes on for a while when `b` is closed in full traffic.
fn round_trips_until_gone(a: &Station, b: Station) {
    let stop = &AtomicBool::new(false);
    let driver = a.driver();
    thread::scope(|scope| {
        scope.spawn(move || make_traffic(driver, stop));
        wait_until("traffic", || b.stats().received > 3 || a.stats().sent > 50);
        drop(b);
        let sent = a.stats().sent;
        wait_until("more messages", || a.stats().sent > sent + 100 || a.error().is_some());
        stop.store(true, Ordering::Relaxed);
    });
}

fn a_peer_goes_while_another_stays<L: Links>(links: &L) {
    let both = shape(Mode::Threads, TxMode::WriteWithImm);
    let (a, b) = stations(links, &both, &both);
    for _ in 0..5 {
        let (c, d) = stations(links, &both, &both);
        round_trips_until_gone(&c, d);
        c.close_well();
    }
    round_trips(&a, &b, 100);
    a.close_well();
    b.close_well();
}

pub(crate) fn sixteen_at_once<L: Links>(links: &L) {
    let modes = [Mode::Threads, Mode::Unified, Mode::Forward, Mode::Threads];
    let mut pairs: Vec<(Station, Station)> = (0..8)
        .map(|at| {
            let verb = if at % 2 == 0 { TxMode::WriteWithImm } else { TxMode::Send };
            let mode = modes[at % modes.len()];
            let a = Station::set_up(shape(Mode::Threads, verb)(links.config(Side::A)));
            let b = Station::set_up(shape(mode, verb)(links.config(Side::B)));
            (a, b)
        })
        .collect();
    pairs.iter_mut().for_each(|(a, b)| join(a, b));
    thread::scope(|scope| {
        for (a, b) in &pairs {
            scope.spawn(|| round_trips(a, b, 100));
        }
    });
    for (a, b) in pairs {
        assert_eq!((a.stats().received, b.stats().received), (100, 100));
        a.close_well();
        b.close_well();
    }
}
