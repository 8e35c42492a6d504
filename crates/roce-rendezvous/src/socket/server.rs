//! The end that listens.

use std::future::Future;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::time::timeout;
use tracing::debug;

use super::session::Session;
use super::{Form, Lease, Timeouts};
use crate::Error;
use crate::message::{Offer, check_compatible};
use crate::rendezvous::{BoxError, Peer, Rendezvous};

/// A service that takes callers in either form, told apart by the first byte.
///
/// [`accept_one`](Self::accept_one) takes one at a time. To take several side by side, and for leases,
/// [`accept`](Self::accept) hands each one out: `server.accept().await?.request().await?.answer(…)`.
///
/// ```no_run
/// # use roce_rendezvous::{Offer, socket::Server};
/// # async fn serve(make_offer: impl Fn() -> Offer) -> Result<(), roce_rendezvous::Error> {
/// let mut server = Server::bind("10.0.0.1:0".parse().unwrap()).await?;
/// println!("rendezvous on {}", server.local_addr());
/// loop {
///     let offer = make_offer(); // of a fresh queue pair, for each caller
///     match server.accept_one(&offer, async |peer| connect(peer)).await {
///         Ok(peer) => println!("connected to {}", peer.endpoint.ip),
///         Err(error) => eprintln!("{error}"), // this caller failed; the next may not
///     }
/// }
/// # }
/// # fn connect(_: roce_rendezvous::Peer) -> Result<(), std::io::Error> { Ok(()) }
/// ```
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    timeouts: Timeouts,
}

impl Server {
    /// Listens on `addr`; port 0 takes any free port, which [`local_addr`](Self::local_addr) tells.
    pub async fn bind(addr: SocketAddr) -> Result<Self, Error> {
        let bind = async {
            let listener = TcpListener::bind(addr).await?;
            let addr = listener.local_addr()?;
            Ok(Self { listener, addr, timeouts: Timeouts::default() })
        };
        bind.await.map_err(|source| Error::Bind { addr, source })
    }

    /// The same service with other timeouts.
    #[must_use]
    pub fn with_timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// Where it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes the next caller and serves it to the end: reads its offer, checks it, runs `connect`, answers.
    ///
    /// An error is this caller's alone: the service listens on, so call again. A caller that was here before
    /// comes as any other.
    pub async fn accept_one<F, Fut, E>(&mut self, local: &Offer, connect: F) -> Result<Peer, Error>
    where
        F: FnOnce(Peer) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Into<BoxError> + Send,
    {
        let request = self.accept().await?.request().await?;
        // Nobody would hold a lease.
        let (peer, _) = request.answer(&local.with_lease(false), connect).await?;
        Ok(peer)
    }

    /// Waits for the next caller, whom nothing has been read from yet. May be given up and called again.
    pub async fn accept(&self) -> Result<Arrival, Error> {
        let accepted = match self.timeouts.peer {
            None => self.listener.accept().await,
            Some(limit) => match timeout(limit, self.listener.accept()).await {
                Ok(accepted) => accepted,
                Err(_) => return Err(Error::NoCaller { addr: self.addr, timeout: limit }),
            },
        };
        let (stream, addr) = accepted.map_err(|source| Error::Accept { addr: self.addr, source })?;
        debug!(caller = %addr, "rendezvous begins");
        Ok(Arrival { session: Session::new(stream, addr, self.timeouts) })
    }
}

/// A caller that has come and may say anything, or nothing.
#[derive(Debug)]
pub struct Arrival {
    session: Session,
}

impl Arrival {
    /// Where it calls from.
    pub const fn addr(&self) -> SocketAddr {
        self.session.peer()
    }

    /// Reads its offer. Nothing needs to be ready for it before that.
    pub async fn request(self) -> Result<Request, Error> {
        let mut session = self.session;
        let form = session.read_form(session.timeouts.message).await?;
        match session.read_offer(form).await {
            Ok(offer) => Ok(Request { session, form, offer }),
            Err(error) => {
                session.refuse(form, error.reason()).await;
                Err(error)
            }
        }
    }
}

/// A caller's offer, to be answered.
#[derive(Debug)]
pub struct Request {
    session: Session,
    form: Form,
    offer: Offer,
}

impl Request {
    /// What it offers.
    pub const fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Checks the offer, runs `connect`, answers with `local`, and waits until the caller is connected too. Keeps the
    /// connection as a [`Lease`] where `local` and the caller both offer one.
    pub async fn answer<F, Fut, E>(
        mut self,
        local: &Offer,
        connect: F,
    ) -> Result<(Peer, Option<Lease>), Error>
    where
        F: FnOnce(Peer) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Into<BoxError> + Send,
    {
        let leases = local.lease && self.offer.lease;
        match self.negotiate(&local.with_lease(leases), connect).await {
            Ok(peer) => Ok((peer, leases.then(|| self.session.into_lease()).transpose()?)),
            Err(error) => {
                self.session.refuse(self.form, error.reason()).await;
                Err(error)
            }
        }
    }

    /// Tells the caller why it gets no answer, as far as its form can say it.
    pub async fn refuse(self, reason: String) {
        self.session.refuse(self.form, reason).await;
    }

    async fn negotiate<F, Fut, E>(&mut self, local: &Offer, connect: F) -> Result<Peer, Error>
    where
        F: FnOnce(Peer) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let Self { session, form, offer } = self;
        check_compatible(offer, local).map_err(|error| session.bad(error))?;
        let peer = offer.peer();
        // The caller may send as soon as it has the answer: be ready to receive first.
        session.connect(peer, connect).await?;
        session.write_offer(*form, local).await?;
        if *form == Form::Json {
            session.read_connected(local.lease).await?;
        }
        Ok(peer)
    }
}

impl Rendezvous for Server {
    type Error = Error;

    async fn exchange<F, Fut, E>(&mut self, local: &Offer, connect: F) -> Result<Peer, Error>
    where
        F: FnOnce(Peer) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Into<BoxError> + Send,
    {
        self.accept_one(local, connect).await
    }
}
