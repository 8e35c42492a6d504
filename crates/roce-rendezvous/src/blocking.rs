//! A rendezvous for callers that have no async runtime.

use std::future::{self, Future};
use std::io;
use std::net::SocketAddr;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::rendezvous::{BoxError, Peer, Rendezvous};
use crate::socket::{Client, Server, Timeouts};
use crate::{Error, Offer};

/// A [`Rendezvous`] with a runtime of its own, on the thread that calls it.
#[derive(Debug)]
pub struct Blocking<R> {
    // Before the runtime, which its sockets need until they are closed.
    inner: R,
    runtime: Runtime,
}

impl<R> Blocking<R> {
    fn open(open: impl Future<Output = Result<R, Error>>) -> Result<Self, Error> {
        let runtime = new_runtime().map_err(|source| Error::Runtime { source })?;
        let inner = runtime.block_on(open)?;
        Ok(Self { inner, runtime })
    }

    /// The rendezvous inside.
    pub const fn get_ref(&self) -> &R {
        &self.inner
    }
}

impl<R: Rendezvous> Blocking<R> {
    /// [`Rendezvous::exchange`] with a closure that blocks.
    ///
    /// # Panics
    ///
    /// When called by async code; await [`Rendezvous::exchange`] there.
    pub fn exchange<F, E>(&mut self, local: &Offer, connect: F) -> Result<Peer, R::Error>
    where
        F: FnOnce(Peer) -> Result<(), E> + Send,
        E: Into<BoxError> + Send,
    {
        self.runtime.block_on(self.inner.exchange(local, |peer| future::ready(connect(peer))))
    }
}

impl Blocking<Server> {
    /// Listens as [`Server::bind`] does. Fails with [`Error::Runtime`] too, where async code calls it.
    pub fn bind(addr: SocketAddr, timeouts: Timeouts) -> Result<Self, Error> {
        Self::open(async { Ok(Server::bind(addr).await?.with_timeouts(timeouts)) })
    }
}

impl Blocking<Client> {
    /// A client that blocks. Fails with [`Error::Runtime`] where async code calls it.
    pub fn client(client: Client) -> Result<Self, Error> {
        Self::open(future::ready(Ok(client)))
    }
}

fn new_runtime() -> io::Result<Runtime> {
    if Handle::try_current().is_ok() {
        return Err(io::Error::other("this thread already runs async code"));
    }
    Builder::new_current_thread().enable_io().enable_time().build()
}
