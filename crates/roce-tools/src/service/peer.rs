//! One caller: its transceiver, its rings, the threads that serve it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roce_core::PeerEndpoint;
use roce_dispatch::rpc::HEADER_LEN;
use roce_dispatch::{DispatchCounts, DispatchError, DispatchStats, FunctionTable, RingLoop, UnifiedLoop};
use roce_rendezvous::socket::Lease;
use roce_rendezvous::{Geometry, Offer, TxMode as OfferedTxMode};
use roce_transport::{Error as TransportError, Mode, SpinPolicy, Stats, Transceiver, TxMode};
use tokio::task::{AbortHandle, spawn_blocking};
use tracing::{info, warn};

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

    pub(super) fn offer(&self) -> Offer {
        self.offer
    }

    pub(super) fn transceiver(&self) -> Arc<Transceiver> {
        Arc::clone(&self.transceiver)
    }

    /// Starts the threads, and lets them go when the lease ends.
    pub(super) fn serve(
        self,
        endpoint: PeerEndpoint,
        lease: Option<Lease>,
        config: &ServiceConfig,
    ) -> Result<Peer, Error> {
        let Self { transceiver, table, has_left, .. } = self;
        let ServiceConfig { spin, answers_per_flush, .. } = *config;
        let (stop, name) = (Arc::default(), name_of(&endpoint));
        let run = Run { transceiver, stop, lease: Arc::default(), spin, answers_per_flush, name };
        if let Some(lease) = lease {
            run.hold(lease);
        }
        let started = match run.transceiver.config().mode() {
            Mode::Unified => run.unified(table),
            _ => run.ring(table),
        };
        // Those that were started end too.
        let (stats, threads) = started.inspect_err(|_| run.let_go())?;
        Ok(Peer { run, endpoint, stats, threads, has_left, received: 0, last_heard: Instant::now() })
    }
}

/// Sets a transceiver up, and offers it with its rings' shape and a lease.
pub(crate) fn offer_of(transceiver: &Transceiver) -> Result<Offer, TransportError> {
    let offer = Offer::from(transceiver.setup()?).with_lease(true);
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
    /// The task that waits for the end of its lease, if it has one.
    lease: Arc<OnceLock<AbortHandle>>,
    spin: SpinPolicy,
    answers_per_flush: u32,
    name: String,
}

type Started = (DispatchStats, Vec<JoinHandle<()>>);

impl Run {
    /// Ends the threads when the lease does.
    fn hold(&self, mut lease: Lease) {
        let run = self.clone();
        let holder = tokio::spawn(async move {
            let end = lease.ended().await;
            info!("{} is let go: {end}", run.name);
            run.let_go();
        });
        let _ = self.lease.set(holder.abort_handle());
    }

    fn unified(&self, table: FunctionTable) -> Result<Started, Error> {
        let link = self.transceiver.take_unified().ok_or(Error::Taken)?;
        let mut serving = UnifiedLoop::new(link, table)?.answers_per_flush(self.answers_per_flush);
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
        })?;
        Ok((stats, vec![monitor, dispatcher]))
    }

    /// However a thread ends, the others end too, and the caller learns of it where it leases.
    fn end(&self, ended: Result<(), TransportError>) {
        match ended {
            Ok(()) | Err(TransportError::Closed) => {}
            Err(error) => warn!("{} is let go: {error}", self.name),
        }
        self.give_up();
        self.transceiver.close();
    }

    /// As [`end`](Self::end), from the control plane: to close waits for threads, and for the device.
    fn let_go(&self) {
        self.give_up();
        let transceiver = Arc::clone(&self.transceiver);
        spawn_blocking(move || transceiver.close());
    }

    fn give_up(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(holder) = self.lease.get() {
            holder.abort();
        }
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

    /// Whether it is the same queue pair, whose key may be another by now.
    pub(super) fn has_queue_pair_of(&self, other: &PeerEndpoint) -> bool {
        (self.endpoint.ip, self.endpoint.qpn) == (other.ip, other.qpn)
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

    /// Why it is not to be served any longer, if that is so. Its lease, where it has one, speaks for itself.
    pub(super) fn why_let_go(&self, idle_timeout: Option<Duration>) -> Option<&'static str> {
        let is_silent = idle_timeout.is_some_and(|limit| self.last_heard.elapsed() >= limit);
        if self.has_left.load(Ordering::Relaxed) {
            Some("it left")
        } else if is_silent && self.run.lease.get().is_none() {
            Some("it is silent")
        } else {
            None
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.run.stop.load(Ordering::Relaxed)
    }

    /// Ends its threads, and does not wait for a handler that takes its time.
    pub(super) fn stop(&self) {
        self.run.let_go();
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
