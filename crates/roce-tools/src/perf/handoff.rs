//! A message through a ring to another thread and one back, without bytes; and two threads on two flags.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use roce_ring::{Geometry, MemoryOptions, Producer, Ring};
use roce_transport::Backoff;

use super::meter::Sample;
use super::place::Seats;
use super::trial::Trial;
use super::wire::nanos;
use crate::Error;

/// Round trips between two looks at the clock, which costs a good part of one.
const BATCH: u64 = 16;
const PAGES: u32 = 64;

/// Through rings.
pub(super) fn through_rings(trial: &Trial<'_>) -> Result<Sample, Error> {
    let seats = trial.seats;
    let geometry = Geometry::new(PAGES, 384, 384).map_err(|e| Error::Options(e.to_string()))?;
    let ring = || Ring::allocate(geometry, MemoryOptions::default()).map_err(Error::Ring);
    let (there, back) = (ring()?, ring()?);
    let ((to_peer, mut at_peer), (to_us, mut at_us)) = there.split().zip(back.split()).ok_or(Error::Taken)?;
    let mut next = (0, 0);
    between_threads(
        trial,
        move |over| {
            let slot = wait_for(seats, over, || at_peer.next_published())?;
            at_peer.claim(slot);
            publish(&to_us, &mut next.0, seats, over)
        },
        move |over| {
            publish(&to_peer, &mut next.1, seats, over)?;
            let slot = wait_for(seats, over, || at_us.next_published())?;
            at_us.claim(slot);
            Some(())
        },
    )
}

fn publish(producer: &Producer, next: &mut u32, seats: &Seats, over: &AtomicBool) -> Option<()> {
    let slot = *next % PAGES;
    *next = next.wrapping_add(1);
    wait_for(seats, over, || producer.is_free(slot).then_some(()))?;
    producer.publish(slot);
    Some(())
}

/// A flag on a cache line of its own, and of the pair that processors fetch together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flag(AtomicU64);

/// Through nothing but two flags.
pub(super) fn through_flags(trial: &Trial<'_>) -> Result<Sample, Error> {
    let seats = trial.seats;
    let (there, back) = (Flag::default(), Flag::default());
    let (there, back) = (&there.0, &back.0);
    let mut counts = (0u64, 0u64);
    between_threads(
        trial,
        move |over| {
            counts.0 += 1;
            wait_for(seats, over, || (there.load(Ordering::Acquire) == counts.0).then_some(()))?;
            back.store(counts.0, Ordering::Release);
            Some(())
        },
        move |over| {
            counts.1 += 1;
            there.store(counts.1, Ordering::Release);
            wait_for(seats, over, || (back.load(Ordering::Acquire) == counts.1).then_some(()))
        },
    )
}

/// `None` once it is over.
#[inline]
fn wait_for<T>(seats: &Seats, over: &AtomicBool, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let mut backoff = Backoff::new(seats.spin);
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if over.load(Ordering::Relaxed) {
            return None;
        }
        backoff.idle();
    }
}

/// Runs `answer` over and over on one thread and times `ask` on another.
fn between_threads(
    trial: &Trial<'_>,
    mut answer: impl FnMut(&AtomicBool) -> Option<()> + Send,
    mut ask: impl FnMut(&AtomicBool) -> Option<()> + Send,
) -> Result<Sample, Error> {
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            let seated = trial.seats.take(1);
            while answer(over).is_some() {}
            seated
        });
        let us = scope.spawn(move || {
            trial.seats.take(0)?;
            let mut meter = trial.meter(BATCH);
            let mut then = Instant::now();
            loop {
                for _ in 0..BATCH {
                    ask(over);
                }
                let now = Instant::now();
                if !meter.record(now, nanos(now - then)) {
                    return Ok(meter.finish());
                }
                then = now;
            }
        });
        let sample = us.join().map_err(|_| Error::Panicked)?;
        over.store(true, Ordering::Relaxed);
        peer.join().map_err(|_| Error::Panicked)??;
        sample
    })
}
