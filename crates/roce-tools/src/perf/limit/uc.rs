//! UC straight on libibverbs: a ping-pong, and a stream there and back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use roce_core::{Device, LocalEndpoint, PeerEndpoint, QpAttr, RecvWr, RegionId, SendWr, Sge, UcQp, Verb};
use roce_ring::{Geometry, MemoryOptions, Ring};
use roce_transport::Backoff;
use roce_verbs::{RawEnd, VerbsConfig, VerbsDevice, VerbsError, VerbsQp};

use super::{UnderWay, between_threads, wait};
use crate::Error;
use crate::perf::meter::{Meter, Sample};
use crate::perf::place::Seats;
use crate::perf::trial::Trial;
use crate::perf::wire::Pacer;

/// Sends and receives that each end has room for; more than are ever under way.
const DEPTH: u32 = 512;

/// Two connected ends.
#[derive(Debug)]
pub(in crate::perf) struct Exchange {
    caller: RawEnd,
    service: RawEnd,
    /// The regions that the ends use.
    _rings: [Arc<Ring>; 4],
}

impl Exchange {
    /// The caller WRITEs `frame` bytes, the service SENDs as many.
    pub(in crate::perf) fn connect(caller: &str, service: &str, frame: u32) -> Result<Self, Error> {
        let geometry = Geometry::new(1, frame, frame).map_err(failed)?;
        let ring = || Ring::allocate(geometry, MemoryOptions::default()).map_err(failed);
        let rings = [ring()?, ring()?, ring()?, ring()?];
        let a = queue_pair(caller, &rings[0], &rings[1], frame)?;
        let b = queue_pair(service, &rings[2], &rings[3], frame)?;
        let ends = (endpoint(&a), endpoint(&b));
        let write = Verb::Write { addr: 0, rkey: ends.1.rkey, imm: Some(0) };
        let caller = end(a, ends.1, write, frame)?;
        let service = end(b, ends.0, Verb::Send { imm: None }, frame)?;
        Ok(Self { caller, service, _rings: rings })
    }

    /// As many messages under way as the point's depth; where it has a rate so many per second, each timed from when it was due.
    pub(in crate::perf) fn run(self, trial: &Trial<'_>) -> Result<Sample, Error> {
        let Trial { point, seats, .. } = *trial;
        let Self { mut caller, mut service, _rings } = self;
        between_threads(
            seats,
            |over| echo(&mut service, seats, over).map_err(failed),
            || {
                let (depth, pacer) = (point.depth as usize, Pacer::new(point.rate));
                ping(&mut caller, depth, pacer, seats, trial.meter(1)).map_err(failed)
            },
        )
    }
}

fn queue_pair(device: &str, rx: &Ring, tx: &Ring, frame: u32) -> Result<VerbsQp, Error> {
    let attr = QpAttr { rx: rx.data(), tx: tx.data(), send_depth: DEPTH, recv_depth: DEPTH, mtu: None };
    let device = VerbsDevice::open(VerbsConfig::new(device)).map_err(refused)?;
    let mut qp = device.create_qp(&attr).map_err(refused)?;
    for _ in 0..DEPTH {
        qp.post_recv(receive(frame)).map_err(failed)?;
    }
    Ok(qp)
}

fn receive(frame: u32) -> RecvWr {
    RecvWr { id: 0, offset: 0, len: frame }
}

fn endpoint(qp: &VerbsQp) -> LocalEndpoint {
    LocalEndpoint { qpn: qp.qpn(), rkey: qp.rkey(), ip: qp.local_ip() }
}

fn end(qp: VerbsQp, peer: LocalEndpoint, verb: Verb, frame: u32) -> Result<RawEnd, Error> {
    let peer = PeerEndpoint { qpn: peer.qpn, rkey: Some(peer.rkey), ip: peer.ip };
    let (send, recv) = qp.connect(&peer).map_err(|e| refused(e.error))?;
    let message = SendWr { sge: Sge { region: RegionId::Tx, offset: 0, len: frame }, verb };
    RawEnd::new(send, recv, &message, receive(frame), DEPTH).map_err(failed)
}

fn echo(end: &mut RawEnd, seats: &Seats, over: &AtomicBool) -> io::Result<()> {
    let mut backoff = Backoff::new(seats.spin);
    while !over.load(Ordering::Relaxed) {
        let came = end.receive()?;
        if came == 0 {
            backoff.idle();
            continue;
        }
        backoff.reset();
        (0..came).try_for_each(|_| end.send())?;
    }
    Ok(())
}

fn ping(
    end: &mut RawEnd,
    depth: usize,
    mut pacer: Pacer,
    seats: &Seats,
    mut meter: Meter<'_>,
) -> io::Result<Sample> {
    let mut under_way = UnderWay::new(depth);
    let mut then = Instant::now();
    loop {
        while under_way.room() > 0 {
            then = pacer.wait(then);
            end.send()?;
            under_way.send(1, then);
        }
        let mut came = 0;
        wait(seats, || {
            came = end.receive()? as usize;
            Ok(came > 0)
        })?;
        then = Instant::now();
        if !under_way.settle(came, then, &mut meter) {
            return Ok(meter.finish());
        }
    }
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Raw { what: "the UC ping-pong", source: io::Error::other(source) }
}

fn refused(source: VerbsError) -> Error {
    failed(source)
}
