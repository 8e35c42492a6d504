//! The raw limits of what goes over a link: plain UDP and plain UC, with nothing of the transport on the path.

#[allow(unsafe_code)]
mod socket;
#[cfg(feature = "verbs")]
pub(super) mod uc;
pub(super) mod udp;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::meter::{Meter, Sample};
use super::place::Seats;
use super::trial::Patience;
use super::wire::nanos;
use crate::Error;

/// Runs `service` on the second seat until `caller`, on the first, has ended.
fn between_threads(
    seats: &Seats,
    service: impl FnOnce(&AtomicBool) -> Result<(), Error> + Send,
    caller: impl FnOnce() -> Result<Sample, Error> + Send,
) -> Result<Sample, Error> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let service = scope.spawn(|| seats.take(1).and_then(|()| service(&over)));
        let caller = scope.spawn(|| seats.take(0).and_then(|()| caller()));
        let sample = caller.join().map_err(|_| Error::Panicked)?;
        over.store(true, Ordering::Relaxed);
        service.join().map_err(|_| Error::Panicked)??;
        sample
    })
}

/// Polls until something is there, or it is lost.
#[inline]
fn wait(seats: &Seats, mut poll: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let mut patience = Patience::new(seats.spin);
    loop {
        if poll()? {
            return Ok(true);
        }
        if patience.is_over() {
            return Ok(false);
        }
    }
}

/// Messages under way, as many as fit, and when each was sent. Answers come in their order.
#[derive(Debug)]
struct UnderWay {
    sent_at: Vec<Instant>,
    sent: usize,
    answered: usize,
}

impl UnderWay {
    fn new(depth: usize) -> Self {
        Self { sent_at: vec![Instant::now(); depth], sent: 0, answered: 0 }
    }

    /// How many more may be under way.
    #[inline]
    fn room(&self) -> usize {
        self.sent_at.len() - (self.sent - self.answered)
    }

    #[inline]
    fn send(&mut self, messages: usize, at: Instant) {
        for _ in 0..messages {
            let place = self.sent % self.sent_at.len();
            self.sent_at[place] = at;
            self.sent += 1;
        }
    }

    /// When the oldest was sent.
    #[inline]
    fn oldest(&self) -> Instant {
        self.sent_at[self.answered % self.sent_at.len()]
    }

    /// So many answers came; none: what is under way is lost. Whether to go on.
    #[inline]
    fn settle(&mut self, came: usize, now: Instant, meter: &mut Meter<'_>) -> bool {
        if came == 0 {
            let lost = self.sent - self.answered;
            self.answered = self.sent;
            return meter.lose(now, lost as u64);
        }
        let mut goes_on = true;
        for _ in 0..came {
            goes_on = meter.record(now, nanos(now - self.oldest()));
            self.answered += 1;
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::perf::plan::Budget;

    #[test]
    fn answers_are_timed_from_their_own_requests() {
        let stop = AtomicBool::new(false);
        // One to warm up, one to settle, four that count.
        let mut meter = Meter::new(Budget::Count(4), 1, &stop);
        let mut under_way = UnderWay::new(2);
        let start = Instant::now() + Duration::from_secs(60);
        let at = |millis| start + Duration::from_millis(millis);
        under_way.send(2, at(0));
        assert!(under_way.settle(2, at(5), &mut meter));
        under_way.send(1, at(20));
        under_way.send(1, at(30));
        assert_eq!((under_way.room(), under_way.oldest()), (0, at(20)));
        assert!(under_way.settle(1, at(50), &mut meter));
        assert_eq!((under_way.room(), under_way.oldest()), (1, at(30)));
        assert!(under_way.settle(1, at(50), &mut meter));
        under_way.send(2, at(60));
        assert!(!under_way.settle(0, at(99), &mut meter), "four of four");
        assert_eq!(under_way.room(), 2);
        let sample = meter.finish();
        assert_eq!((sample.count, sample.lost), (2, 2));
        let millis = |ns: u64| (ns as f64 / 1e6).round();
        assert_eq!([sample.times.min(), sample.times.max()].map(millis), [20.0, 30.0]);
    }
}
