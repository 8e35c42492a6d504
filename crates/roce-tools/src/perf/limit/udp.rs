//! A UDP ping-pong, and a stream of batches there and back.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use roce_transport::Backoff;

use super::socket::{Address, Batch, Socket};
use super::{UnderWay, between_threads, wait};
use crate::Error;
use crate::perf::meter::{Meter, Sample};
use crate::perf::place::Seats;
use crate::perf::trial::Trial;
use crate::perf::wire::{self, Pacer, nanos};

/// Packets of one system call: as many as both ends stage and take in what is compared with it.
const BATCH: usize = wire::BATCH as usize;

/// What goes to and fro.
#[derive(Debug, Clone, Copy)]
pub(in crate::perf) struct Exchange {
    pub(in crate::perf) caller: Ipv4Addr,
    pub(in crate::perf) service: Ipv4Addr,
    /// UDP payload bytes of a request.
    pub(in crate::perf) request_len: usize,
    /// UDP payload bytes of an answer.
    pub(in crate::perf) answer_len: usize,
}

struct Ends {
    caller: Socket,
    service: Socket,
    to_caller: Address,
    to_service: Address,
}

impl Exchange {
    /// On ports of their own.
    fn bind(&self) -> Result<Ends, Error> {
        let bind = |ip| {
            let socket = Socket::bind(SocketAddrV4::new(ip, 0))?;
            let address = Address::new(socket.address()?);
            Ok((socket, address))
        };
        let ((caller, to_caller), (service, to_service)) =
            (bind(self.caller).map_err(failed)?, bind(self.service).map_err(failed)?);
        Ok(Ends { caller, service, to_caller, to_service })
    }

    /// One packet there, one back; where the point has a rate so many per second, each timed from when it was due.
    pub(in crate::perf) fn ping_pong(&self, trial: &Trial<'_>) -> Result<Sample, Error> {
        let Trial { point, seats, .. } = *trial;
        let ends = self.bind()?;
        between_threads(
            seats,
            |over| self.echo(&ends, seats, over).map_err(failed),
            || self.ping(&ends, Pacer::new(point.rate), seats, trial.meter(1)).map_err(failed),
        )
    }

    fn echo(&self, ends: &Ends, seats: &Seats, over: &AtomicBool) -> io::Result<()> {
        let mut buffer = vec![0; self.request_len];
        let answer = vec![0; self.answer_len];
        let mut backoff = Backoff::new(seats.spin);
        while !over.load(Ordering::Relaxed) {
            if ends.service.receive(&mut buffer)? {
                ends.service.send(&ends.to_caller, &answer)?;
                backoff.reset();
            } else {
                backoff.idle();
            }
        }
        Ok(())
    }

    fn ping(&self, ends: &Ends, mut pacer: Pacer, seats: &Seats, mut meter: Meter<'_>) -> io::Result<Sample> {
        let request = vec![0; self.request_len];
        let mut buffer = vec![0; self.answer_len];
        let mut then = Instant::now();
        loop {
            then = pacer.wait(then);
            ends.caller.send(&ends.to_service, &request)?;
            let came = wait(seats, || ends.caller.receive(&mut buffer))?;
            let now = Instant::now();
            let goes_on = if came { meter.record(now, nanos(now - then)) } else { meter.lose(now, 1) };
            if !goes_on {
                return Ok(meter.finish());
            }
            then = now;
        }
    }

    /// As many packets under way as the point's depth, in batches.
    pub(in crate::perf) fn stream(&self, trial: &Trial<'_>) -> Result<Sample, Error> {
        let Trial { point, seats, .. } = *trial;
        let ends = self.bind()?;
        between_threads(
            seats,
            |over| self.echo_batches(&ends, seats, over).map_err(failed),
            || self.pump(&ends, point.depth as usize, seats, trial.meter(1)).map_err(failed),
        )
    }

    fn echo_batches(&self, ends: &Ends, seats: &Seats, over: &AtomicBool) -> io::Result<()> {
        let mut incoming = Batch::incoming(BATCH);
        let mut answers = Batch::to(ends.to_caller, BATCH, self.answer_len);
        let mut backoff = Backoff::new(seats.spin);
        while !over.load(Ordering::Relaxed) {
            let mut due = incoming.receive(&ends.service)?;
            if due == 0 {
                backoff.idle();
                continue;
            }
            backoff.reset();
            while due > 0 && !over.load(Ordering::Relaxed) {
                due -= answers.send(&ends.service, due)?;
            }
        }
        Ok(())
    }

    fn pump(&self, ends: &Ends, depth: usize, seats: &Seats, mut meter: Meter<'_>) -> io::Result<Sample> {
        let mut requests = Batch::to(ends.to_service, BATCH, self.request_len);
        let mut incoming = Batch::incoming(BATCH);
        let mut under_way = UnderWay::new(depth);
        loop {
            while under_way.room() > 0 {
                let now = Instant::now();
                let count = requests.send(&ends.caller, BATCH.min(under_way.room()))?;
                under_way.send(count, now);
                if count == 0 {
                    break;
                }
            }
            let mut came = 0;
            wait(seats, || {
                came = incoming.receive(&ends.caller)?;
                Ok(came > 0)
            })?;
            if !under_way.settle(came, Instant::now(), &mut meter) {
                return Ok(meter.finish());
            }
        }
    }
}

fn failed(source: io::Error) -> Error {
    Error::Raw { what: "the UDP ping-pong", source }
}
