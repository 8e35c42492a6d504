//! Cases for transceivers.

pub(crate) mod endings;
pub(crate) mod frames;
pub(crate) mod losses;
pub(crate) mod modes;
pub(crate) mod overruns;
pub(crate) mod pollers;
pub(crate) mod rings;
pub(crate) mod setups;

use std::ops::Deref;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_ring::SlotBytes;
use roce_transport::{ConfigBuilder, Error, Mode, RingEnds, State, Transceiver, Unified};

use crate::links::{Links, Side};
use crate::memory::content;
use crate::wait::{wait_for, wait_until};

/// A transceiver, and the thread that monitors it. Dropping it closes it.
struct Station {
    transceiver: Arc<Transceiver>,
    monitor: Option<JoinHandle<Result<(), Error>>>,
}

impl Deref for Station {
    type Target = Arc<Transceiver>;

    fn deref(&self) -> &Arc<Transceiver> {
        &self.transceiver
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.transceiver.close();
    }
}

impl Station {
    fn set_up(config: ConfigBuilder) -> Self {
        let transceiver = Arc::new(Transceiver::new(config.build().expect("valid")));
        transceiver.setup().unwrap_or_else(|e| panic!("set-up: {e}"));
        Self { transceiver, monitor: None }
    }

    /// Starts the threads, in modes that have any.
    fn run(&mut self) {
        if self.config().mode() != Mode::Unified {
            let transceiver = Arc::clone(&self.transceiver);
            self.monitor = Some(thread::spawn(move || transceiver.blocking_monitor()));
            wait_until("the threads", || self.state() != State::Connected);
        }
    }

    /// What the monitor returns, once it does.
    fn ended(&mut self) -> Result<(), Error> {
        self.monitor.take().map_or(Ok(()), |monitor| monitor.join().expect("the monitor never panics"))
    }

    /// Closes, and asserts that nothing had gone wrong.
    fn close_well(mut self) {
        self.transceiver.close();
        self.ended().expect("no error up to close");
    }

    /// The caller's side of it; once.
    fn driver(&self) -> Driver {
        match self.config().mode() {
            Mode::Unified => Driver::Unified(Box::new(self.take_unified().expect("connected"))),
            _ => Driver::Rings { ends: self.take_ends().expect("set up"), cursor: 0 },
        }
    }

    fn pages(&self) -> u32 {
        self.config().geometry().num_pages()
    }
}

fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

/// Connects two that are set up, and starts their threads.
fn join(a: &mut Station, b: &mut Station) {
    let (at_a, at_b) = (a.endpoint().expect("set up"), b.endpoint().expect("set up"));
    a.connect(&peer_of(at_b)).unwrap_or_else(|e| panic!("connect: {e}"));
    b.connect(&peer_of(at_a)).unwrap_or_else(|e| panic!("connect: {e}"));
    a.run();
    b.run();
}

/// Two running transceivers, connected with each other.
fn stations<L: Links>(
    links: &L,
    a: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
    b: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
) -> (Station, Station) {
    let mut a = Station::set_up(a(links.config(Side::A)));
    let mut b = Station::set_up(b(links.config(Side::B)));
    join(&mut a, &mut b);
    (a, b)
}

/// The caller's side of a transceiver, whatever its mode.
enum Driver {
    Rings { ends: RingEnds, cursor: u32 },
    Unified(Box<Unified>),
}

impl Driver {
    /// Sends message `number` in `slot`, unless the slot is not free.
    fn send(&mut self, slot: u32, number: u64) -> Result<bool, Error> {
        match self {
            Self::Rings { ends: RingEnds { tx, .. }, .. } => {
                let free = tx.is_free(slot);
                if free {
                    write_frame(tx.slot(slot), tx.ring().geometry().frame_size(), number);
                    tx.publish(slot);
                }
                Ok(free)
            }
            Self::Unified(unified) => {
                write_frame(unified.tx_slot(slot), unified.geometry().frame_size(), number);
                unified.tx_publish(slot).map(|()| true)
            }
        }
    }

