//! A caller and a service with a link between them: one request at a time, as fast as it goes or at a fixed rate.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_dispatch::rpc::{HEADER_LEN, Request, Response, Status, function_id};
use roce_dispatch::{RingLoop, UnifiedLoop};
use roce_ring::SlotBytes;
use roce_soft::wire::{ICRC_LEN, Opcode, Operation, Position};
use roce_transport::{Config, ConfigBuilder, DeviceConfig, Mode, SpinPolicy, Transceiver, TxMode, Unified};

use super::meter::{Meter, Sample};
use super::place::Seats;
use super::plan::{Backend, Case, ServiceMode};
use super::trial::{Patience, Trial};
use crate::Error;
use crate::handlers::{self, RPC_INCREMENT};

/// Messages that are staged, or taken, at once in the throughput case.
pub(super) const BATCH: u32 = 16;

/// Where frames have the number of their request, in the header of a request and of an answer.
const ID_AT: usize = 12;

/// Waits until the next request is due.
#[derive(Debug)]
pub(super) struct Pacer {
    interval: Option<Duration>,
    due: Instant,
}

impl Pacer {
    /// `None`: requests are due at once.
    pub(super) fn new(rate: Option<u32>) -> Self {
        Self { interval: rate.map(|rate| Duration::from_secs(1) / rate.max(1)), due: Instant::now() }
    }

    /// When the next request was due, `now` at the earliest time that the caller knows of. A caller that is late
    /// gets a moment in the past: the wait counts.
    #[inline]
    pub(super) fn wait(&mut self, now: Instant) -> Instant {
        let Some(interval) = self.interval else { return now };
        self.due += interval;
        while Instant::now() < self.due {
            std::hint::spin_loop();
        }
        self.due
    }
}

impl Backend {
    /// Whether it is RoCEv2 in userspace.
    pub(super) fn is_soft(&self) -> bool {
        self.device == "soft" || self.device.starts_with("soft:")
    }

    /// Names of the caller's and the service's device, on addresses that nothing else of this machine uses where
    /// none are given.
    pub(super) fn devices(&self) -> (String, String) {
        if self.device == "soft" {
            let (caller, service) = unused_addresses();
            return (format!("soft:{caller}"), format!("soft:{service}"));
        }
        (self.device.clone(), self.peer.clone().unwrap_or_else(|| self.device.clone()))
    }

    /// Of a transceiver for frames of `frame` bytes on `device`, which is one of [`devices`](Self::devices).
    pub(super) fn config(&self, device: &str, pages: u32, frame: u32, spin: SpinPolicy) -> ConfigBuilder {
        let config =
            Config::builder(device).num_pages(pages).page_size(page_size(frame)).frame_size(frame).spin(spin);
        match self.faults {
            Some(faults) => config.faults(faults),
            None => config,
        }
    }

    /// The same of a bare device.
    pub(super) fn device_config(&self, device: &str) -> DeviceConfig {
        let mut config = DeviceConfig::new(device);
        config.faults = self.faults;
        config
    }
}

/// Two loopback addresses that no other process, and no other run of this one, uses at the same time.
fn unused_addresses() -> (Ipv4Addr, Ipv4Addr) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    let [.., run] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let address = |end| Ipv4Addr::new(127, end | high & 0x3F, low, run);
    (address(0x80), address(0xC0))
}

/// The address in the name of a soft device.
pub(super) fn soft_address(device: &str) -> Option<Ipv4Addr> {
    device.strip_prefix("soft:")?.parse().ok()
}

/// UDP payload bytes of a request of `frame` bytes, and of its answer.
pub(super) fn packet_lens(frame: u32) -> (usize, usize) {
    let padded = (frame as usize).next_multiple_of(4);
    let around = |operation, imm| Opcode::new(operation, Position::Only, imm).header_len() + ICRC_LEN;
    (padded + around(Operation::Write, true), padded + around(Operation::Send, false))
}

/// Bytes of a slot for frames of `frame` bytes, as FPGAs count them.
pub(super) fn page_size(frame: u32) -> u32 {
    frame.next_multiple_of(128)
}

/// The frame of a request: its payload is to come back one higher.
pub(super) fn request(frame: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..frame).map(|at| at.to_le_bytes()[0]).collect();
    let arg_len = frame - u32::try_from(HEADER_LEN).unwrap_or(0);
    let header =
        Request { function_id: function_id(RPC_INCREMENT), arg_len, request_id: 0, ptp_timestamp: 7 };
    header.emit(&mut bytes);
    bytes
}

/// Numbers the request.
#[inline]
pub(super) fn set_id(frame: &mut [u8], id: u32) {
    frame[ID_AT..ID_AT + 4].copy_from_slice(&id.to_le_bytes());
}

