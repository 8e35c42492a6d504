//! The rendezvous with callers, side by side: one that stalls delays no other.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roce_rendezvous::Peer as Offered;
use roce_rendezvous::socket::{Arrival, Lease, Request};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};

use super::ServiceConfig;
use super::peer::Prepared;
use crate::Error;

/// Callers at a time whose exchange is not over. Further ones wait in the listener's queue.
const MOST: usize = 128;
/// Exchanges at a time that have a transceiver.
const MOST_TRANSCEIVERS: usize = 64;
/// A caller who takes longer to make its offer gives way to a newer one where the house is full. An honest one that a busy
/// machine delays is not to be turned out.
const GRACE: Duration = Duration::from_millis(500);

/// A caller that is connected.
pub(super) struct Met {
    pub(super) prepared: Prepared,
    pub(super) offered: Offered,
    pub(super) lease: Option<Lease>,
}

/// Exchanges that are under way. One that stalls ends by the timeouts of the rendezvous, if it does not give way before.
#[derive(Debug)]
pub(super) struct Exchanges {
    tasks: JoinSet<Result<Met, Error>>,
    /// Those that wait for the caller's offer, the oldest first.
    unheard: VecDeque<Unheard>,
    transceivers: Arc<Semaphore>,
}

/// An exchange whose caller has yet to make its offer, as far as is known.
#[derive(Debug)]
struct Unheard {
    since: Instant,
    is_heard: Arc<AtomicBool>,
    exchange: AbortHandle,
}

impl Unheard {
    fn is_so_still(&self) -> bool {
        !self.is_heard.load(Ordering::Relaxed) && !self.exchange.is_finished()
    }
}

impl Exchanges {
    pub(super) fn new() -> Self {
        let transceivers = Arc::new(Semaphore::new(MOST_TRANSCEIVERS));
        Self { tasks: JoinSet::new(), unheard: VecDeque::new(), transceivers }
    }

    /// Whether another one may begin: there are not too many, or somebody is to give way.
    pub(super) fn has_room(&mut self) -> bool {
        self.unheard.retain(Unheard::is_so_still);
        let gives_way = |oldest: &Unheard| oldest.since.elapsed() >= GRACE;
        self.tasks.len() < MOST || self.tasks.len() == MOST && self.unheard.front().is_some_and(gives_way)
    }

    pub(super) fn begin(&mut self, arrival: Arrival, config: &Arc<ServiceConfig>) {
        self.unheard.retain(Unheard::is_so_still);
        if self.tasks.len() >= MOST
            && let Some(oldest) = self.unheard.pop_front()
        {
            oldest.exchange.abort();
        }
        let is_heard = Arc::default();
        let exchange =
            hear(arrival, Arc::clone(&is_heard), Arc::clone(&self.transceivers), Arc::clone(config));
        let exchange = self.tasks.spawn(exchange);
        self.unheard.push_back(Unheard { since: Instant::now(), is_heard, exchange });
    }

    /// Waits for the end of one, for ever where there is none. May be given up and awaited again.
    pub(super) async fn next(&mut self) -> Result<Met, Error> {
        match self.tasks.join_next().await {
            None => pending().await,
            Some(Err(error)) if error.is_cancelled() => Err(Error::GaveWay { most: MOST }),
            Some(ended) => ended.unwrap_or(Err(Error::Panicked)),
        }
    }
}

/// Until the caller's offer is there, a caller costs a connection only.
async fn hear(
    arrival: Arrival,
    is_heard: Arc<AtomicBool>,
    transceivers: Arc<Semaphore>,
    config: Arc<ServiceConfig>,
) -> Result<Met, Error> {
    let request = arrival.request().await?;
    is_heard.store(true, Ordering::Relaxed);
    let _place = transceivers.acquire().await.expect("it is never closed");
    answer(request, &config).await
}

async fn answer(request: Request, config: &ServiceConfig) -> Result<Met, Error> {
    let prepared = match Prepared::new(config) {
        Ok(prepared) => prepared,
        Err(error) => {
            request.refuse(format!("the service has no transceiver for it: {error}")).await;
            return Err(error);
        }
    };
    let transceiver = prepared.transceiver();
    // An RDMA device may take a second to find the way to a peer.
    let connect = async move |offered: Offered| {
        spawn_blocking(move || transceiver.connect(&offered.endpoint).map_err(Error::from))
            .await
            .unwrap_or(Err(Error::Panicked))
    };
    match request.answer(&prepared.offer(), connect).await {
        Ok((offered, lease)) => Ok(Met { prepared, offered, lease }),
        Err(error) => {
            // To destroy a queue pair takes an RDMA device its time.
            spawn_blocking(move || drop(prepared));
            Err(error.into())
        }
    }
}
