//! Slots: their order, their flags, and what of them is touched.

use std::ops::Range;

use roce_core::Mtu;
use roce_transport::{ConfigBuilder, Error, Mode, TxMode, Unified};

use super::{converse, publish, read_frame, round_trips, slot_of, stations, take, write_frame};
use crate::foreign::ForeignFlags;
use crate::links::Links;
use crate::rng::Rng;
use crate::wait::{wait_for, wait_until};

/// Both verbs.
const VERBS: [TxMode; 2] = [TxMode::Send, TxMode::WriteWithImm];

/// Rings of `pages` slots with short frames.
fn small(pages: u32, mode: Mode, tx_mode: TxMode) -> impl Fn(ConfigBuilder) -> ConfigBuilder {
    move |config| config.num_pages(pages).page_size(64).frame_size(24).mode(mode).tx_mode(tx_mode)
}

pub(crate) fn a_small_ring_wraps_many_times<L: Links>(links: &L) {
    for (mode, verb, count) in [
        (Mode::Threads, TxMode::WriteWithImm, 2000),
        (Mode::Threads, TxMode::Send, 400),
        (Mode::Unified, TxMode::WriteWithImm, 400),
        (Mode::Unified, TxMode::Send, 2000),
    ] {
        let both = small(4, mode, verb);
        converse(links, count, &both, &both);
    }
}

pub(crate) fn a_ring_of_one_page<L: Links>(links: &L) {
    for verb in VERBS {
        for mode in [Mode::Threads, Mode::Unified] {
            let both = small(1, mode, verb);
            converse(links, 100, &both, &both);
        }
        converse(links, 100, small(1, Mode::Threads, verb), small(1, Mode::Forward, verb));
    }
}

pub(crate) fn a_ring_beyond_the_short_immediate<L: Links>(links: &L) {
    const PAGES: u32 = 8192;
    let both = small(PAGES, Mode::Unified, TxMode::WriteWithImm);
    let (a, b) = stations(links, &both, &both);
    let (mut from, mut to) = (a.take_unified().expect("connected"), b.take_unified().expect("connected"));
    for slot in [0, 4095, 4096, 4097, PAGES - 1] {
        write_frame(from.tx_slot(slot), 24, slot.into());
        from.tx_publish(slot).expect("open");
        assert_eq!(wait_for("a message", || to.rx_poll().expect("open")), slot);
        assert_eq!(read_frame(to.rx_slot(slot), 24), u64::from(slot));
    }
}

pub(crate) fn frames_of_several_packets<L: Links>(links: &L) {
    for verb in VERBS {
        for mode in [Mode::Threads, Mode::Unified] {
            let both = |config: ConfigBuilder| {
                let config = config.num_pages(8).page_size(1024).frame_size(1000);
                config.mtu(Mtu::B256).mode(mode).tx_mode(verb)
            };
            converse(links, 100, both, both);
        }
    }
}

pub(crate) fn frames_shorter_than_pages<L: Links>(links: &L) {
    const PAGES: u32 = 4;
    // An odd stride, so that slots begin at any address.
    for (page, frame) in [(512, 300), (1001, 9), (129, 128)] {
        for verb in VERBS {
            let both = |config: ConfigBuilder| {
                config.num_pages(PAGES).page_size(page).frame_size(frame).tx_mode(verb)
            };
            let (a, b) = stations(links, both, both);
            let (tx, rx) = (a.tx_ring().expect("set up"), b.rx_ring().expect("set up"));
            let beyond = vec![0xFF; (page - frame) as usize];
            (0..PAGES).for_each(|slot| tx.slot(slot).copy_from(frame as usize, &beyond));
            round_trips(&a, &b, 40);
            for slot in 0..PAGES {
                let mut got = vec![0xEE; beyond.len()];
                rx.slot(slot).copy_to(frame as usize, &mut got);
                assert!(got.iter().all(|&byte| byte == 0), "bytes beyond the frame arrived in slot {slot}");
            }
        }
    }
}

pub(crate) fn slots_come_in_order<L: Links>(links: &L) {
    const PAGES: u32 = 16;
    for verb in VERBS {
        let (a, b) = stations(links, small(PAGES, Mode::Threads, verb), small(PAGES, Mode::Unified, verb));
        let (from, mut to) = (a.take_ends().expect("set up"), b.take_unified().expect("connected"));
        for lap in 0..60 {
            let numbers = u64::from(PAGES) * lap..u64::from(PAGES) * (lap + 1);
            numbers.clone().for_each(|n| publish(&from, slot_of(n, PAGES), n));
            for n in numbers {
                let slot = wait_for("a message", || to.rx_poll().expect("open"));
                assert_eq!((slot, read_frame(to.rx_slot(slot), 24)), (slot_of(n, PAGES), n));
            }
        }
        assert_eq!(b.stats().lost, 0);
    }
}

