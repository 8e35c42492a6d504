//! What one step of each mover does: tests.

use std::sync::{Arc, Mutex};

use roce_ring::Ring;

use crate::mover::{Mover, STEP};
use crate::scripted::{Link, PEER, Script, write};
use crate::transceiver::RingEnds;
use crate::{Config, MemoryLock, Mode, Transceiver};

const PAGES: u32 = 64;
const PAGE_SIZE: u32 = 64;

/// A transceiver whose movers the test steps by hand.
struct Stepped {
    transceiver: Transceiver<Link>,
    link: Link,
    ends: RingEnds,
    movers: Vec<Box<dyn Mover>>,
}

impl Stepped {
    fn new(mode: Mode, script: Script) -> Self {
        let config = Config::builder("scripted").num_pages(PAGES).page_size(PAGE_SIZE).frame_size(16);
        let config = config.mode(mode).memory_lock(MemoryLock::Off).build().expect("valid");
        let link = Link(Arc::new(Mutex::new(script)));
        let opened = link.clone();
        let transceiver = Transceiver::with_device(config, move |_| Ok(opened.clone()));
        transceiver.setup().expect("set-up");
        transceiver.connect(&PEER).expect("connect");
        let ends = transceiver.take_ends().expect("once");
        let workers = transceiver.begin("a test", |recv| recv).expect("connected");
        let movers = workers.into_iter().map(|worker| worker.mover).collect();
        Self { transceiver, link, ends, movers }
    }

    /// Of its one mover.
    fn step(&mut self) -> bool {
        let [mover] = &mut self.movers[..] else { panic!("one mover") };
        mover.step().unwrap_or_else(|e| panic!("{e}"))
    }

    fn publish(&self, slots: impl IntoIterator<Item = u32>) {
        slots.into_iter().for_each(|slot| self.ends.tx.publish(slot));
    }

    fn sent(&self) -> Vec<u64> {
        self.link.script(|s| s.sent.iter().map(|wr| wr.sge.offset / u64::from(PAGE_SIZE)).collect())
    }

    /// Slots whose message nobody has taken.
    fn shown(&self) -> u32 {
        let is_shown = |slot: &u32| self.ends.rx.peek(*slot).is_some();
        u32::try_from((0..PAGES).filter(is_shown).count()).expect("few")
    }

    fn polls(&self) -> u32 {
        self.link.script(|s| std::mem::take(&mut s.polls))
    }
}

/// The monitor of none: what moves the messages is the test's.
impl Drop for Stepped {
    fn drop(&mut self) {
        self.transceiver.shared().ending.tell(std::mem::take(&mut self.movers));
    }
}

fn room(room: usize) -> Script {
    Script { room, ..Script::default() }
}

/// 40 messages that are at hand together.
fn arrived(link: &Link) {
    link.script(|s| {
        s.completions.extend((0..16).map(|slot| write(slot, slot)));
        s.landed.extend((16..40).map(|slot| write(slot, slot)));
    });
}

#[test]
fn a_step_moves_16_messages_and_no_more() {
    let mut rx = Stepped::new(Mode::RxOnly, Script::default());
    arrived(&rx.link);
    let shown = [(); 4].map(|()| (rx.step(), rx.shown()));
    assert_eq!(shown, [(true, 16), (true, 32), (true, 40), (false, 40)]);

    let mut forward = Stepped::new(Mode::Forward, room(64));
    arrived(&forward.link);
    let sent = [(); 4].map(|()| (forward.step(), forward.sent().len()));
    assert_eq!(sent, [(true, 16), (true, 32), (true, 40), (false, 40)]);

    let mut tx = Stepped::new(Mode::TxOnly, room(64));
    tx.publish(0..40);
    let sent = [(); 4].map(|()| (tx.step(), tx.sent().len()));
    assert_eq!(sent, [(true, 16), (true, 32), (true, 40), (false, 40)]);
    assert_eq!(STEP, 16);
}

#[test]
fn a_lone_message_costs_one_question() {
    for mode in [Mode::RxOnly, Mode::Forward] {
        let mut stepped = Stepped::new(mode, room(64));
        for slot in 0..10 {
            stepped.link.script(|s| s.completions.push_back(write(slot, slot)));
            assert!(stepped.step());
            assert_eq!(stepped.polls(), 1);
        }
        assert!(!stepped.step());
        assert_eq!(stepped.polls(), 1);
    }
}

#[test]
fn a_peer_that_is_always_faster_ends_a_step_all_the_same() {
    for mode in [Mode::RxOnly, Mode::Forward] {
        let mut stepped = Stepped::new(mode, Script { endless: Some(0), ..room(1000) });
        assert!(stepped.step());
        (0..10).for_each(|_| _ = stepped.step());
        let stats = stepped.transceiver.stats();
        assert!(stats.received >= u64::from(PAGES) && stats.overruns > 0, "{stats:?}");
    }
}

#[test]
fn a_receiver_that_waits_goes_on_when_the_slot_is_free() {
    let mut rx = Stepped::new(Mode::RxOnly, Script::default());
    let arrives = |rx: &mut Stepped, slot| {
        rx.link.script(|s| s.completions.push_back(write(slot, slot)));
        rx.step()
    };
    assert!(arrives(&mut rx, 0) && arrives(&mut rx, 0));
    assert!(!arrives(&mut rx, 1) && !rx.step(), "slot 0 is not free");
    rx.ends.rx.claim(0);
    assert!(rx.step());
    assert_eq!((rx.shown(), rx.transceiver.stats().overruns), (1, 1));
}

#[test]
fn a_flag_is_cleared_before_its_frame_leaves() {
    let mut tx = Stepped::new(Mode::TxOnly, room(64));
    let ring: Arc<Ring> = tx.transceiver.tx_ring().expect("set up");
    let is_free = move |offset: u64| ring.flag_is_free(u32::try_from(offset / u64::from(PAGE_SIZE)).unwrap());
    tx.link.script(|s| {
        s.at_flush = Some(Box::new(move |staged| {
            assert!(staged.iter().all(|wr| is_free(wr.sge.offset)), "an answer would meet a flag still set");
        }));
    });
    tx.publish(0..20);
    assert!(tx.step() && tx.step());
    assert_eq!(tx.sent(), (0..20).collect::<Vec<_>>());
}

#[test]
fn what_waits_for_the_link_is_offered_again_at_the_next_step() {
    let mut tx = Stepped::new(Mode::TxOnly, Script { stuck_flushes: 3, ..room(64) });
    tx.publish([0, 1]);
    assert_eq!([(); 5].map(|()| (tx.step(), tx.sent().len())).map(|(_, sent)| sent), [0, 0, 0, 2, 2]);
}

#[test]
fn all_that_was_published_before_the_stop_leaves_and_no_link_is_waited_for_without_end() {
    let mut tx = Stepped::new(Mode::TxOnly, room(64));
    tx.publish((0..64).rev());
    let finish =
        |tx: &mut Stepped| (0..1000).take_while(|_| tx.movers[0].finish().expect("no error")).count();
    assert!(finish(&mut tx) < 64);
    assert_eq!(tx.sent().len(), 64);

    for stuck in [room(0), Script { stuck_flushes: u32::MAX, ..room(64) }] {
        let mut tx = Stepped::new(Mode::TxOnly, stuck);
        tx.publish(0..64);
        assert!((64..1000).contains(&finish(&mut tx)), "it gets a while, and no more");
        assert_eq!(tx.sent(), []);
    }
}
