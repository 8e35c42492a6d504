//! The states of a transceiver, and the calls that lead from one to the next.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use roce_core::{
    CompletionError, Device, LocalEndpoint, Mtu, PeerEndpoint, QpAttr, RegionId, UcQp, UcRecv, UcSend,
    WireStats,
};
use roce_ring::{Consumer, MemoryOptions, Producer, Ring, RingError};

use crate::config::{Config, MemoryLock, Mode};
use crate::cpu::Placement;
use crate::device::AnyDevice;
use crate::ending::Ending;
use crate::error::{Error, text_of};
use crate::forward::ForwardLoop;
use crate::mover::Mover;
use crate::rx::{Gate, NoGate, RxLoop, RxPath, receive_of};
use crate::spin::SpinPolicy;
use crate::stats::{Counters, Stats};
use crate::tx::{Route, TxLoop, TxPath};
use crate::unified::Unified;

/// How far a transceiver has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Configured; nothing is open.
    Created,
    /// The queue pair is in INIT, the rings exist, all receives are posted.
    SetUp,
    /// The queue pair is in RTS; nothing moves messages yet.
    Connected,
    /// Threads move messages, or the caller's [`Unified`] does.
    Running,
    /// Stopped by an error, see [`Transceiver::error`].
    Failed,
    /// Closed; nothing is open any more.
    Closed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "not set up yet",
            Self::SetUp => "set up, not connected yet",
            Self::Connected => "connected, not running yet",
            Self::Running => "running",
            Self::Failed => "stopped by an error",
            Self::Closed => "closed",
        })
    }
}

/// What the threads of a transceiver, and its owner, see of each other.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The device and its port.
    at: (String, u8),
    /// Slots of a ring while it is open, 0 once it is stopped: one look tells both.
    open_slots: AtomicU32,
    error: OnceLock<Error>,
    pub(crate) counters: Counters,
    pub(crate) ending: Ending,
}

impl Shared {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            at: (config.device.name.clone(), config.device.port),
            open_slots: AtomicU32::new(config.geometry.num_pages()),
            error: OnceLock::new(),
            counters: Counters::default(),
            ending: Ending::default(),
        }
    }

    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.open_slots.load(Ordering::Relaxed) == 0
    }

    /// Whether it is not stopped and has that slot.
    #[inline]
    pub(crate) fn is_open_for(&self, slot: u32) -> bool {
        slot < self.open_slots.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        // Release: whoever sees the stop finds the error, by the fence in `stopped_by`.
        self.open_slots.store(0, Ordering::Release);
    }

    /// Why nothing goes on once it is stopped.
    #[cold]
    pub(crate) fn stopped_by(&self) -> Box<Error> {
        // Acquire, with the release in `stop`: the hot path looks at the slots relaxed.
        fence(Ordering::Acquire);
        Box::new(self.error().unwrap_or(Error::Closed))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn completion(&self, source: CompletionError) -> Box<Error> {
        let (device, port) = self.at.clone();
        Box::new(Error::Completion { device, port, source })
    }

    /// Keeps the first error. A closed transceiver and a bad argument are no failures of it.
    pub(crate) fn fail(&self, error: &Error) {
        if !matches!(error, Error::Closed | Error::Slot { .. } | Error::Length { .. }) {
            let _ = self.error.set(error.clone());
            self.stop();
        }
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.error.get().cloned()
    }
}

/// The consumer of what arrives and the producer of what leaves.
#[derive(Debug)]
pub struct RingEnds {
    /// Takes messages from the RX ring.
    pub rx: Consumer,
    /// Publishes messages in the TX ring.
    pub tx: Producer,
}

/// The queue pair, or its halves, in each state.
enum Phase<Q: UcQp> {
    Created,
    SetUp(Q),
    Connected { send: Q::Send, recv: Q::Recv, route: Route },
    Monitored,
    Unified,
    Closed,
}

/// What exists from set-up to close.
struct Parts {
    endpoint: LocalEndpoint,
    path_mtu: Mtu,
    rx_ring: Arc<Ring>,
    tx_ring: Arc<Ring>,
    ours: Option<(Producer, Consumer)>,
    theirs: Option<RingEnds>,
}

struct Inner<Q: UcQp> {
    phase: Phase<Q>,
    parts: Option<Parts>,
}

type Opener<D> = Box<dyn Fn(&Config) -> Result<D, <D as Device>::Error> + Send + Sync>;

/// Two rings, one UC queue pair, and what moves messages between them. See the crate's page.
///
/// All calls take `&self` and may come from any thread; put it in an [`Arc`]. Dropping it closes it.
pub struct Transceiver<D: Device = AnyDevice> {
    config: Config,
    open: Opener<D>,
    inner: Mutex<Inner<D::Qp>>,
    wire: OnceLock<Arc<dyn WireStats>>,
    shared: Arc<Shared>,
}