    /// The next message in slot order (rings) or order of arrival (unified): slot and number.
    fn receive(&mut self) -> Result<Option<(u32, u64)>, Error> {
        match self {
            Self::Rings { ends, cursor } => {
                let slot = *cursor;
                let number = take(ends, slot);
                if number.is_some() {
                    *cursor = (slot + 1) % ends.rx.ring().geometry().num_pages();
                }
                Ok(number.map(|number| (slot, number)))
            }
            Self::Unified(unified) => {
                let frame_size = unified.geometry().frame_size();
                let slot = unified.rx_poll()?;
                Ok(slot.map(|slot| (slot, read_frame(unified.rx_slot(slot), frame_size))))
            }
        }
    }
}

/// Takes the message in `slot` and gives the slot back.
fn take(ends: &RingEnds, slot: u32) -> Option<u64> {
    let message = ends.rx.peek(slot)?;
    let number = read_frame(message.bytes(), ends.rx.ring().geometry().frame_size());
    message.release().expect("not overwritten");
    Some(number)
}

/// Publishes message `number` in `slot` once it is free.
fn publish(ends: &RingEnds, slot: u32, number: u64) {
    wait_until("a free TX slot", || ends.tx.is_free(slot));
    write_frame(ends.tx.slot(slot), ends.tx.ring().geometry().frame_size(), number);
    ends.tx.publish(slot);
}

/// Fills a frame of at least 8 bytes with what belongs to the number.
fn write_frame(slot: SlotBytes<'_>, frame_size: u32, number: u64) {
    slot.copy_from(0, &number.to_le_bytes());
    slot.copy_from(8, &content(number, frame_size as usize - 8));
}

/// The number of a frame, whose other bytes must belong to it.
fn read_frame(slot: SlotBytes<'_>, frame_size: u32) -> u64 {
    let number = u64::from_le_bytes(slot.read(0));
    let mut rest = vec![0; frame_size as usize - 8];
    slot.copy_to(8, &mut rest);
    assert!(rest == content(number, rest.len()), "message {number} is torn");
    number
}

/// What answers a request.
const ANSWER: u64 = 1 << 32;

fn slot_of(number: u64, pages: u32) -> u32 {
    u32::try_from(number % u64::from(pages)).expect("below a u32")
}

/// Answers requests 0.. in the slot that each came in, which is the next one.
fn serve(driver: &mut Driver, pages: u32, count: u64) {
    for n in 0..count {
        let slot = slot_of(n, pages);
        let request = wait_for("a request", || driver.receive().expect("open"));
        assert_eq!(request, (slot, n), "slot and number of a request");
        wait_until("a free slot for the answer", || driver.send(slot, ANSWER + n).expect("open"));
    }
}

/// Sends requests 0.., a ring's worth at once, and takes their answers.
fn ask(driver: &mut Driver, pages: u32, count: u64, answer: u64) {
    let mut asked = 0;
    for answered in 0..count {
        let next = wait_for("an answer", || {
            while asked < count.min(answered + u64::from(pages))
                && driver.send(slot_of(asked, pages), asked).expect("open")
            {
                asked += 1;
            }
            driver.receive().expect("open")
        });
        assert_eq!(next, (slot_of(answered, pages), answer + answered), "slot and number of an answer");
    }
}

/// `a` asks and `b` answers, or sends back what it gets in forward mode.
fn round_trips(a: &Station, b: &Station, count: u64) {
    let pages = a.pages();
    let (mut asking, mut serving) = (a.driver(), b.driver());
    thread::scope(|scope| {
        let forward = b.config().mode() == Mode::Forward;
        if !forward {
            scope.spawn(|| serve(&mut serving, pages, count));
        }
        ask(&mut asking, pages, count, if forward { 0 } else { ANSWER });
    });
}

/// As [`round_trips`], between two made for it; asserts that the counters agree and that both end well.
fn converse<L: Links>(
    links: &L,
    count: u64,
    a: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
    b: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
) {
    let (a, b) = stations(links, a, b);
    round_trips(&a, &b, count);
    for station in [&a, &b] {
        let stats = station.stats();
        assert_eq!((stats.sent, stats.received), (count, count));
        let bad = (stats.lost, stats.overruns, stats.dropped, stats.completion_errors);
        assert_eq!(bad, (0, 0, 0, 0), "lost, overruns, dropped, completion errors");
    }
    a.close_well();
    b.close_well();
}
