//! One TCP connection of an exchange, with a deadline on each step.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use super::{Form, Lease, Timeouts};
use crate::message::{MAX_LINE, Message, Offer, PLAIN_LEN};
use crate::rendezvous::{BoxError, Peer};
use crate::{Error, MessageError, Step};

/// Bytes of a refused peer that are read and thrown away. Closing with bytes unread resets the connection, and a
/// reset overtakes the refusal.
const DRAIN_LIMIT: u64 = 64 * 1024;

#[derive(Debug)]
pub(super) struct Session {
    stream: BufReader<TcpStream>,
    peer: SocketAddr,
    pub(super) timeouts: Timeouts,
}

impl Session {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, timeouts: Timeouts) -> Self {
        Self { stream: BufReader::new(stream), peer, timeouts }
    }

    pub(super) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Which form the peer speaks, by its first byte, which stays unread.
    pub(super) async fn read_form(&mut self, deadline: Duration) -> Result<Form, Error> {
        let stream = &mut self.stream;
        let first =
            within(self.peer, Step::Read, deadline, async { Ok(stream.fill_buf().await?.first().copied()) });
        match first.await? {
            Some(0x00) => Ok(Form::Plain),
            Some(b'{') => Ok(Form::Json),
            Some(other) => Err(self.bad(MessageError::UnknownForm(other))),
            None => Err(Error::ClosedEarly { peer: self.peer, got: 0 }),
        }
    }

    pub(super) async fn read_offer(&mut self, form: Form) -> Result<Offer, Error> {
        match form {
            Form::Plain => self.read_plain().await,
            Form::Json => {
                let line = self.read_line(Step::Read, self.timeouts.message).await?;
                match self.parse(&line)? {
                    Message::Offer(offer) => Ok(offer),
                    Message::Refusal(reason) => Err(Error::Refused { peer: self.peer, reason }),
                    Message::Connected => {
                        Err(self.bad(MessageError::Field { field: "version", why: "is missing".into() }))
                    }
                }
            }
        }
    }

    pub(super) async fn write_offer(&mut self, form: Form, offer: &Offer) -> Result<(), Error> {
        match form {
            Form::Plain => self.write(&offer.to_plain()).await,
            Form::Json => self.write(Message::Offer(*offer).to_line().as_bytes()).await,
        }
    }

    /// Runs the caller's closure on what the peer offered.
    pub(super) async fn connect<F, Fut, E>(&self, peer: Peer, connect: F) -> Result<(), Error>
    where
        F: FnOnce(Peer) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let limit = self.timeouts.connect;
        match timeout(limit, connect(peer)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::Connect { peer: self.peer, source: error.into() }),
            Err(_) => Err(Error::Timeout { peer: self.peer, step: Step::Connect, timeout: limit }),
        }
    }

    /// Waits until the caller is connected: it closes then, or says so where it leases. In the JSON form it may say
    /// instead why it gave up.
    pub(super) async fn read_connected(&mut self, leases: bool) -> Result<(), Error> {
        let line = match self.read_line(Step::Close, self.timeouts.to_act()).await {
            Ok(line) => line,
            Err(Error::ClosedEarly { got: 0, .. }) if !leases => return Ok(()),
            Err(error) => return Err(error),
        };
        match self.parse(&line)? {
            Message::Connected if leases => Ok(()),
            Message::Refusal(reason) => Err(Error::Refused { peer: self.peer, reason }),
            Message::Offer(_) | Message::Connected => Err(self.bad(MessageError::Trailing)),
        }
    }

    pub(super) async fn write_connected(&mut self) -> Result<(), Error> {
        self.write(Message::Connected.to_line().as_bytes()).await
    }

    /// Keeps the connection, on which no more is said.
    pub(super) fn into_lease(self) -> Result<Lease, Error> {
        if !self.stream.buffer().is_empty() {
            return Err(self.bad(MessageError::Trailing));
        }
        Lease::new(self.stream.into_inner(), self.peer)
    }

    /// Tells the peer why we give up, as far as its form can say it, and closes.
    pub(super) async fn refuse(mut self, form: Form, reason: String) {
        if form == Form::Json
            && let Err(error) = self.tell(reason).await
        {
            debug!(peer = %self.peer, %error, "the peer could not be told why it was refused");
        }
    }

    pub(super) fn bad(&self, source: MessageError) -> Error {
        Error::Message { peer: self.peer, source }
    }

    async fn tell(&mut self, reason: String) -> Result<(), Error> {
        self.write(Message::Refusal(reason).to_line().as_bytes()).await?;
        let stream = &mut self.stream;
        within(self.peer, Step::Close, self.timeouts.message, async {
            stream.shutdown().await?;
            tokio::io::copy(&mut stream.take(DRAIN_LIMIT), &mut tokio::io::sink()).await
        })
        .await
        .map(drop)
    }

    async fn read_plain(&mut self) -> Result<Offer, Error> {
        let mut bytes = [0; PLAIN_LEN];
        let mut got = 0;
        let stream = &mut self.stream;
        within(self.peer, Step::Read, self.timeouts.message, async {
            while got < PLAIN_LEN {
                match stream.read(&mut bytes[got..]).await? {
                    0 => break,
                    n => got += n,
                }
            }
            Ok(())
        })
        .await?;
        if got < PLAIN_LEN {
            return Err(Error::ClosedEarly { peer: self.peer, got });
        }
        Offer::from_plain(&bytes).map_err(|error| self.bad(error))
    }

    async fn read_line(&mut self, step: Step, deadline: Duration) -> Result<Vec<u8>, Error> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(MAX_LINE as u64);
        within(self.peer, step, deadline, limited.read_until(b'\n', &mut line)).await?;
        match line.last() {
            Some(b'\n') => Ok(line),
            _ if line.len() == MAX_LINE => Err(self.bad(MessageError::LineTooLong)),
            _ => Err(Error::ClosedEarly { peer: self.peer, got: line.len() }),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        within(self.peer, Step::Write, self.timeouts.message, self.stream.write_all(bytes)).await
    }

    fn parse(&self, line: &[u8]) -> Result<Message, Error> {
        Message::from_line(line).map_err(|error| self.bad(error))
    }
}

async fn within<T>(
    peer: SocketAddr,
    step: Step,
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, Error> {
    match timeout(limit, work).await {
        Ok(result) => result.map_err(|source| Error::Io { peer, step, source }),
        Err(_) => Err(Error::Timeout { peer, step, timeout: limit }),
    }
}
