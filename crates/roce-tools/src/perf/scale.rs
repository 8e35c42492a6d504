//! Many transceivers in one process, which send back what they get: under a shared poller, or with a thread each.
//!
//! The caller's own cost does not depend on their number: requests go to one after the other, and it polls the one
//! alone whose answer is due next.

use std::collections::VecDeque;
use std::thread;
use std::time::Instant;

use roce_transport::{
    MemoryLock, Mode, PollerOptions, SharedPoller, SpinPolicy, Transceiver, TxMode, Unified,
};

use super::meter::{Meter, Sample};
use super::place::Seats;
use super::plan::{Many, Point, ServiceMode};
use super::trial::{Patience, Trial};
use super::wire::{check_answer, id_of, join, nanos, peer_of, request, set_id, transceiver};
use crate::Error;

/// As many requests under way as the point's depth, over all transceivers together.
pub(super) fn round_trips(trial: &Trial<'_>) -> Result<Sample, Error> {
    let Trial { point, seats, .. } = *trial;
    let many = point.many.unwrap_or(Many::SINGLE);
    let (ours, theirs) = trial.backend.devices();
    let links = (0..many.transceivers)
        .map(|index| Link::connect(trial, (&ours, &theirs), many, index as usize))
        .collect::<Result<Vec<Link>, Error>>()?;
    let mtu = links.first().and_then(|link| link.service.path_mtu()).map(|mtu| mtu.bytes());
    let (services, ends): (Vec<Transceiver>, Vec<(Transceiver, Unified)>) =
        links.into_iter().map(|link| (link.service, (link.caller, link.end))).unzip();
    let mut caller = Caller {
        ends,
        pages: many.pages,
        frame: request(point.frame),
        depth: point.depth as usize,
        spin: seats.spin,
        next: 0,
        under_way: VecDeque::with_capacity(point.depth as usize),
    };
    let call = || caller.run(trial.meter(1));
    let sample = if point.mode == ServiceMode::Shared {
        beside_poller(&services, seats, call)
    } else {
        beside_threads(&services, seats, call)
    };
    Ok(Sample { mtu, ..sample? })
}

/// The same for one transceiver with a thread of its own.
pub(super) fn single(trial: &Trial<'_>) -> Result<Sample, Error> {
    let point = Point { mode: ServiceMode::Forward, many: Some(Many::SINGLE), ..*trial.point };
    round_trips(&Trial { point: &point, ..*trial })
}

fn beside_poller(
    services: &[Transceiver],
    seats: &Seats,
    call: impl FnOnce() -> Result<Sample, Error> + Send,
) -> Result<Sample, Error> {
    let options = PollerOptions { spin: seats.spin, cpu: seats.cpu(1), ..PollerOptions::default() };
    let poller = SharedPoller::start(options)?;
    let monitors = services
        .iter()
        .map(|service| poller.add(service))
        .collect::<Result<Vec<_>, roce_transport::Error>>()?;
    let sample = thread::scope(|scope| join(scope.spawn(|| seats.take(0).and_then(|()| call()))));
    services.iter().for_each(Transceiver::close);
    monitors.iter().try_for_each(|monitor| monitor.wait())?;
    sample
}

fn beside_threads(
    services: &[Transceiver],
    seats: &Seats,
    call: impl FnOnce() -> Result<Sample, Error> + Send,
) -> Result<Sample, Error> {
    thread::scope(|scope| {
        let monitors: Vec<_> = services
            .iter()
            .map(|service| scope.spawn(|| service.blocking_monitor().map_err(Error::from)))
            .collect();
        let sample = join(scope.spawn(|| seats.take(0).and_then(|()| call())));
        services.iter().for_each(Transceiver::close);
        monitors.into_iter().try_for_each(join)?;
        sample
    })
}

/// Both ends of a link.
struct Link {
    caller: Transceiver,
    end: Unified,
    service: Transceiver,
}

impl Link {
    fn connect(
        trial: &Trial<'_>,
        (ours, theirs): (&str, &str),
        many: Many,
        index: usize,
    ) -> Result<Self, Error> {
        let seats = trial.seats;
        let shaped = |device: &str| {
            let config = trial.backend.config(device, many.pages, trial.point.frame, seats.spin);
            // The limit of a user's locked memory is soon reached by so many rings.
            config.memory_lock(MemoryLock::Off)
        };
        let mut service = shaped(theirs).mode(Mode::Forward).tx_mode(TxMode::Send);
        if let Some(cpu) = seats.cpu(1 + index) {
            service = service.rx_cpu(cpu);
        }
        let caller = transceiver(shaped(ours).mode(Mode::Unified).tx_mode(TxMode::WriteWithImm))?;
        let service = transceiver(service)?;
        let (at_caller, at_service) = (caller.setup()?, service.setup()?);
        caller.connect(&peer_of(at_service))?;
        service.connect(&peer_of(at_caller))?;
        let end = caller.take_unified().ok_or(Error::Taken)?;
        Ok(Self { caller, end, service })
    }
}

/// The calling thread's ends.
struct Caller {
    ends: Vec<(Transceiver, Unified)>,
    pages: u32,
    frame: Vec<u8>,
    depth: usize,
    spin: SpinPolicy,
    /// The number of the next request.
    next: u32,
    /// Number and start of those that are not answered, the oldest first.
    under_way: VecDeque<(u32, Instant)>,
}

impl Caller {
    fn run(&mut self, mut meter: Meter<'_>) -> Result<Sample, Error> {
        let mut now = Instant::now();
        loop {
            while self.under_way.len() < self.depth {
                self.ask(now)?;
            }
            let Some((id, asked)) = self.under_way.pop_front() else { return Ok(meter.finish()) };
            let answer = self.wait(id)?;
            now = Instant::now();
            let goes_on = match answer {
                Some(_) => meter.record(now, nanos(now - asked)),
                None => meter.lose(now, 1),
            };
            if let Some(slot) = answer
                && (!goes_on || (id as usize) < self.ends.len())
            {
                self.check(id, slot)?;
            }
            if !goes_on {
                return Ok(meter.finish());
            }
        }
    }

    /// Who gets a request, and in which slot.
    #[inline]
    fn place(&self, id: u32) -> (usize, u32) {
        let (id, ends) = (id as usize, self.ends.len());
        (id % ends, u32::try_from(id / ends).unwrap_or(0) % self.pages)
    }

    fn ask(&mut self, now: Instant) -> Result<(), Error> {
        let id = self.next;
        let (at, slot) = self.place(id);
        set_id(&mut self.frame, id);
        let end = &mut self.ends[at].1;
        end.tx_slot(slot).copy_from(0, &self.frame);
        end.tx_publish(slot)?;
        self.under_way.push_back((id, now));
        self.next = id.wrapping_add(1);
        Ok(())
    }

    #[cold]
    fn check(&mut self, id: u32, slot: u32) -> Result<(), Error> {
        let (at, _) = self.place(id);
        set_id(&mut self.frame, id);
        check_answer(self.ends[at].1.rx_slot(slot), &self.frame, ServiceMode::Forward)
    }

    /// The slot of the answer; `None` when it is lost.
    #[inline]
    fn wait(&mut self, id: u32) -> Result<Option<u32>, Error> {
        let (at, _) = self.place(id);
        let end = &mut self.ends[at].1;
        let mut patience = Patience::new(self.spin);
        loop {
            if let Some(slot) = end.rx_poll()?
                && id_of(end.rx_slot(slot)) == id
            {
                return Ok(Some(slot));
            }
            if patience.is_over() {
                return Ok(None);
            }
        }
    }
}
