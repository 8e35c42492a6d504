//! One caller: its transceiver, its rings, the threads that serve it.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use roce_core::PeerEndpoint;
use roce_dispatch::rpc::HEADER_LEN;
use roce_dispatch::{DispatchCounts, DispatchError, DispatchStats, FunctionTable, RingLoop, UnifiedLoop};
use roce_rendezvous::{Geometry, Offer, TxMode as OfferedTxMode};
use roce_transport::{Error as TransportError, Mode, SpinPolicy, Stats, Transceiver, TxMode};
use tracing::warn;

use super::{LEAVE, ServiceConfig};
use crate::{Error, handlers};

/// A transceiver that is set up, and what it will serve.
#[derive(Debug)]
pub(super) struct Prepared {
    transceiver: Arc<Transceiver>,
    offer: Offer,
    table: FunctionTable,
    has_left: Arc<AtomicBool>,
}

impl Prepared {
    pub(super) fn new(config: &ServiceConfig) -> Result<Self, Error> {
        let frame_size = config.transceiver.geometry().frame_size();
        if (frame_size as usize) < HEADER_LEN {
            return Err(DispatchError::FrameTooSmall { frame_size }.into());
        }
        let has_left = Arc::new(AtomicBool::new(false));
        let table = table(config, Arc::clone(&has_left))?;
        let transceiver = Arc::new(Transceiver::new(config.transceiver.clone()));
        let offer = offer_of(&transceiver)?;
        Ok(Self { transceiver, offer, table, has_left })
    }

    pub(super) fn ip(&self) -> Ipv4Addr {
        self.offer.ip
    }

    pub(super) fn offer(&self) -> &Offer {
        &self.offer
    }

    pub(super) fn transceiver(&self) -> Arc<Transceiver> {
        Arc::clone(&self.transceiver)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.transceiver.state() != roce_transport::State::SetUp
    }

    /// Starts the threads.
    pub(super) fn serve(self, endpoint: PeerEndpoint, spin: SpinPolicy) -> Result<Peer, Error> {
        let Self { transceiver, table, has_left, .. } = self;
        let run = Run { transceiver, stop: Arc::default(), spin, name: name_of(&endpoint) };
        let (stats, threads) = match run.transceiver.config().mode() {
            Mode::Unified => run.unified(table)?,
            _ => run.ring(table)?,
        };
        Ok(Peer { run, endpoint, stats, threads, has_left, received: 0, last_heard: Instant::now() })
    }
}

/// Sets a transceiver up, and offers it with its rings' shape.
pub(crate) fn offer_of(transceiver: &Transceiver) -> Result<Offer, TransportError> {
    let offer = Offer::from(transceiver.setup()?);
    let (shape, config) = (transceiver.config().geometry(), transceiver.config());
    let Some(mtu) = transceiver.path_mtu() else { return Ok(offer) };
    Ok(offer.with_geometry(Geometry {
        slots: shape.num_pages(),
        slot_size: shape.page_size(),
        frame_size: shape.frame_size(),
        mtu,
        tx_mode: match config.tx_mode() {
            TxMode::Send => OfferedTxMode::Send,
            TxMode::WriteWithImm => OfferedTxMode::WriteWithImm,
        },
    }))
}

fn table(config: &ServiceConfig, has_left: Arc<AtomicBool>) -> Result<FunctionTable, Error> {
    let mut table = handlers::table(config.graph.as_ref())?;
    table.register(LEAVE, move |_, _| {
        has_left.store(true, Ordering::Relaxed);
        Ok(0)
    })?;
    for plugin in &config.plugins {
        plugin.register(&mut table)?;
    }
    Ok(table)
}

fn name_of(endpoint: &PeerEndpoint) -> String {
    format!("{}:{:#x}", endpoint.ip, endpoint.qpn.get())
}

/// What the threads of a caller share.
#[derive(Debug, Clone)]
struct Run {
    transceiver: Arc<Transceiver>,
    stop: Arc<AtomicBool>,
    spin: SpinPolicy,
    name: String,
}

type Started = (DispatchStats, Vec<JoinHandle<()>>);

impl Run {
    fn unified(&self, table: FunctionTable) -> Result<Started, Error> {
        let link = self.transceiver.take_unified().ok_or(Error::Taken)?;
        let mut serving = UnifiedLoop::new(link, table)?;
        let stats = serving.stats();
        let run = self.clone();
        let dispatcher = spawn("roce-dispatch", move || {
            let ended = serving.run(&run.stop, run.spin);
            run.end(ended);
        })?;
        Ok((stats, vec![dispatcher]))
    }

    fn ring(&self, table: FunctionTable) -> Result<Started, Error> {
        let ends = self.transceiver.take_ends().ok_or(Error::Taken)?;
        let mut serving = RingLoop::new(ends.rx, ends.tx, table)?;
        let stats = serving.stats();
        let run = self.clone();
        let monitor = spawn("roce-monitor", move || {
            let ended = run.transceiver.blocking_monitor();
            run.end(ended);
        })?;
        let run = self.clone();
        let dispatcher = spawn("roce-dispatch", move || {
            serving.run(&run.stop, run.spin);
            run.end(Ok(()));
        });
        // Without a dispatcher nobody would end the monitor.
        let dispatcher = dispatcher.inspect_err(|_| self.end(Ok(())))?;
        Ok((stats, vec![monitor, dispatcher]))
    }

    /// However a thread ends, the others end too.
    fn end(&self, ended: Result<(), TransportError>) {
        match ended {
            Ok(()) | Err(TransportError::Closed) => {}
            Err(error) => warn!("{} is let go: {error}", self.name),
        }
        self.stop.store(true, Ordering::Relaxed);
        self.transceiver.close();
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(Error::Thread)
}

/// A caller that is served.
pub(super) struct Peer {
    run: Run,
    endpoint: PeerEndpoint,
    stats: DispatchStats,
    threads: Vec<JoinHandle<()>>,
    has_left: Arc<AtomicBool>,
    /// Messages at the last look.
    received: u64,
    last_heard: Instant,
}

impl Peer {
    pub(super) fn name(&self) -> &str {
        &self.run.name
    }

    pub(super) fn endpoint(&self) -> PeerEndpoint {
        self.endpoint
    }

    /// Notes whether it has been heard of since the last look.
    pub(super) fn look(&mut self) {
        let received = self.counts().1.received;
        if received != self.received {
            self.received = received;
            self.last_heard = Instant::now();
        }
    }

    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.run.stop.load(Ordering::Relaxed)
    }

    /// Ends its threads, and does not wait for a handler that takes its time.
    pub(super) fn stop(&self) {
        self.run.end(Ok(()));
    }

    /// Whether its threads have ended.
    pub(super) fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    pub(super) fn counts(&self) -> (DispatchCounts, Stats) {
        (self.stats.snapshot(), self.run.transceiver.stats())
    }

    /// Waits for its threads; returns what they counted.
    pub(super) fn join(self) -> (DispatchCounts, Stats) {
        let counts = self.counts();
        for thread in self.threads {
            if thread.join().is_err() {
                warn!("a thread that served {} panicked; what it said stands above", self.run.name);
            }
        }
        counts
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("run", &self.run).field("stats", &self.stats).finish_non_exhaustive()
    }
}
