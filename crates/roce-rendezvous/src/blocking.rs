//! A rendezvous for callers that have no async runtime.

use std::future::{self, Future};
use std::io;
use std::net::{SocketAddr, SocketAddrV4};

use roce_core::Qpn;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::hsb::{self, HsbError, HsbRendezvous, RoceConfig, StartOptions};
use crate::rendezvous::{BoxError, Peer, Rendezvous};
use crate::socket::{Client, Lease, Server, Timeouts};
use crate::{Error, Offer};

/// A [`Rendezvous`] with a runtime of its own, on the thread that calls it.
#[derive(Debug)]
pub struct Blocking<R> {
    // Before the runtime, which its sockets need until they are closed.
    inner: R,
    runtime: Runtime,
}

impl<R> Blocking<R> {
    fn open<E>(
        open: impl Future<Output = Result<R, E>>,
        no_runtime: impl FnOnce(io::Error) -> E,
    ) -> Result<Self, E> {
        let runtime = new_runtime().map_err(no_runtime)?;
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
        Self::open(async { Ok(Server::bind(addr).await?.with_timeouts(timeouts)) }, no_runtime)
    }
}

impl Blocking<Client> {
    /// A client that blocks. Fails with [`Error::Runtime`] where async code calls it.
    pub fn client(client: Client) -> Result<Self, Error> {
        Self::open(future::ready(Ok(client)), no_runtime)
    }

    /// [`Client::meet`] with a closure that blocks.
    ///
    /// # Panics
    ///
    /// When called by async code; await [`Client::meet`] there.
    pub fn meet<F, E>(&mut self, local: &Offer, connect: F) -> Result<(Peer, Option<Lease>), Error>
    where
        F: FnOnce(Peer) -> Result<(), E> + Send,
        E: Into<BoxError> + Send,
    {
        self.runtime.block_on(self.inner.meet(local, |peer| future::ready(connect(peer))))
    }
}

impl Blocking<HsbRendezvous> {
    /// Opens a session with the FPGA at `peer`; see [`HsbRendezvous::new`] for the `template`. Fails with
    /// [`HsbError::Runtime`] where async code calls it.
    pub fn fpga(peer: SocketAddrV4, timing: hsb::Timing, template: RoceConfig) -> Result<Self, HsbError> {
        let open = async { Ok(HsbRendezvous::new(hsb::Client::connect(peer, timing).await?, template)) };
        Self::open(open, HsbError::Runtime)
    }

    /// See [`HsbRendezvous::with_fpga_qpn`].
    #[must_use]
    pub fn with_fpga_qpn(self, qpn: Qpn) -> Self {
        Self { inner: self.inner.with_fpga_qpn(qpn), ..self }
    }

    /// See [`hsb::Client::start`].
    pub fn start(&mut self, options: &StartOptions) -> Result<(), HsbError> {
        self.runtime.block_on(self.inner.client().start(options))
    }

    /// See [`HsbRendezvous::unconfigure`].
    pub fn unconfigure(&mut self) -> Result<(), HsbError> {
        self.runtime.block_on(self.inner.unconfigure())
    }
}

const fn no_runtime(source: io::Error) -> Error {
    Error::Runtime { source }
}

fn new_runtime() -> io::Result<Runtime> {
    if Handle::try_current().is_ok() {
        return Err(io::Error::other("this thread already runs async code"));
    }
    Builder::new_current_thread().enable_io().enable_time().build()
}
