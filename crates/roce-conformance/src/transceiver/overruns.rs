//! A sender that laps the consumer.

use roce_ring::Overwritten;
use roce_transport::{ConfigBuilder, Error, Mode, OverrunPolicy, RingEnds, State, TxMode};

use super::{Station, publish, slot_of, stations, take};
use crate::links::Links;
use crate::wait::{wait_for, wait_until};

const PAGES: u32 = 8;
const LAP: u64 = 8;
const VERBS: [TxMode; 2] = [TxMode::Send, TxMode::WriteWithImm];

/// A sender, and a receiver of that policy.
fn ends<L: Links>(links: &L, verb: TxMode, policy: OverrunPolicy) -> (Station, Station, RingEnds, RingEnds) {
    let shape = |config: ConfigBuilder| config.num_pages(PAGES).page_size(64).frame_size(24).tx_mode(verb);
    let (a, b) = stations(
        links,
        |config| shape(config).mode(Mode::TxOnly),
        |config| shape(config).mode(Mode::RxOnly).overrun(policy),
    );
    let (from, to) = (a.take_ends().expect("set up"), b.take_ends().expect("set up"));
    (a, b, from, to)
}

/// Sends the messages of these numbers, each when the one before has arrived.
fn send(numbers: std::ops::Range<u64>, from: &RingEnds, b: &Station) {
    for n in numbers {
        publish(from, slot_of(n, PAGES), n);
        wait_until("its arrival", || b.stats().received == n + 1);
    }
}

pub(crate) fn drop_goes_on_with_the_newest<L: Links>(links: &L) {
    for verb in VERBS {
        let (a, b, from, to) = ends(links, verb, OverrunPolicy::Drop);
        send(0..3 * LAP, &from, &b);
        wait_until("the overruns", || b.stats().overruns == 2 * LAP);
        for n in 2 * LAP..3 * LAP {
            assert_eq!(take(&to, slot_of(n, PAGES)), Some(n), "the newest");
            assert_eq!(take(&to, slot_of(n, PAGES)), None, "once");
        }
        send(3 * LAP..4 * LAP, &from, &b);
        assert_eq!(wait_for("a message", || take(&to, 0)), 3 * LAP);
        assert_eq!(b.stats().overruns, 2 * LAP);
        a.close_well();
        b.close_well();
    }
}

pub(crate) fn wait_stops_until_the_slot_is_free<L: Links>(links: &L) {
    for verb in VERBS {
        let (a, b, from, to) = ends(links, verb, OverrunPolicy::Wait);
        send(0..LAP + 1, &from, &b);
        wait_until("the overrun", || b.stats().overruns == 1);
        // Slots 1 to 7 first: as soon as slot 0 is free, more is taken.
        for n in 1..LAP {
            assert_eq!(take(&to, slot_of(n, PAGES)), Some(n));
        }
        publish(&from, 1, LAP + 1);
        wait_until("it to be sent", || a.stats().sent == LAP + 2);
        for _ in 0..100 {
            assert_eq!((take(&to, 1), b.stats().received), (None, LAP + 1), "nothing more is taken");
            std::thread::yield_now();
        }
        assert_eq!(take(&to, 0), Some(LAP), "the newer one");
        assert_eq!(wait_for("the one that waited", || take(&to, 1)), LAP + 1);
        assert_eq!(take(&to, 0), None, "the newer one comes once");
        assert_eq!((b.stats().overruns, b.state()), (1, State::Running));
        a.close_well();
        b.close_well();
    }
}

pub(crate) fn fail_ends_the_monitor<L: Links>(links: &L) {
    for verb in VERBS {
        let (a, mut b, from, to) = ends(links, verb, OverrunPolicy::Fail);
        send(0..LAP + 1, &from, &b);
        assert!(matches!(b.ended(), Err(Error::Overrun { slot: 0 })));
        assert_eq!((b.state(), b.stats().overruns), (State::Failed, 1));
        assert!(matches!(b.error(), Some(Error::Overrun { slot: 0 })));
        assert_eq!(take(&to, 1), Some(1), "what had arrived is there");
        b.close();
        assert_eq!(b.state(), State::Closed);
        a.close_well();
    }
}

pub(crate) fn a_reader_learns_that_its_slot_was_overwritten<L: Links>(links: &L) {
    for verb in VERBS {
        let (a, b, from, to) = ends(links, verb, OverrunPolicy::Drop);
        send(0..LAP, &from, &b);
        let reading = wait_for("a message", || to.rx.peek(0));
        assert!(!reading.overwritten());
        send(LAP..LAP + 1, &from, &b);
        wait_until("the overrun", || reading.overwritten());
        assert_eq!(reading.release(), Err(Overwritten { slot: 0 }));
        assert_eq!(take(&to, 0), Some(LAP), "the newer one is there");
        assert_eq!(take(&to, 0), None);
        a.close_well();
        b.close_well();
    }
}
