//! The service: callers come over the socket rendezvous, and each is served by a transceiver, rings and a dispatcher of
//! its own.
//!
//! One thread runs the control plane: the rendezvous, the metrics, and the bookkeeping of the callers. It is the only
//! one with an async runtime; calls never pass it.
//!
//! UC tells nobody that a peer is gone. A caller that leases keeps its rendezvous connection, whose end is its own,
//! and which tells it when it is let go. Without a lease a caller is let go when it has been silent for the idle timeout.
//! Any caller is let go when it says that it leaves ([`LEAVE`]), when another one comes with its queue pair, or when it
//! is the one that has been silent longest and its place is needed.

mod exchange;
mod metrics;
mod peer;
#[allow(unsafe_code)]
mod plugin;

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roce_rendezvous::socket::{Arrival, Server, Timeouts};
use roce_transport::{Config, SpinPolicy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tracing::{info, warn};

use crate::Error;
use crate::decoder::MatchingGraph;
use exchange::{Exchanges, Met};
use metrics::Totals;
pub(crate) use peer::offer_of;
use peer::{Peer, Prepared};
pub use plugin::{PLUGIN_TABLE, Plugin};

/// The RPC function by which a caller says that it goes. No arguments, no results.
pub const LEAVE: &str = "roce_service_leave";

/// How often the callers are looked after.
const TICK: Duration = Duration::from_millis(20);
/// Questions for the metrics that are answered at a time.
const MOST_QUESTIONS: usize = 16;
/// A rest after a listener failed, which may pass.
const REST: Duration = Duration::from_millis(200);

/// What a service needs to know.
#[derive(Debug)]
pub struct ServiceConfig {
    /// Each caller's transceiver. Threads: a ring with flags and a dispatcher beside it; unified: one thread.
    pub transceiver: Config,
    /// How the dispatchers wait.
    pub spin: SpinPolicy,
    /// How many answers a unified dispatcher sends at once, at most.
    pub answers_per_flush: u32,
    /// Where the rendezvous listens; port 0 takes any.
    pub listen: SocketAddr,
    /// How long the steps of the rendezvous may take; a caller may turn up at any time.
    pub timeouts: Timeouts,
    /// Where the metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Callers at a time.
    pub max_peers: usize,
    /// A caller without a lease that is silent for so long is let go. `None`: never.
    pub idle_timeout: Option<Duration>,
    /// What `mwpm_decode` decodes with, where it is served.
    pub graph: Option<MatchingGraph>,
    /// Functions in C.
    pub plugins: Vec<Plugin>,
}

/// A service that listens.
#[derive(Debug)]
pub struct Service {
    config: Arc<ServiceConfig>,
    server: Server,
    metrics: Option<TcpListener>,
    /// Set up and never connected: it holds the device while there is no caller.
    first: Prepared,
    exchanges: Exchanges,
    /// Questions for the metrics that are being answered.
    questions: JoinSet<()>,
    peers: Vec<Peer>,
    totals: Totals,
}

impl Service {
    /// Listens, and sets a transceiver up, so that a configuration that cannot work is refused here.
    pub async fn bind(config: ServiceConfig) -> Result<Self, Error> {
        let timeouts = Timeouts { peer: None, ..config.timeouts };
        let server = Server::bind(config.listen).await?.with_timeouts(timeouts);
        let metrics = match config.metrics {
            Some(addr) => Some(listen(addr).await?),
            None => None,
        };
        Ok(Self {
            first: Prepared::new(&config)?,
            config: Arc::new(config),
            server,
            metrics,
            exchanges: Exchanges::new(),
            questions: JoinSet::new(),
            peers: Vec::new(),
            totals: Totals::default(),
        })
    }

    /// Where callers find it.
    pub fn rendezvous_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Where the metrics are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Its RoCE address.
    pub fn roce_ip(&self) -> Ipv4Addr {
        self.first.offer().ip
    }

    /// Serves until `stop` is set, waits for the functions that run then, and says how many calls were answered. What
    /// befalls a caller is logged, and concerns no other.
    pub async fn run(mut self, stop: &AtomicBool) -> u64 {
        let mut tick = interval(TICK);
        while !stop.load(Ordering::Relaxed) {
            let has_room = self.exchanges.has_room();
            let may_ask = self.questions.len() < MOST_QUESTIONS;
            tokio::select! {
                arrival = self.server.accept(), if has_room => self.welcome(arrival).await,
                outcome = self.exchanges.next() => self.conclude(outcome),
                _ = tick.tick() => self.tend(),
                stream = accept(self.metrics.as_ref()), if may_ask => {
                    self.questions.spawn(metrics::respond(stream, self.totals.render(&self.peers)));
                }
                Some(_) = self.questions.join_next() => {}
            }
        }
        self.exchanges = Exchanges::new();
        self.peers.iter().for_each(Peer::stop);
        // Without a join, which would hold up the ends of the leases while a function runs.
        while !self.peers.is_empty() {
            tick.tick().await;
            self.tend();
        }
        self.totals.answered()
    }

    async fn welcome(&mut self, arrival: Result<Arrival, roce_rendezvous::Error>) {
        match arrival {
            Ok(arrival) => self.exchanges.begin(arrival, &self.config),
            Err(error) => {
                self.conclude(Err(error.into()));
                sleep(REST).await;
            }
        }
    }

    fn conclude(&mut self, outcome: Result<Met, Error>) {
        match outcome {
            Ok(met) => self.begin(met),
            Err(error) => {
                warn!("rendezvous: {error}");
                self.totals.rendezvous_errors += 1;
            }
        }
    }

    fn begin(&mut self, met: Met) {
        let endpoint = met.offered.endpoint;
        // Its queue pair has a new owner, so the old one is gone.
        self.peers.iter().filter(|p| p.has_queue_pair_of(&endpoint)).for_each(Peer::stop);
        self.peers.iter_mut().for_each(Peer::look);
        let serving = self.peers.iter().filter(|p| !p.is_stopped());
        if serving.clone().count() >= self.config.max_peers
            && let Some(quiet) = serving.min_by_key(|p| p.last_heard())
        {
            warn!("{} is let go: it was silent longest, and its place is needed", quiet.name());
            quiet.stop();
        }
        match met.prepared.serve(endpoint, met.lease, &self.config) {
            Ok(peer) => {
                info!("{} is served", peer.name());
                self.totals.peers += 1;
                self.peers.push(peer);
            }
            Err(error) => warn!("{} at {} is not served: {error}", endpoint.qpn, endpoint.ip),
        }
    }

    /// Lets go who has gone or is silent, and frees what they had.
    fn tend(&mut self) {
        for peer in &mut self.peers {
            peer.look();
            if !peer.is_stopped()
                && let Some(why) = peer.why_let_go(self.config.idle_timeout)
            {
                info!("{} is let go: {why}", peer.name());
                peer.stop();
            }
        }
        for peer in self.peers.extract_if(.., |peer| peer.is_over()) {
            self.totals.add(peer.join());
        }
    }
}

async fn listen(addr: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(addr).await.map_err(|source| Error::Listen { addr, source })
}

/// The next one who asks for metrics; never, where nobody may.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                warn!("metrics: {error}");
                sleep(REST).await;
            }
        }
    }
}
