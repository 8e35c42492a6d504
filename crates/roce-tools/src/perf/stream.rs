//! Many requests under way: a caller that drives its queue pair in batches, as an FPGA would flood it.

use std::sync::Arc;
use std::time::Instant;

use roce_core::{
    CompletionError, Device, LocalEndpoint, PostError, QpAttr, RecvCompletion, RecvWr, RegionId, Rkey,
    SendWr, Sge, UcQp, UcRecv, UcSend, Verb,
};
use roce_ring::{Geometry, MemoryOptions, Ring};
use roce_transport::{AnyDevice, AnyQp, AnyRecv, AnySend, Backoff, SpinPolicy};

use super::meter::{Meter, Sample};
use super::plan::{Backend, ServiceMode};
use super::trial::{LOOK_EVERY, LOST_AFTER, Trial};
use super::wire::{self, Service, check_answer, id_of, nanos, page_size, peer_of, request, set_id};
use crate::Error;

/// Messages that are staged, or taken, at once.
const BATCH: usize = wire::BATCH as usize;

/// As many requests under way as the point's depth.
pub(super) fn throughput(trial: &Trial<'_>) -> Result<Sample, Error> {
    let Trial { backend, point, seats, .. } = *trial;
    let (ours, theirs) = backend.devices();
    let pages = point.depth.next_power_of_two();
    let geometry = Geometry::new(pages, page_size(point.frame), point.frame)
        .map_err(|e| Error::Options(e.to_string()))?;
    let (qp, rx, tx) = queue_pair(backend, &ours, geometry)?;
    let end = LocalEndpoint { qpn: qp.qpn(), rkey: qp.rkey(), ip: qp.local_ip() };
    let service = Service::connect(trial, &theirs, pages, end)?;
    let peer = service.endpoint()?;
    let (send, recv) = qp
        .connect(&peer_of(peer))
        .map_err(|refused| Error::Device { device: ours.clone(), source: refused.error })?;
    let mtu = service.mtu();
    let mut caller = Streamer {
        device: ours,
        send,
        recv,
        rx,
        tx,
        geometry,
        rkey: peer.rkey,
        frame: request(point.frame),
        depth: point.depth,
        mode: point.mode,
        spin: seats.spin,
        sent: 0,
        answered: 0,
        sent_at: vec![Instant::now(); pages as usize].into_boxed_slice(),
    };
    let sample = service.beside(|| caller.run(trial.meter(1)))?;
    Ok(Sample { mtu, ..sample })
}

/// With all its receives posted, and its rings: RX, TX.
fn queue_pair(
    backend: &Backend,
    device: &str,
    geometry: Geometry,
) -> Result<(AnyQp, Arc<Ring>, Arc<Ring>), Error> {
    let refused = |source| Error::Device { device: device.to_owned(), source };
    let ring = || Ring::allocate(geometry, MemoryOptions::default()).map_err(Error::Ring);
    let (rx, tx) = (ring()?, ring()?);
    let depth = geometry.num_pages();
    let attr = QpAttr { rx: rx.data(), tx: tx.data(), send_depth: depth, recv_depth: depth, mtu: None };
    let device = AnyDevice::open(&backend.device_config(device)).map_err(refused)?;
    let mut qp = device.create_qp(&attr).map_err(refused)?;
    for slot in 0..depth {
        qp.post_recv(receive(geometry, slot)).map_err(post_failed)?;
    }
    Ok((qp, rx, tx))
}

fn receive(geometry: Geometry, slot: u32) -> RecvWr {
    RecvWr { id: slot, offset: geometry.slot_offset(slot), len: geometry.page_size() }
}

struct Streamer {
    device: String,
    send: AnySend,
    recv: AnyRecv,
    rx: Arc<Ring>,
    tx: Arc<Ring>,
    geometry: Geometry,
    rkey: Rkey,
    frame: Vec<u8>,
    depth: u32,
    mode: ServiceMode,
    spin: SpinPolicy,
    /// Requests so far; their numbers wrap.
    sent: u32,
    answered: u32,
    /// When each slot's request was staged.
    sent_at: Box<[Instant]>,
}