/// The number of the answer in a slot.
#[inline]
pub(super) fn id_of(slot: SlotBytes<'_>) -> u32 {
    u32::from_le_bytes(slot.read::<4>(ID_AT))
}

/// Whether the frame in `slot` is what the service has to make of `request`.
pub(super) fn check_answer(slot: SlotBytes<'_>, request: &[u8], mode: ServiceMode) -> Result<(), Error> {
    let mut answer = vec![0; request.len()];
    slot.copy_to(0, &mut answer);
    let is_right = if mode == ServiceMode::Forward {
        answer == request
    } else {
        let incremented = request[HEADER_LEN..].iter().map(|byte| byte.wrapping_add(1));
        Response::parse(&answer).is_ok_and(|response| response.status == Status::SUCCESS)
            && answer[HEADER_LEN..].iter().copied().eq(incremented)
    };
    if is_right { Ok(()) } else { Err(Error::WrongAnswer) }
}

pub(super) fn transceiver(config: ConfigBuilder) -> Result<Transceiver, Error> {
    Ok(Transceiver::new(config.build().map_err(|e| Error::Options(e.to_string()))?))
}

/// The service's end of the link.
#[derive(Debug)]
pub(super) struct Service {
    transceiver: Arc<Transceiver>,
    mode: ServiceMode,
    /// Answers that a unified service sends at once.
    batch: u32,
    seats: Seats,
}

impl Service {
    /// Set up, and connected with the caller's end.
    pub(super) fn connect(
        trial: &Trial<'_>,
        device: &str,
        pages: u32,
        caller: LocalEndpoint,
    ) -> Result<Self, Error> {
        let Trial { point, seats, .. } = *trial;
        let mode = match point.mode {
            ServiceMode::Unified => Mode::Unified,
            ServiceMode::Forward | ServiceMode::Shared => Mode::Forward,
            ServiceMode::Threads | ServiceMode::None => Mode::Threads,
        };
        let config = trial.backend.config(device, pages, point.frame, seats.spin);
        let mut config = config.mode(mode).tx_mode(TxMode::Send);
        if let Some(cpu) = seats.cpu(1) {
            config = config.rx_cpu(cpu);
        }
        if let Some(cpu) = seats.cpu(2) {
            config = config.tx_cpu(cpu);
        }
        let transceiver = Arc::new(transceiver(config)?);
        transceiver.setup()?;
        transceiver.connect(&peer_of(caller))?;
        let batch = if point.case == Case::Throughput { BATCH } else { 1 };
        Ok(Self { transceiver, mode: point.mode, batch, seats: seats.clone() })
    }

    pub(super) fn endpoint(&self) -> Result<LocalEndpoint, Error> {
        self.transceiver.endpoint().ok_or(Error::Taken)
    }

    pub(super) fn mtu(&self) -> Option<u32> {
        self.transceiver.path_mtu().map(|mtu| mtu.bytes())
    }

    /// Serves while `caller` runs on a thread of its own.
    pub(super) fn beside(
        &self,
        caller: impl FnOnce() -> Result<Sample, Error> + Send,
    ) -> Result<Sample, Error> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let monitor = (self.mode != ServiceMode::Unified)
                .then(|| scope.spawn(|| self.transceiver.blocking_monitor().map_err(Error::from)));
            let dispatcher =
                (self.mode != ServiceMode::Forward).then(|| scope.spawn(|| self.dispatch(&over)));
            let caller = scope.spawn(|| {
                self.seats.take(0)?;
                caller()
            });
            let sample = join(caller);
            over.store(true, Ordering::Relaxed);
            self.transceiver.close();
            dispatcher.map_or(Ok(()), join)?;
            monitor.map_or(Ok(()), join)?;
            Ok(Sample { mtu: self.mtu(), ..sample? })
        })
    }

    fn dispatch(&self, over: &AtomicBool) -> Result<(), Error> {
        let table = handlers::table(None)?;
        let spin = self.seats.spin;
        if self.mode == ServiceMode::Unified {
            self.seats.take(1)?;
            let link = self.transceiver.take_unified().ok_or(Error::Taken)?;
            return Ok(UnifiedLoop::new(link, table)?.answers_per_flush(self.batch).run(over, spin)?);
        }
        self.seats.take(3)?;
        let ends = self.transceiver.take_ends().ok_or(Error::Taken)?;
        RingLoop::new(ends.rx, ends.tx, table)?.run(over, spin);
        Ok(())
    }
}

pub(super) fn join<T>(thread: ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    thread.join().map_err(|_| Error::Panicked)?
}

pub(super) fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

/// Slots of the rings where one request is under way at a time.
const PAGES: u32 = 64;

