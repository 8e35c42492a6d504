//! The rendezvous with callers, side by side: one that stalls delays no other.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roce_rendezvous::Peer as Offered;
use roce_rendezvous::socket::{Arrival, Lease};
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};

use super::ServiceConfig;
use super::peer::Prepared;
use crate::Error;

/// Exchanges that are under way at a time.
const MOST: usize = 32;
/// One that takes no longer does not give way.
const GRACE: Duration = Duration::from_millis(500);

/// A caller that is connected.
pub(super) struct Met {
    pub(super) prepared: Prepared,
    pub(super) offered: Offered,
    pub(super) lease: Option<Lease>,
}

/// Exchanges that are under way.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    tasks: JoinSet<Result<Met, Error>>,
    /// When each began; the oldest first.
    begun: VecDeque<(Instant, AbortHandle)>,
}

impl Exchanges {
    /// Whether another one may begin: there are not too many, or the oldest has had its time.
    pub(super) fn has_room(&mut self) -> bool {
        self.begun.retain(|(_, exchange)| !exchange.is_finished());
        let has_had_its_time = |(begun, _): &(Instant, _)| begun.elapsed() >= GRACE;
        self.begun.len() < MOST || self.begun.front().is_some_and(has_had_its_time)
    }

    /// Begins one. If there are too many, the oldest gives way: most likely it stalls.
    pub(super) fn begin(&mut self, arrival: Arrival, config: &Arc<ServiceConfig>) {
        if self.begun.len() >= MOST
            && let Some((_, oldest)) = self.begun.pop_front()
        {
            oldest.abort();
        }
        let begun = self.tasks.spawn(exchange(arrival, Arc::clone(config)));
        self.begun.push_back((Instant::now(), begun));
    }

    /// Waits for the end of one, for ever where there is none. May be given up and awaited again.
    pub(super) async fn next(&mut self) -> Result<Met, Error> {
        match self.tasks.join_next().await {
            None => pending().await,
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) if error.is_cancelled() => Err(Error::GaveWay { most: MOST }),
            Some(Err(_)) => Err(Error::Panicked),
        }
    }
}

async fn exchange(arrival: Arrival, config: Arc<ServiceConfig>) -> Result<Met, Error> {
    let request = arrival.request().await?;
    let prepared = match Prepared::new(&config) {
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
    let (offered, lease) = request.answer(&prepared.offer(), connect).await?;
    Ok(Met { prepared, offered, lease })
}
