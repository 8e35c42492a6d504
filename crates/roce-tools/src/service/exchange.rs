//! The rendezvous with callers, side by side: one that stalls delays no other.

use std::future::pending;
use std::sync::Arc;

use roce_rendezvous::Peer as Offered;
use roce_rendezvous::socket::{Arrival, Lease};
use tokio::task::{JoinSet, spawn_blocking};

use super::ServiceConfig;
use super::peer::Prepared;
use crate::Error;

/// Exchanges that are under way at a time. Further callers wait in the listener's queue.
const MOST: usize = 64;

/// A caller that is connected.
pub(super) struct Met {
    pub(super) prepared: Prepared,
    pub(super) offered: Offered,
    pub(super) lease: Option<Lease>,
}

/// Exchanges that are under way. One that stalls ends by the timeouts of the rendezvous.
#[derive(Debug, Default)]
pub(super) struct Exchanges(JoinSet<Result<Met, Error>>);

impl Exchanges {
    /// Whether another one may begin.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    pub(super) fn begin(&mut self, arrival: Arrival, config: &Arc<ServiceConfig>) {
        self.0.spawn(exchange(arrival, Arc::clone(config)));
    }

    /// Waits for the end of one, for ever where there is none. May be given up and awaited again.
    pub(super) async fn next(&mut self) -> Result<Met, Error> {
        match self.0.join_next().await {
            None => pending().await,
            Some(ended) => ended.unwrap_or(Err(Error::Panicked)),
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