/// One request at a time, at the point's rate.
pub(super) fn round_trips(trial: &Trial<'_>) -> Result<Sample, Error> {
    let Trial { backend, point, seats, .. } = *trial;
    let (ours, theirs) = backend.devices();
    let config = backend.config(&ours, PAGES, point.frame, seats.spin);
    let caller = transceiver(config.mode(Mode::Unified).tx_mode(TxMode::WriteWithImm))?;
    let service = Service::connect(trial, &theirs, PAGES, caller.setup()?)?;
    caller.connect(&peer_of(service.endpoint()?))?;
    let link = caller.take_unified().ok_or(Error::Taken)?;
    let mtu = service.mtu();
    let mut caller = Caller { link, frame: request(point.frame), mode: point.mode, spin: seats.spin };
    let sample = service.beside(|| {
        let meter = trial.meter(1);
        let meter = if point.case == Case::Jitter { meter.with_series() } else { meter };
        caller.run(Pacer::new(point.rate), meter)
    })?;
    Ok(Sample { mtu, ..sample })
}

/// The calling thread's end.
struct Caller {
    link: Unified,
    frame: Vec<u8>,
    mode: ServiceMode,
    spin: SpinPolicy,
}

impl Caller {
    fn run(&mut self, mut pacer: Pacer, mut meter: Meter<'_>) -> Result<Sample, Error> {
        let mut id = 0u32;
        let mut then = Instant::now();
        loop {
            then = pacer.wait(then);
            set_id(&mut self.frame, id);
            let slot = id % PAGES;
            self.link.tx_slot(slot).copy_from(0, &self.frame);
            self.link.tx_publish(slot)?;
            let answer = self.wait(id)?;
            let now = Instant::now();
            let goes_on = match answer {
                Some(_) => meter.record(now, nanos(now - then)),
                None => meter.lose(now, 1),
            };
            if let Some(slot) = answer
                && (id == 0 || !goes_on)
            {
                check_answer(self.link.rx_slot(slot), &self.frame, self.mode)?;
            }
            if !goes_on {
                return Ok(meter.finish());
            }
            id = id.wrapping_add(1);
            then = now;
        }
    }

    /// The slot of the answer; `None` when it is lost. An answer that comes after it was given up is passed over.
    #[inline]
    fn wait(&mut self, id: u32) -> Result<Option<u32>, Error> {
        let mut patience = Patience::new(self.spin);
        loop {
            if let Some(slot) = self.link.rx_poll()?
                && id_of(self.link.rx_slot(slot)) == id
            {
                return Ok(Some(slot));
            }
            if patience.is_over() {
                return Ok(None);
            }
        }
    }
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use roce_ring::{Geometry, MemoryOptions, Ring};

    use super::*;

    #[test]
    fn packets_are_as_long_as_those_of_the_link() {
        // BTH, RETH, immediate, payload, ICRC; BTH, payload, ICRC.
        assert_eq!(packet_lens(64), (12 + 16 + 4 + 64 + 4, 12 + 64 + 4));
        assert_eq!(packet_lens(33), packet_lens(36));
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let geometry = Geometry::new(1, 128, 40).unwrap();
        let ring = Ring::allocate(geometry, MemoryOptions::default()).unwrap();
        let request = request(40);
        let checked = |answer: &[u8], mode| {
            ring.slot(0).copy_from(0, answer);
            check_answer(ring.slot(0), &request, mode).is_ok()
        };
        let mut right = request.clone();
        right[HEADER_LEN..].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        let header = Response { status: Status::SUCCESS, result_len: 16, ..Response::default() };
        header.emit(&mut right);
        assert!(checked(&right, ServiceMode::Unified) && checked(&request, ServiceMode::Forward));
        assert!(!checked(&request, ServiceMode::Unified) && !checked(&right, ServiceMode::Forward));
        for at in HEADER_LEN..40 {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            assert!(!checked(&wrong, ServiceMode::Threads), "byte {at}");
        }
        let mut refused = right;
        Response { status: Status::UNKNOWN_FUNCTION, ..header }.emit(&mut refused);
        assert!(!checked(&refused, ServiceMode::Unified));
    }

    #[test]
    fn each_run_has_addresses_of_its_own() {
        let backend =
            Backend { device: "soft".to_owned(), peer: None, label: "soft".to_owned(), faults: None };
        let (a, b) = (backend.devices(), backend.devices());
        assert!(a.0 != a.1 && a.0 != b.0 && a.1 != b.1);
        assert!(soft_address(&a.0).is_some_and(|ip| ip.is_loopback()));
    }

    #[test]
    fn a_paced_request_is_timed_from_when_it_was_due() {
        let mut pacer = Pacer::new(Some(1000));
        let began = Instant::now();
        let first = pacer.wait(began);
        assert!(Instant::now() >= first);
        let late = began + Duration::from_millis(100);
        while Instant::now() < late {}
        assert_eq!(pacer.wait(late), first + Duration::from_millis(1), "late, and told so");
    }
}
