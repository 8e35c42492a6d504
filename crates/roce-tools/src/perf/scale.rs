//! Many transceivers in one process, which send back what they get: under a shared poller, or with a thread each.
//!
//! The caller's own cost does not depend on their number: requests go to one after the other, and it polls the one
//! alone whose answer is due next.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Instant;

use roce_transport::{
    Backoff, Config, ConfigBuilder, MemoryLock, Mode, PollerOptions, SharedPoller, SpinPolicy, Transceiver,
    TxMode, Unified,
};

use super::meter::{Meter, Sample};
use super::place::Seats;
use super::plan::{Backend, Budget, Many, Point, ServiceMode};
use super::wire::{
    LOOK_EVERY, LOST_AFTER, check_answer, id_of, join, nanos, page_size, peer_of, request, set_id,
};
use crate::Error;

/// As many requests under way as the point's depth, over all transceivers together.
pub(super) fn round_trips(
    backend: &Backend,
    point: &Point,
    many: Many,
    seats: &Seats,
    budget: Budget,
    stop: &AtomicBool,
) -> Result<Sample, Error> {
    let (ours, theirs) = backend.devices();
    let links = (0..many.transceivers)
        .map(|index| Link::connect((&ours, &theirs), point, many, seats, index as usize))
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
    let call = || caller.run(Meter::new(budget, 1, stop));
    let sample = if point.mode == ServiceMode::Shared {
        beside_poller(&services, seats, call)
    } else {
        beside_threads(&services, seats, call)
    };
    Ok(Sample { mtu, ..sample? })
}

/// The same for one transceiver with a thread of its own.
pub(super) fn single(
    backend: &Backend,
    point: &Point,
    seats: &Seats,
    budget: Budget,
    stop: &AtomicBool,
) -> Result<Sample, Error> {
    let single = Point { mode: ServiceMode::Forward, ..*point };
    round_trips(backend, &single, Many::SINGLE, seats, budget, stop)
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
        (ours, theirs): (&str, &str),
        point: &Point,
        many: Many,
        seats: &Seats,
        index: usize,
    ) -> Result<Self, Error> {
        let shaped = |device: &str| {
            // The limit of a user's locked memory is soon reached by so many rings.
            Config::builder(device)
                .num_pages(many.pages)
                .page_size(page_size(point.frame))
                .frame_size(point.frame)
                .memory_lock(MemoryLock::Off)
                .spin(seats.spin)
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

fn transceiver(config: ConfigBuilder) -> Result<Transceiver, Error> {
    Ok(Transceiver::new(config.build().map_err(|e| Error::Options(e.to_string()))?))
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
            let is_answered = self.wait(id, asked)?;
            now = Instant::now();
            let goes_on =
                if is_answered { meter.record(now, nanos(now - asked)) } else { meter.lose(now, 1) };
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

    /// Whether it is answered; `false` when it is lost.
    #[inline]
    fn wait(&mut self, id: u32, since: Instant) -> Result<bool, Error> {
        let is_first = (id as usize) < self.ends.len();
        let (at, _) = self.place(id);
        let end = &mut self.ends[at].1;
        let mut backoff = Backoff::new(self.spin);
        let mut polls = 0u32;
        loop {
            if let Some(slot) = end.rx_poll()?
                && id_of(end.rx_slot(slot)) == id
            {
                if is_first {
                    set_id(&mut self.frame, id);
                    check_answer(end.rx_slot(slot), &self.frame, ServiceMode::Forward)?;
                }
                return Ok(true);
            }
            backoff.idle();
            polls += 1;
            if polls.is_multiple_of(LOOK_EVERY) && since.elapsed() > LOST_AFTER {
                return Ok(false);
            }
        }
    }
}