/// A slot for each of a lap, in another order in each.
fn shuffled(pages: u32, rng: &mut Rng) -> Vec<u32> {
    let mut slots: Vec<u32> = (0..pages).collect();
    for at in (1..slots.len()).rev() {
        let with = usize::try_from(rng.below(at as u64 + 1)).expect("small");
        slots.swap(at, with);
    }
    slots
}

pub(crate) fn publication_out_of_order<L: Links>(links: &L) {
    const PAGES: u32 = 16;
    const LAPS: u64 = 60;
    let mut rng = Rng::new(8);
    for verb in VERBS {
        let both = small(PAGES, Mode::Threads, verb);
        let (a, b) = stations(links, &both, &both);
        let (from, to) = (a.take_ends().expect("set up"), b.take_ends().expect("set up"));
        for lap in 0..LAPS {
            let number = |slot: u32| lap * u64::from(PAGES) + u64::from(slot);
            for slot in shuffled(PAGES, &mut rng) {
                publish(&from, slot, number(slot));
            }
            // A WRITE lands in the slot it was sent from, a SEND in the next; of either each comes once.
            let mut got: Vec<u64> = (0..PAGES).map(|slot| wait_for("a slot", || take(&to, slot))).collect();
            if verb == TxMode::Send {
                got.sort_unstable();
            }
            assert_eq!(got, (0..PAGES).map(number).collect::<Vec<_>>());
        }
        let (sent, received) = (a.stats().sent, b.stats().received);
        assert_eq!((sent, received), (LAPS * u64::from(PAGES), LAPS * u64::from(PAGES)));
        assert_eq!(b.stats().overruns, 0);
    }
    neighbours_swapped_lose_nothing(links);
}

fn neighbours_swapped_lose_nothing<L: Links>(links: &L) {
    const PAGES: u32 = 16;
    let mode = |mode| small(PAGES, mode, TxMode::WriteWithImm);
    let (a, b) = stations(links, mode(Mode::Threads), mode(Mode::Unified));
    let (from, mut to) = (a.take_ends().expect("set up"), b.take_unified().expect("connected"));
    publish(&from, 0, 0);
    assert_eq!(wait_for("a message", || to.rx_poll().expect("open")), 0);
    for at in 0..10 * PAGES {
        let slot = (1 + (at ^ 1)) % PAGES; // 2, 1, 4, 3, …
        publish(&from, slot, u64::from(slot));
        assert_eq!(wait_for("a message", || to.rx_poll().expect("open")), slot, "it waits for no other");
    }
    assert_eq!(b.stats().lost, 0, "late is not lost");
}

pub(crate) fn unified_publishes_any_slot<L: Links>(links: &L) {
    const PAGES: u32 = 16;
    let mut rng = Rng::new(9);
    for verb in VERBS {
        let both = small(PAGES, Mode::Unified, verb);
        let (a, b) = stations(links, &both, &both);
        let (mut from, mut to) = (a.take_unified().expect("connected"), b.take_unified().expect("connected"));
        for lap in 0..40 {
            let slots = shuffled(PAGES, &mut rng);
            for &slot in &slots {
                write_frame(from.tx_slot(slot), 24, lap << 8 | u64::from(slot));
                from.tx_publish(slot).expect("open");
            }
            for (next, slot) in (0..).zip(slots) {
                let got = wait_for("a message", || to.rx_poll().expect("open"));
                assert_eq!(got, if verb == TxMode::Send { next } else { slot });
                assert_eq!(read_frame(to.rx_slot(got), 24), lap << 8 | u64::from(slot));
            }
        }
    }
}

pub(crate) fn unified_publishes_part_of_a_slot<L: Links>(links: &L) {
    for verb in VERBS {
        let both = small(8, Mode::Unified, verb);
        let (a, b) = stations(links, &both, &both);
        let (mut from, mut to) = (a.take_unified().expect("connected"), b.take_unified().expect("connected"));
        assert!(matches!(from.tx_publish_len(0, 65), Err(Error::Length { .. })), "more than a page");
        for (slot, len) in (0..).zip([0, 1, 23, 24, 25, 64]) {
            from.tx_slot(slot).copy_from(0, &[0xAB; 64]);
            from.tx_publish_len(slot, len).expect("open");
            assert_eq!(wait_for("a message", || to.rx_poll().expect("open")), slot);
            let mut expected = [0; 64];
            expected[..len as usize].fill(0xAB);
            assert_eq!(to.rx_slot(slot).read::<64>(0), expected, "{len} bytes");
        }
    }
}

