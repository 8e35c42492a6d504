//! The end that calls.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::session::Session;
use super::{Form, Lease, Timeouts};
use crate::message::{Offer, check_compatible};
use crate::rendezvous::{BoxError, Peer, Rendezvous};
use crate::{Error, MessageError};

/// From one attempt to reach the service to the next.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// A caller of one service. Each exchange is a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    addr: SocketAddr,
    form: Form,
    timeouts: Timeouts,
}

impl Client {
    /// A client of the service at `addr` that waits 10 s for it to turn up. Nothing is opened yet.
    pub fn new(addr: SocketAddr, form: Form) -> Self {
        let timeouts = Timeouts { peer: Some(Duration::from_secs(10)), ..Timeouts::default() };
        Self { addr, form, timeouts }
    }

    /// The same client with other timeouts.
    #[must_use]
    pub const fn with_timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// As [`Rendezvous::exchange`], and keeps the connection as a [`Lease`] where `local` and the service both offer one.
    ///
    /// # Errors
    /// As [`Rendezvous::exchange`], and [`Error::Lease`].
    pub async fn meet<F, Fut, E>(&mut self, local: &Offer, connect: F) -> Result<(Peer, Option<Lease>), Error>
    where
        F: FnOnce(Peer) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Into<BoxError> + Send,
    {
        let stream = self.reach().await?;
        let mut session = Session::new(stream, self.addr, self.timeouts);
        match self.negotiate(&mut session, local, connect).await {
            Ok((peer, leases)) => Ok((peer, leases.then(|| session.into_lease()).transpose()?)),
            Err(error) => {
                session.refuse(self.form, error.reason()).await;
                Err(error)
            }
        }
    }

    /// Tries every 20 ms until the service accepts.
    async fn reach(&self) -> Result<TcpStream, Error> {
        let start = Instant::now();
        let deadline = self.timeouts.peer.and_then(|limit| start.checked_add(limit));
        loop {
            let next = Instant::now() + RETRY_EVERY;
            let source = match attempt(self.addr, deadline).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if let Some(timeout) = self.timeouts.peer.filter(|_| deadline.is_some_and(|end| end <= next)) {
                return Err(Error::NoService { addr: self.addr, timeout, source });
            }
            sleep_until(next).await;
        }
    }

    /// The peer, and whether both ends lease.
    async fn negotiate<F, Fut, E>(
        &self,
        session: &mut Session,
        local: &Offer,
        connect: F,
    ) -> Result<(Peer, bool), Error>
    where
        F: FnOnce(Peer) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        session.write_offer(self.form, local).await?;
        // The service connects its queue pair before it answers.
        let form = session.read_form(self.timeouts.to_act()).await?;
        if form != self.form {
            return Err(session.bad(MessageError::OtherForm(form)));
        }
        let offer = session.read_offer(form).await?;
        check_compatible(local, &offer).map_err(|error| session.bad(error))?;
        let peer = offer.peer();
        session.connect(peer, connect).await?;
        let leases = local.lease && offer.lease;
        if leases {
            session.write_connected().await?;
        }
        Ok((peer, leases))
    }
}

async fn attempt(addr: SocketAddr, deadline: Option<Instant>) -> io::Result<TcpStream> {
    let connect = TcpStream::connect(addr);
    let stream = match deadline {
        None => connect.await?,
        Some(end) => timeout_at(end, connect).await??,
    };
    refuse_self_connection(stream)
}

/// Without a listener, a connect to a port of our own machine can be given that very port as its source, and TCP
/// then connects it to itself.
fn refuse_self_connection(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

impl Rendezvous for Client {
    type Error = Error;

    async fn exchange<F, Fut, E>(&mut self, local: &Offer, connect: F) -> Result<Peer, Error>
    where
        F: FnOnce(Peer) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Into<BoxError> + Send,
    {
        // Nobody would hold a lease.
        let (peer, _) = self.meet(&local.with_lease(false), connect).await?;
        Ok(peer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    #[tokio::test]
    async fn a_connection_to_itself_is_no_service() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.83.1.1:0".parse().unwrap()).unwrap();
        let itself = socket.local_addr().unwrap();
        let stream = socket.connect(itself).await.unwrap();
        let error = refuse_self_connection(stream).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
