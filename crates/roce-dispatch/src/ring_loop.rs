//! The dispatcher over a pair of rings with flags.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use roce_ring::{Consumer, Lines, Producer};
use roce_transport::{Backoff, SpinPolicy};

use crate::server::{Outcome, Server};
use crate::stats::{DispatchStats, Event};
use crate::{DispatchError, FunctionTable};

/// Serves the requests of an RX ring and answers each in the TX slot of the same index.
///
/// Slots are served in the order of their publication. A message that the network lost leaves a free slot behind,
/// which is passed over once a later slot is published; losses are the transport's to count. A message that is no
/// request is counted and dropped. Every request is answered, at worst with a negative
/// [`Status`](crate::rpc::Status), except one that its peer overwrites while it is served: its slot is looked at
/// again instead.
///
/// A handler that is given slices sees a private copy of the request, so a peer that overwrites a slot cannot change
/// arguments under it. One that works [in place](FunctionTable::register_in_place) may read some of a newer request. A
/// response that finds its TX slot taken waits for it, and with it all that come after.
///
/// Once made, the loop allocates nothing, unless a handler does or panics.
pub struct RingLoop {
    rx: Consumer,
    tx: Producer,
    lines: Lines,
    server: Server,
}

enum Step {
    /// A message is dealt with.
    Done,
    /// The message in hand was overwritten by a newer one.
    Again,
    /// There is no message, or no place for its response.
    Wait,
}

impl RingLoop {
    /// Serves `table` from what `rx` brings, and answers through `tx`.
    ///
    /// # Errors
    /// [`DispatchError::SlotCounts`] when the rings differ in slots, [`DispatchError::FrameTooSmall`] when a frame
    /// has no room for a header.
    pub fn new(rx: Consumer, tx: Producer, table: FunctionTable) -> Result<Self, DispatchError> {
        let server = Server::new(rx.ring().geometry(), tx.ring().geometry(), table)?;
        let lines = Lines::new(rx.ring(), tx.ring());
        Ok(Self { rx, tx, lines, server })
    }

    /// A handle on the counters.
    pub fn stats(&self) -> DispatchStats {
        self.server.stats().clone()
    }

    /// Serves what is there, at most one message per slot of the ring, and says how many were dealt with: answered
    /// or dropped. Never waits.
    pub fn poll(&mut self) -> usize {
        let mut done = 0;
        for _ in 0..self.rx.ring().geometry().num_pages() {
            match self.step() {
                Step::Done => done += 1,
                Step::Again => {}
                Step::Wait => break,
            }
        }
        done
    }

    /// Serves until `stop` is set.
    pub fn run(&mut self, stop: &AtomicBool, spin: SpinPolicy) {
        let mut backoff = Backoff::new(spin);
        while !stop.load(Ordering::Relaxed) {
            match self.poll() {
                0 => backoff.idle(),
                _ => backoff.reset(),
            }
        }
    }

    fn step(&mut self) -> Step {
        let Some(slot) = self.rx.next_published() else { return Step::Wait };
        let Some(message) = self.rx.peek(slot) else { return Step::Wait };

        let may_answer = || !message.overwritten() && self.tx.is_free(slot);
        let slots = || (message.bytes(), self.tx.slot(slot));
        let outcome = self.server.exchange(slot, || self.lines.of(slot), slots, may_answer);
        // The newer bytes may have landed before the overrun was noted, and so before the copy.
        if message.overwritten() {
            return self.again();
        }
        match outcome {
            Outcome::Answered => {}
            Outcome::Held => return Step::Wait,
            Outcome::NoRequest => {
                self.server.stats().count(Event::BadMagic);
                self.rx.claim(slot);
                return Step::Done;
            }
        }
        // RX first: a peer that reuses the slot as soon as it has the answer must not find it taken.
        self.rx.claim(slot);
        self.server.stats().count(Event::Response);
        self.tx.publish(slot);
        Step::Done
    }

    /// The flag stays set: it stands for the newer message now.
    #[cold]
    fn again(&self) -> Step {
        self.server.stats().count(Event::Overwritten);
        Step::Again
    }
}

impl fmt::Debug for RingLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingLoop")
            .field("rx", &self.rx)
            .field("tx", &self.tx)
            .field("stats", self.server.stats())
            .finish_non_exhaustive()
    }
}