impl Streamer {
    fn run(&mut self, mut meter: Meter<'_>) -> Result<Sample, Error> {
        let mut backoff = Backoff::new(self.spin);
        let mut since = Instant::now();
        let mut polls = 0u32;
        loop {
            self.fill()?;
            let (came, goes_on) = self.take(&mut meter)?;
            if came {
                backoff.reset();
                since = Instant::now();
            } else {
                backoff.idle();
                polls = polls.wrapping_add(1);
            }
            if !goes_on || !came && polls.is_multiple_of(LOOK_EVERY) && !self.look(since, &mut meter) {
                return Ok(meter.finish());
            }
        }
    }

    /// Sends until `depth` requests are under way, or the link has no room.
    fn fill(&mut self) -> Result<(), Error> {
        while self.under_way() < self.depth {
            let now = Instant::now();
            let mut staged = 0;
            while staged < BATCH && self.under_way() < self.depth && self.stage(now)? {
                staged += 1;
            }
            let waiting = self.send.flush().map_err(post_failed)?;
            self.send.reap().map_err(|e| broken(&self.device, e))?;
            if staged == 0 || waiting > 0 {
                break;
            }
        }
        Ok(())
    }

    fn under_way(&self) -> u32 {
        self.sent.wrapping_sub(self.answered)
    }

    /// `false`: there is no room now.
    fn stage(&mut self, now: Instant) -> Result<bool, Error> {
        let slot = self.sent % self.geometry.num_pages();
        set_id(&mut self.frame, self.sent);
        self.tx.slot(slot).copy_from(0, &self.frame);
        let offset = self.geometry.slot_offset(slot);
        let sge = Sge { region: RegionId::Tx, offset, len: self.geometry.frame_size() };
        let verb = Verb::Write { addr: offset, rkey: self.rkey, imm: Some(slot) };
        match self.send.stage(&SendWr { sge, verb }) {
            Ok(()) => {
                self.sent_at[slot as usize] = now;
                self.sent = self.sent.wrapping_add(1);
                Ok(true)
            }
            Err(PostError::QueueFull) => Ok(false),
            Err(error) => Err(post_failed(error)),
        }
    }

    /// Whether answers came, and whether to go on.
    fn take(&mut self, meter: &mut Meter<'_>) -> Result<(bool, bool), Error> {
        let mut batch = [RecvCompletion::EMPTY; BATCH];
        let count = self.recv.poll(&mut batch).map_err(|e| broken(&self.device, e))?;
        if count == 0 {
            return Ok((false, true));
        }
        let now = Instant::now();
        let mut goes_on = true;
        for completion in &batch[..count] {
            completion.result.map_err(|e| broken(&self.device, e))?;
            goes_on = self.answer(completion.id, now, meter)?;
            self.recv.post_recv(receive(self.geometry, completion.id)).map_err(post_failed)?;
        }
        Ok((true, goes_on))
    }

    fn answer(&mut self, slot: u32, now: Instant, meter: &mut Meter<'_>) -> Result<bool, Error> {
        let id = id_of(self.rx.slot(slot));
        let missing = id.wrapping_sub(self.answered);
        if missing >= self.under_way() {
            // It was given up before.
            return Ok(true);
        }
        if missing > 0 {
            meter.lose(now, missing.into());
        }
        self.answered = id.wrapping_add(1);
        let sent_at = self.sent_at[(id % self.geometry.num_pages()) as usize];
        let goes_on = meter.record(now, nanos(now - sent_at));
        if id == 0 || !goes_on {
            set_id(&mut self.frame, id);
            check_answer(self.rx.slot(slot), &self.frame, self.mode)?;
        }
        Ok(goes_on)
    }

    /// Gives up what is under way for too long. Whether to go on.
    #[cold]
    fn look(&mut self, since: Instant, meter: &mut Meter<'_>) -> bool {
        if since.elapsed() <= LOST_AFTER {
            return true;
        }
        let lost = self.under_way();
        self.answered = self.sent;
        meter.lose(Instant::now(), lost.into())
    }
}

fn broken(device: &str, source: CompletionError) -> Error {
    Error::Transport(roce_transport::Error::Completion { device: device.to_owned(), port: 1, source })
}

fn post_failed(error: PostError) -> Error {
    Error::Raw { what: "a work request", source: std::io::Error::other(error) }
}
