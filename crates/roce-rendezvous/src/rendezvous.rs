//! The exchange itself, whatever carries it.

use std::error::Error;
use std::future::Future;

use roce_core::PeerEndpoint;

use crate::{Geometry, Offer};

/// Whatever a caller's closure fails with.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// The other end, as an exchange found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// What to connect to.
    pub endpoint: PeerEndpoint,
    /// Its rings, where it told them; already checked against ours.
    pub geometry: Option<Geometry>,
}

/// A way for two ends to learn of each other and to connect in the right order.
///
/// An end that answers must be able to receive before its answer leaves: the peer may send at once. So the
/// queue pair is connected within the exchange, by the closure that the caller gives.
pub trait Rendezvous {
    /// Why an exchange failed.
    type Error: Error + Send + Sync + 'static;

    /// Swaps `local` for the peer's offer and runs `connect` on it: before the answer on the listening side,
    /// after the answer on the calling side. If `connect` fails the peer is told and the exchange fails.
    ///
    /// The future is `Send`, so are the closure and its future. A `connect` that blocks (the move to RTR may
    /// take a second) holds the task that runs the exchange; put it on a blocking thread where that matters.
    /// A future that is dropped half-way drops the connection.
    fn exchange<F, Fut, E>(
        &mut self,
        local: &Offer,
        connect: F,
    ) -> impl Future<Output = Result<Peer, Self::Error>> + Send
    where
        F: FnOnce(Peer) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Into<BoxError> + Send;
}
