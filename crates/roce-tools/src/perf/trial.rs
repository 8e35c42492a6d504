//! One run of a point, and how long it waits for an answer.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use roce_transport::{Backoff, SpinPolicy};

use super::meter::Meter;
use super::place::Seats;
use super::plan::{Backend, Budget, Point};

/// An answer that takes longer than this is lost.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(1);
/// Polls between two looks at the clock.
pub(super) const LOOK_EVERY: u32 = 1 << 12;

/// One run of a point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial<'a> {
    pub(super) backend: &'a Backend,
    pub(super) point: &'a Point,
    pub(super) seats: &'a Seats,
    pub(super) budget: Budget,
    pub(super) stop: &'a AtomicBool,
}

impl<'a> Trial<'a> {
    /// That times `batch` messages at once.
    pub(super) fn meter(&self, batch: u64) -> Meter<'a> {
        Meter::new(self.budget, batch, self.stop)
    }
}

/// Polls in vain for one answer.
///
/// Its time runs from the first look at the clock, not from the moment when the request was due: who is late with a
/// request has lost nothing.
#[derive(Debug)]
pub(super) struct Patience {
    backoff: Backoff,
    polls: u32,
    since: Option<Instant>,
}

impl Patience {
    pub(super) fn new(spin: SpinPolicy) -> Self {
        Self { backoff: Backoff::new(spin), polls: 0, since: None }
    }

    /// One more poll in vain. Whether the answer is lost.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        self.backoff.idle();
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(LOOK_EVERY) && self.look(Instant::now())
    }

    #[cold]
    fn look(&mut self, now: Instant) -> bool {
        now.duration_since(*self.since.get_or_insert(now)) > LOST_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_lost_after_a_second_of_waiting_for_it() {
        let mut patience = Patience::new(SpinPolicy::Spin);
        let now = Instant::now();
        let looks = [0, 900, 1000, 1001].map(|millis| patience.look(now + Duration::from_millis(millis)));
        assert_eq!(looks, [false, false, false, true]);
        assert!((0..10 * LOOK_EVERY).all(|_| !Patience::new(SpinPolicy::Spin).is_over()));
    }
}
