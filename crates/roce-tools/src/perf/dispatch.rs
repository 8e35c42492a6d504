//! The dispatcher between two rings, all on one thread; and the same copies and flags with the function called straight.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use roce_dispatch::RingLoop;
use roce_dispatch::rpc::{HEADER_LEN, Response, Status};
use roce_ring::{Consumer, Geometry, MemoryOptions, Producer, Ring};

use super::meter::Sample;
use super::plan::ServiceMode;
use super::trial::Trial;
use super::wire::{check_answer, nanos, page_size, request};
use crate::{Error, handlers};

/// Requests between two looks at the clock.
const BATCH: u64 = 64;
const PAGES: u32 = 64;

/// The transport's and the dispatcher's ends of a pair of rings.
struct Rings {
    to_dispatcher: Producer,
    from_dispatcher: Consumer,
    requests: Consumer,
    answers: Producer,
}

impl Rings {
    fn new(frame: u32) -> Result<Self, Error> {
        let geometry =
            Geometry::new(PAGES, page_size(frame), frame).map_err(|e| Error::Options(e.to_string()))?;
        let ring = || Ring::allocate(geometry, MemoryOptions::default()).map_err(Error::Ring);
        let (rx, tx) = (ring()?, ring()?);
        let ((to_dispatcher, requests), (answers, from_dispatcher)) =
            rx.split().zip(tx.split()).ok_or(Error::Taken)?;
        Ok(Self { to_dispatcher, from_dispatcher, requests, answers })
    }
}

/// Through [`RingLoop`].
pub(super) fn through_dispatcher(trial: &Trial<'_>) -> Result<Sample, Error> {
    let frame = trial.point.frame;
    let Rings { to_dispatcher, mut from_dispatcher, requests, answers } = Rings::new(frame)?;
    let mut dispatcher = RingLoop::new(requests, answers, handlers::table(None)?)?;
    let frame = request(frame);
    let mut last = None;
    let (seen, consumer) = (&mut last, &mut from_dispatcher);
    let asked = frame.clone();
    let sample = timed(trial, move |slot| {
        to_dispatcher.slot(slot).copy_from(0, &asked);
        to_dispatcher.publish(slot);
        dispatcher.poll();
        let answer = consumer.next_published().ok_or(Error::WrongAnswer)?;
        if seen.is_none() {
            check_answer(consumer.ring().slot(answer), &asked, ServiceMode::Threads)?;
        }
        *seen = Some(answer);
        consumer.claim(answer);
        Ok(())
    })?;
    if let Some(answer) = last {
        check_answer(from_dispatcher.ring().slot(answer), &frame, ServiceMode::Threads)?;
    }
    Ok(sample)
}

/// As little as a dispatcher can do: copy the request out, call the function, copy header and results in.
pub(super) fn called_straight(trial: &Trial<'_>) -> Result<Sample, Error> {
    let frame = trial.point.frame;
    let Rings { to_dispatcher, mut from_dispatcher, mut requests, answers } = Rings::new(frame)?;
    // What the dispatcher would look up, so that the compiler cannot know it.
    let increment: fn(&[u8], &mut [u8]) = black_box(|arguments, result| {
        for (out, byte) in result.iter_mut().zip(arguments) {
            *out = byte.wrapping_add(1);
        }
    });
    let frame = request(frame);
    let (mut taken, mut answer) = (frame.clone(), frame.clone());
    let header = Response { status: Status::SUCCESS, ..Response::default() };
    timed(trial, move |slot| {
        to_dispatcher.slot(slot).copy_from(0, &frame);
        to_dispatcher.publish(slot);
        let slot = requests.next_published().ok_or(Error::WrongAnswer)?;
        requests.ring().slot(slot).copy_to(0, &mut taken);
        increment(&taken[HEADER_LEN..], &mut answer[HEADER_LEN..]);
        header.emit(&mut answer);
        answers.slot(slot).copy_from(0, &answer);
        requests.claim(slot);
        answers.publish(slot);
        let slot = from_dispatcher.next_published().ok_or(Error::WrongAnswer)?;
        from_dispatcher.claim(slot);
        Ok(())
    })
}

/// Times `serve` on a thread in its seat; it gets the slots in turn.
pub(super) fn timed(
    trial: &Trial<'_>,
    mut serve: impl FnMut(u32) -> Result<(), Error> + Send,
) -> Result<Sample, Error> {
    let run = || {
        trial.seats.take(0)?;
        let mut meter = trial.meter(BATCH);
        let mut then = Instant::now();
        let mut slot = 0;
        loop {
            for _ in 0..BATCH {
                serve(slot)?;
                slot = (slot + 1) % PAGES;
            }
            let now = Instant::now();
            if !meter.record(now, nanos(now - then)) {
                return Ok(meter.finish());
            }
            then = now;
        }
    };
    thread::scope(|scope| scope.spawn(run).join()).map_err(|_| Error::Panicked)?
}
