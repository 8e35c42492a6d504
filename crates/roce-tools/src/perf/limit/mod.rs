//! The raw limits of what goes over a link: plain UDP and plain UC, with nothing of the transport on the path.

#[allow(unsafe_code)]
mod socket;
#[cfg(feature = "verbs")]
pub(super) mod uc;
pub(super) mod udp;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::meter::Sample;
use super::place::Seats;
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
