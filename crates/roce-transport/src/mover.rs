//! What moves messages, a bounded step at a time: run by a thread of its own, or in turns with others.

use std::thread;

use crate::error::{Error, Outcome};
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::Shared;

/// Messages that one step moves at most.
pub(crate) const STEP: usize = 16;

/// What moves messages in one direction or in both.
pub(crate) trait Mover: Send {
    /// Moves what is at hand, [`STEP`] messages at most, and waits for nothing. Whether there was anything.
    fn step(&mut self) -> Outcome<bool>;

    /// Called after the stop until it gives `false`: a step of what is still to be done then.
    fn finish(&mut self) -> Outcome<bool> {
        Ok(false)
    }

    /// Does all of it on the calling thread.
    fn run(mut self: Box<Self>, spin: SpinPolicy, shared: &Shared) -> Result<(), Error> {
        let mut backoff = Backoff::new(spin);
        while !shared.is_stopped() {
            if self.step()? {
                backoff.reset();
            } else {
                backoff.idle();
            }
        }
        while self.finish()? {
            thread::yield_now();
        }
        Ok(())
    }
}