pub(crate) fn markers_are_never_sent<L: Links>(links: &L) {
    const MARKERS: [(u32, u64); 4] =
        [(0, 0xEEEE_EEEE_EEEE_EEEE), (2, 0xDEAD_0000_0000_0005), (3, 1), (7, u64::MAX)];
    for verb in VERBS {
        let both = small(8, Mode::Threads, verb);
        let (a, b) = stations(links, &both, &both);
        let flags = ForeignFlags::of(a.tx_ring().expect("set up"));
        let (from, to) = (a.take_ends().expect("set up"), b.take_ends().expect("set up"));
        MARKERS.iter().for_each(|&(slot, marker)| flags.set(slot, marker));
        for (n, slot) in (0..).zip([1, 4, 5, 6, 1, 4, 6, 5, 1]) {
            publish(&from, slot, n);
            let lands = if verb == TxMode::Send { slot_of(n, 8) } else { slot };
            assert_eq!(wait_for("a message", || take(&to, lands)), n);
        }
        assert_eq!((a.stats().sent, b.stats().received), (9, 9));
        MARKERS.iter().for_each(|&(slot, marker)| assert_eq!(flags.get(slot), marker, "never cleared"));
        a.close_well();
        b.close_well();
    }
}

pub(crate) fn a_held_request_waits_for_its_tx_flag<L: Links>(links: &L) {
    let both = small(8, Mode::Unified, TxMode::WriteWithImm);
    let (a, b) = stations(links, &both, &both);
    let flags = ForeignFlags::of(b.tx_ring().expect("set up"));
    let (mut from, mut to) = (a.take_unified().expect("connected"), b.take_unified().expect("connected"));
    flags.set(0, 0xEEEE_EEEE_EEEE_EEEE);
    flags.set(2, 0xDEAD_0000_0000_0001);
    (0..4).for_each(|slot| from.tx_publish(slot).expect("open"));
    let mut next = || wait_for("a request", || to.rx_poll().expect("open"));
    assert_eq!([next(), next()], [1, 3], "nothing waits behind a held one");
    for _ in 0..100 {
        assert_eq!(to.rx_poll().expect("open"), None, "held while its flag is set");
    }
    flags.set(2, 0);
    assert_eq!(to.rx_poll().expect("open"), Some(2));
    from.tx_publish(0).expect("open");
    wait_until("the overrun of a held request", || {
        assert_eq!(to.rx_poll().expect("open"), None);
        b.stats().overruns == 1
    });
    flags.set(0, 0);
    assert_eq!(to.rx_poll().expect("open"), Some(0));
    assert_eq!(to.rx_poll().expect("open"), None, "an overrun is handed out once");
}

/// Frames that a device may copy when they are posted, and frames that it fetches later.
const FRAMES: [u32; 4] = [24, 200, 1000, 4000];

/// How `a` sends from one slot to a peer that has many.
fn from_one_page(frame: u32, mode: Mode) -> impl FnOnce(ConfigBuilder) -> ConfigBuilder {
    move |config| config.num_pages(1).page_size(4096).frame_size(frame).mode(mode)
}

fn to_many_pages(frame: u32) -> impl FnOnce(ConfigBuilder) -> ConfigBuilder {
    move |config| config.num_pages(64).page_size(4096).frame_size(frame).mode(Mode::Unified)
}

pub(crate) fn a_cleared_flag_frees_the_slot<L: Links>(links: &L) {
    for frame in FRAMES {
        let (a, b) = stations(links, from_one_page(frame, Mode::Threads), to_many_pages(frame));
        let (from, mut to) = (a.take_ends().expect("set up"), b.take_unified().expect("connected"));
        for round in 0..4 {
            let numbers = 64 * round..64 * (round + 1);
            numbers.clone().for_each(|n| publish(&from, 0, n));
            assert_arrived(&mut to, frame, numbers);
        }
    }
}

pub(crate) fn a_published_unified_slot_is_free<L: Links>(links: &L) {
    for frame in FRAMES {
        let (a, b) = stations(links, from_one_page(frame, Mode::Unified), to_many_pages(frame));
        let (mut from, mut to) = (a.take_unified().expect("connected"), b.take_unified().expect("connected"));
        for round in 0..4 {
            let numbers = 64 * round..64 * (round + 1);
            for n in numbers.clone() {
                write_frame(from.tx_slot(0), frame, n);
                from.tx_publish(0).expect("open");
            }
            assert_arrived(&mut to, frame, numbers);
        }
    }
}

fn assert_arrived(to: &mut Unified, frame: u32, numbers: Range<u64>) {
    for n in numbers {
        let slot = wait_for("a message", || to.rx_poll().expect("open"));
        assert_eq!(read_frame(to.rx_slot(slot), frame), n, "frames of {frame} bytes");
    }
}
