//! The end that listens.

use std::future::Future;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tracing::debug;

use super::session::Session;
use super::{Form, Timeouts};
use crate::Error;
use crate::message::{Offer, check_compatible};
use crate::rendezvous::{BoxError, Peer, Rendezvous};

/// A service that takes one caller at a time, in either form, told apart by the first byte.
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
        let (stream, addr) = self.accept().await?;
        debug!(caller = %addr, "rendezvous begins");
        let mut session = Session::new(stream, addr, self.timeouts);
        let form = session.read_form(self.timeouts.message).await?;
        match negotiate(&mut session, form, local, connect).await {
            Ok(peer) => Ok(peer),
            Err(error) => {
                session.refuse(form, &error).await;
                Err(error)
            }
        }
    }

    async fn accept(&self) -> Result<(TcpStream, SocketAddr), Error> {
        let accepted = match self.timeouts.peer {
            None => self.listener.accept().await,
            Some(limit) => match timeout(limit, self.listener.accept()).await {
                Ok(accepted) => accepted,
                Err(_) => return Err(Error::NoCaller { addr: self.addr, timeout: limit }),
            },
        };
        accepted.map_err(|source| Error::Accept { addr: self.addr, source })
    }
}

async fn negotiate<F, Fut, E>(
    session: &mut Session,
    form: Form,
    local: &Offer,
    connect: F,
) -> Result<Peer, Error>
where
    F: FnOnce(Peer) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Into<BoxError>,
{
    let offer = session.read_offer(form).await?;
    check_compatible(&offer, local).map_err(|error| session.bad(error))?;
    let peer = offer.peer();
    // The caller may send as soon as it has the answer: be ready to receive first.
    session.connect(peer, connect).await?;
    session.write_offer(form, local).await?;
    if form == Form::Json {
        session.read_close().await?;
    }
    Ok(peer)
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