impl Transceiver {
    /// Keeps the configuration; opens nothing.
    pub fn new(config: Config) -> Self {
        Self::with_device(config, |config| AnyDevice::open(&config.device))
    }
}

impl<D: Device> fmt::Debug for Transceiver<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transceiver")
            .field("config", &self.config)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl<D: Device> Transceiver<D> {
    /// As [`Transceiver::new`], on a link of your own, which `open` opens at set-up.
    pub fn with_device(
        config: Config,
        open: impl Fn(&Config) -> Result<D, D::Error> + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::new(&config));
        Self {
            config,
            open: Box::new(open),
            inner: Mutex::new(Inner { phase: Phase::Created, parts: None }),
            wire: OnceLock::new(),
            shared,
        }
    }

    /// What it was made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Opens the device, allocates and registers the rings, brings the queue pair to INIT and posts all
    /// receives. What it returns is for the peer. Set up already: returns the same again. A failure leaves
    /// nothing behind, and set-up may be tried again.
    pub fn setup(&self) -> Result<LocalEndpoint, Error> {
        let mut inner = self.lock();
        match (&inner.phase, &inner.parts) {
            (Phase::Closed, _) => Err(Error::Closed),
            (_, Some(parts)) => Ok(parts.endpoint),
            _ => {
                let (qp, parts) = self.build()?;
                let endpoint = parts.endpoint;
                *inner = Inner { phase: Phase::SetUp(qp), parts: Some(parts) };
                Ok(endpoint)
            }
        }
    }

    /// Adopts the peer and brings the queue pair to RTR and RTS. Connected already: does nothing. After a
    /// failure the transceiver is still set up, and connect may be tried again.
    pub fn connect(&self, peer: &PeerEndpoint) -> Result<(), Error> {
        let mut inner = self.lock();
        match inner.phase {
            Phase::SetUp(_) => {}
            Phase::Created => return Err(Error::State { call: "connect", state: State::Created }),
            Phase::Connected { .. } | Phase::Monitored | Phase::Unified => {
                return match self.shared.error.get() {
                    None => Ok(()),
                    Some(_) => Err(Error::State { call: "connect", state: State::Failed }),
                };
            }
            Phase::Closed => return Err(Error::Closed),
        }
        let route = Route::new(self.config.tx_mode, self.config.peer_rx_base, peer.rkey)?;
        let Phase::SetUp(qp) = std::mem::replace(&mut inner.phase, Phase::Created) else {
            unreachable!("checked above, under the same lock");
        };
        match qp.connect(peer) {
            Ok((send, recv)) => {
                inner.phase = Phase::Connected { send, recv, route };
                Ok(())
            }
            Err(refused) => {
                inner.phase = Phase::SetUp(refused.qp);
                Err(Error::Connect { qpn: peer.qpn, ip: peer.ip, source: Arc::new(refused.error) })
            }
        }
    }

    /// Set-up, and connect to the peer of the configuration.
    pub fn start(&self) -> Result<LocalEndpoint, Error> {
        let peer = self.config.peer.ok_or(Error::NoPeer)?;
        let endpoint = self.setup()?;
        self.connect(&peer)?;
        Ok(endpoint)
    }

    /// Starts the threads of the mode and returns when they have ended: `Ok` after [`close`](Self::close),
    /// else the first error. In unified mode, before connect or when running already it returns
    /// [`Error::State`] at once.
    pub fn blocking_monitor(&self) -> Result<(), Error> {
        let workers = self.begin("blocking_monitor", |recv| recv)?;
        let result = self.run_threads(workers);
        if let Err(e) = &result {
            self.shared.fail(e);
        }
        self.shared.ending.tell(Vec::new());
        result
    }

    /// Ends the threads, or the part in a [`SharedPoller`](crate::SharedPoller), waits for that, and releases
    /// everything. Any thread, any number of times. A [`Unified`] refuses from here on, and releases the queue pair
    /// when it is dropped.
    pub fn close(&self) {
        self.shared.stop();
        let mut inner = self.lock();
        if matches!(inner.phase, Phase::Monitored) {
            drop(inner);
            self.shared.ending.collect();
            inner = self.lock();
        }
        // Looked at and replaced under one lock, so that nobody begins to move messages in between.
        *inner = Inner { phase: Phase::Closed, parts: None };
    }

    /// How far it has come.
    pub fn state(&self) -> State {
        self.state_in(&self.lock().phase)
    }

    fn state_in(&self, phase: &Phase<D::Qp>) -> State {
        match phase {
            Phase::Created => State::Created,
            Phase::SetUp(_) => State::SetUp,
            Phase::Connected { .. } => State::Connected,
            Phase::Monitored | Phase::Unified if self.shared.error.get().is_none() => State::Running,
            Phase::Monitored | Phase::Unified => State::Failed,
            Phase::Closed => State::Closed,
        }
    }

    /// The first error that stopped it, if one did.
    pub fn error(&self) -> Option<Error> {
        self.shared.error()
    }

    /// What it has counted so far.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.shared.counters, self.wire.get().map(|w| w.snapshot()).unwrap_or_default())
    }

    /// Our end, for the peer; from set-up to close.
    pub fn endpoint(&self) -> Option<LocalEndpoint> {
        self.lock().parts.as_ref().map(|p| p.endpoint)
    }

    /// Payload bytes per packet; from set-up to close.
    pub fn path_mtu(&self) -> Option<Mtu> {
        self.lock().parts.as_ref().map(|p| p.path_mtu)
    }

    /// The RX ring, for foreign code that handles its flags itself; from set-up to close.
    pub fn rx_ring(&self) -> Option<Arc<Ring>> {
        self.lock().parts.as_ref().map(|p| Arc::clone(&p.rx_ring))
    }

    /// The TX ring, for foreign code that handles its flags itself; from set-up to close.
    pub fn tx_ring(&self) -> Option<Arc<Ring>> {
        self.lock().parts.as_ref().map(|p| Arc::clone(&p.tx_ring))
    }

    /// Your ends of the rings; once, from set-up to close.
    pub fn take_ends(&self) -> Option<RingEnds> {
        self.lock().parts.as_mut()?.theirs.take()
    }

    /// The transceiver for your one thread; once, when connected in unified mode.
    pub fn take_unified(&self) -> Option<Unified<D::Qp>> {
        if self.config.mode != Mode::Unified {
            return None;
        }
        let mut inner = self.lock();
        let parts = inner.parts.as_ref()?;
        let rings = (Arc::clone(&parts.rx_ring), Arc::clone(&parts.tx_ring));
        match std::mem::replace(&mut inner.phase, Phase::Unified) {
            Phase::Connected { send, recv, route } => Some(Unified::new(
                self.rx_path(recv, Arc::clone(&rings.1), &rings.0),
                self.tx_path(send, route),
                rings,
                Arc::clone(&self.shared),
            )),
            other => {
                inner.phase = other;
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<D::Qp>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn build(&self) -> Result<(D::Qp, Parts), Error> {
        let rx_ring = self.allocate_ring()?;
        let tx_ring = self.allocate_ring()?;
        let geometry = self.config.geometry;
        let attr = QpAttr {
            rx: rx_ring.data(),
            tx: tx_ring.data(),
            send_depth: geometry.num_pages(),
            recv_depth: geometry.num_pages(),
            mtu: self.config.mtu,
        };
        let device = (self.open)(&self.config).map_err(|e| self.device_error(e))?;
        let mut qp = device.create_qp(&attr).map_err(|e| self.device_error(e))?;
        if self.config.mode != Mode::TxOnly {
            for slot in 0..geometry.num_pages() {
                qp.post_recv(receive_of(geometry, slot)).map_err(Error::receive)?;
            }
        }
        let _ = self.wire.set(qp.wire_stats());
        let (rx_producer, rx_consumer) = rx_ring.split().expect("a ring just made");
        let (tx_producer, tx_consumer) = tx_ring.split().expect("a ring just made");
        let parts = Parts {
            endpoint: LocalEndpoint { qpn: qp.qpn(), rkey: qp.rkey(), ip: qp.local_ip() },
            path_mtu: qp.path_mtu(),
            rx_ring,
            tx_ring,
            ours: Some((rx_producer, tx_consumer)),
            theirs: Some(RingEnds { rx: rx_consumer, tx: tx_producer }),
        };
        Ok((qp, parts))
    }

    fn allocate_ring(&self) -> Result<Arc<Ring>, RingError> {
        let options = MemoryOptions { hugepages: self.config.hugepages, ..MemoryOptions::default() };
        let ring = Ring::allocate(self.config.geometry, options)?;
        match self.config.memory_lock {
            MemoryLock::Off => {}
            MemoryLock::Require => ring.lock_memory()?,
            MemoryLock::Try => {
                if let Err(e) = ring.lock_memory() {
                    tracing::warn!("{e}");
                }
            }
        }
        Ok(ring)
    }

    fn device_error(&self, source: D::Error) -> Error {
        Error::Device { device: self.config.device.name.clone(), source: Arc::new(source) }
    }

    fn rx_path<R: UcRecv, G: Gate>(&self, recv: R, gate: G, rx_ring: &Arc<Ring>) -> RxPath<R, G> {
        RxPath::new(recv, gate, &self.config, rx_ring, Arc::clone(&self.shared))
    }

    fn tx_path<S: UcSend>(&self, send: S, route: Route) -> TxPath<S> {
        // What is forwarded leaves from where it landed.
        let region = if self.config.mode == Mode::Forward { RegionId::Rx } else { RegionId::Tx };
        TxPath::new(send, &self.config, (region, route), Arc::clone(&self.shared))
    }

    /// Takes the halves out of the state and gives what moves the messages of the mode. `share` makes of the receiving
    /// half what it has to be beside others.
    pub(crate) fn begin<R: UcRecv>(
        &self,
        call: &'static str,
        share: impl FnOnce(<D::Qp as UcQp>::Recv) -> R,
    ) -> Result<Vec<Worker>, Error> {
        let mut inner = self.lock();
        if self.config.mode == Mode::Unified || !matches!(inner.phase, Phase::Connected { .. }) {
            return Err(match self.state_in(&inner.phase) {
                State::Closed => Error::Closed,
                state => Error::State { call, state },
            });
        }
        let Phase::Connected { send, recv, route } = std::mem::replace(&mut inner.phase, Phase::Monitored)
        else {
            unreachable!("checked above, under the same lock");
        };
        let recv = share(recv);
        let parts = inner.parts.as_mut().expect("connected, so set up");
        let (rx_producer, tx_consumer) = parts.ours.take().expect("only this takes them, and only once");
        let (qpn, rx_ring) = (parts.endpoint.qpn, &parts.rx_ring);
        let worker = |kind: &str, cpu, mover| Worker {
            name: format!("roce-{kind}-{:x}", qpn.get()),
            placement: Placement { cpu, rt_priority: self.config.rt_priority },
            spin: self.config.spin,
            mover,
        };
        let rx = |recv| {
            let path = self.rx_path(recv, rx_producer, rx_ring);
            worker("rx", self.config.rx_cpu, Box::new(RxLoop::new(path, self.config.overrun)))
        };
        let tx = |send| {
            let path = self.tx_path(send, route);
            worker("tx", self.config.tx_cpu, Box::new(TxLoop::new(path, tx_consumer)))
        };
        Ok(match self.config.mode {
            Mode::Threads => vec![rx(recv), tx(send)],
            Mode::RxOnly => vec![rx(recv)],
            Mode::TxOnly => vec![tx(send)],
            Mode::Forward => {
                let forward =
                    ForwardLoop::new(self.rx_path(recv, NoGate, rx_ring), self.tx_path(send, route));
                vec![worker("fwd", self.config.rx_cpu, Box::new(forward))]
            }
            Mode::Unified => unreachable!("refused above"),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn run_threads(&self, workers: Vec<Worker>) -> Result<(), Error> {
        let mut threads = Vec::with_capacity(workers.len());
        let mut result = Ok(());
        for worker in workers {
            match worker.spawn(Arc::clone(&self.shared)) {
                Ok(thread) => threads.push(thread),
                Err(e) => {
                    self.shared.stop();
                    result = result.and(Err(e));
                }
            }
        }
        for thread in threads {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            let ended =
                thread.join().unwrap_or_else(|panic| Err(Error::Panic { name, message: text_of(&*panic) }));
            result = result.and(ended);
        }
        // The error kept is the one that came first; another thread may only have followed it.
        match self.shared.error() {
            Some(first) => Err(first),
            None => result,
        }
    }
}

impl<D: Device> Drop for Transceiver<D> {
    fn drop(&mut self) {
        self.close();
    }
}

/// A thread to be, or a part of one.
pub(crate) struct Worker {
    name: String,
    placement: Placement,
    spin: SpinPolicy,
    pub(crate) mover: Box<dyn Mover>,
}

impl Worker {
    fn spawn(self, shared: Arc<Shared>) -> Result<JoinHandle<Result<(), Error>>, Error> {
        let Self { name, placement, spin, mover } = self;
        thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                // Whatever ends this thread, a panic too, ends the others.
                let stop = StopOnExit(shared);
                placement.apply().and_then(|()| mover.run(spin, &stop.0)).inspect_err(|e| stop.0.fail(e))
            })
            .map_err(|source| Error::Thread { name, source: Arc::new(source) })
    }
}

struct StopOnExit(Arc<Shared>);

impl Drop for StopOnExit {
    fn drop(&mut self) {
        self.0.stop();
    }
}
