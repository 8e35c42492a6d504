//! The service: callers come over the socket rendezvous, and each is served by a transceiver, rings and a dispatcher of
//! its own.
//!
//! One thread runs the control plane: the rendezvous, the metrics, and the bookkeeping of the callers. It is the only
//! one with an async runtime; calls never pass it.
//!
//! UC tells nobody that a peer is gone. So a caller is let go when it says so ([`LEAVE`]), when another one comes with
//! its queue pair, when it has been silent for the idle timeout, or when it is the one that has been silent longest
//! and its place is needed.

mod metrics;
mod peer;
#[allow(unsafe_code)]
mod plugin;

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roce_rendezvous::socket::Server;
use roce_rendezvous::{Error as RendezvousError, Peer as Offered};
use roce_transport::{Config, SpinPolicy};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval, sleep};
use tracing::{info, warn};

use crate::Error;
use crate::decoder::MatchingGraph;
use metrics::Totals;
pub(crate) use peer::offer_of;
use peer::{Peer, Prepared};
pub use plugin::{PLUGIN_TABLE, Plugin};

/// The RPC function by which a caller says that it goes. No arguments, no results.
pub const LEAVE: &str = "roce_service_leave";

/// How often the callers are looked after.
const TICK: Duration = Duration::from_millis(20);
/// A rest after the listener or the device failed, which may pass.
const REST: Duration = Duration::from_millis(200);

/// What a service needs to know.
#[derive(Debug)]
pub struct ServiceConfig {
    /// Each caller's transceiver. Threads: a ring with flags and a dispatcher beside it; unified: one thread.
    pub transceiver: Config,
    /// How the dispatchers wait.
    pub spin: SpinPolicy,
    /// Where the rendezvous listens; port 0 takes any.
    pub listen: SocketAddr,
    /// Where the metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Callers at a time.
    pub max_peers: usize,
    /// A caller that is silent for so long is let go. `None`: never.
    pub idle_timeout: Option<Duration>,
    /// What `mwpm_decode` decodes with, where it is served.
    pub graph: Option<MatchingGraph>,
    /// Functions in C.
    pub plugins: Vec<Plugin>,
}

/// A service that listens.
#[derive(Debug)]
pub struct Service {
    config: ServiceConfig,
    server: Server,
    metrics: Option<TcpListener>,
    roce_ip: Ipv4Addr,
    /// For the next caller.
    prepared: Option<Prepared>,
    peers: Vec<Peer>,
    totals: Totals,
}

impl Service {
    /// Listens, and sets the first transceiver up, so that a configuration that cannot work is refused here.
    pub async fn bind(config: ServiceConfig) -> Result<Self, Error> {
        let server = Server::bind(config.listen).await?;
        let metrics = match config.metrics {
            Some(addr) => Some(listen(addr).await?),
            None => None,
        };
        let prepared = Prepared::new(&config)?;
        Ok(Self {
            config,
            server,
            metrics,
            roce_ip: prepared.ip(),
            prepared: Some(prepared),
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
        self.roce_ip
    }

    /// Serves until `stop` is set, and then says how many calls were answered. What befalls a caller is logged, and
    /// concerns no other.
    pub async fn run(mut self, stop: &AtomicBool) -> u64 {
        while !stop.load(Ordering::Relaxed) {
            match self.take_prepared() {
                Ok(prepared) => self.serve_next(prepared, stop).await,
                Err(error) => {
                    warn!("no transceiver for the next caller: {error}");
                    self.tend();
                    sleep(REST).await;
                }
            }
        }
        self.peers.iter().for_each(Peer::stop);
        for peer in self.peers.drain(..) {
            self.totals.add(peer.join());
        }
        self.totals.answered()
    }

    fn take_prepared(&mut self) -> Result<Prepared, Error> {
        self.prepared.take().map_or_else(|| Prepared::new(&self.config), Ok)
    }

    /// Waits for a caller and begins to serve it, on the transceiver that was prepared for it.
    async fn serve_next(&mut self, prepared: Prepared, stop: &AtomicBool) {
        match self.meet(&prepared, stop).await {
            Some(Ok(offered)) => self.begin(prepared, &offered),
            Some(Err(error)) => {
                warn!("rendezvous: {error}");
                self.totals.rendezvous_errors += 1;
                // A transceiver that got as far as its peer is of no use to another.
                self.prepared = Some(prepared).filter(|p| !p.is_connected());
                if matches!(error, RendezvousError::Accept { .. }) {
                    sleep(REST).await;
                }
            }
            None => {}
        }
    }

    /// The rendezvous with the next caller. Meanwhile the others are looked after. `None`: stopped.
    async fn meet(
        &mut self,
        prepared: &Prepared,
        stop: &AtomicBool,
    ) -> Option<Result<Offered, RendezvousError>> {
        let Self { config, server, metrics, peers, totals, .. } = self;
        let transceiver = prepared.transceiver();
        let connect = async |offered: Offered| transceiver.connect(&offered.endpoint);
        let mut exchange = pin!(server.accept_one(prepared.offer(), connect));
        let mut tick = interval(TICK);
        loop {
            tokio::select! {
                outcome = &mut exchange => return Some(outcome),
                _ = tick.tick() => {
                    tend(peers, totals, config.idle_timeout);
                    if stop.load(Ordering::Relaxed) {
                        return None;
                    }
                }
                stream = accept(metrics.as_ref()) => {
                    tokio::spawn(metrics::respond(stream, totals.render(peers)));
                }
            }
        }
    }

    fn begin(&mut self, prepared: Prepared, offered: &Offered) {
        let endpoint = offered.endpoint;
        // Its queue pair has a new owner, so the old one is gone.
        self.peers.iter().filter(|p| p.endpoint() == endpoint).for_each(Peer::stop);
        self.peers.iter_mut().for_each(Peer::look);
        let serving = self.peers.iter().filter(|p| !p.is_stopped());
        if serving.clone().count() >= self.config.max_peers
            && let Some(quiet) = serving.min_by_key(|p| p.last_heard())
        {
            warn!("{} is let go: it was silent longest, and its place is needed", quiet.name());
            quiet.stop();
        }
        match prepared.serve(endpoint, self.config.spin) {
            Ok(peer) => {
                info!("{} is served", peer.name());
                self.totals.peers += 1;
                self.peers.push(peer);
            }
            Err(error) => warn!("{} at {} is not served: {error}", endpoint.qpn, endpoint.ip),
        }
    }

    fn tend(&mut self) {
        tend(&mut self.peers, &mut self.totals, self.config.idle_timeout);
    }
}

/// Lets go who has gone or is silent, and frees what they had.
fn tend(peers: &mut Vec<Peer>, totals: &mut Totals, idle_timeout: Option<Duration>) {
    for peer in peers.iter_mut() {
        peer.look();
        let is_silent = idle_timeout.is_some_and(|limit| peer.last_heard().elapsed() >= limit);
        if !peer.is_stopped() && (is_silent || peer.has_left()) {
            info!("{} is let go: {}", peer.name(), if is_silent { "it is silent" } else { "it left" });
            peer.stop();
        }
    }
    for peer in peers.extract_if(.., |peer| peer.is_over()) {
        totals.add(peer.join());
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
