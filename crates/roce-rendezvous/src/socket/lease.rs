//! The connection of an exchange, kept for as long as both ends live.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::{self, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::Error;

/// The kernel asks after a peer that was silent for so long, then every [`ASK_EVERY`].
const ASK_AFTER: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// So many questions unanswered, and the peer's machine is gone.
const ASK_TIMES: u32 = 5;

/// A connection on which nothing is said: each end learns by its end that the other is gone.
///
/// A process that dies ends it at once, however it dies; a machine that vanishes, within 10 s. Dropping it tells the
/// peer that this end is gone.
#[derive(Debug)]
pub struct Lease {
    stream: TcpStream,
    peer: SocketAddr,
}

impl Lease {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr) -> Result<Self, Error> {
        let keepalive =
            TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_EVERY).with_retries(ASK_TIMES);
        let set = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        set.map_err(|source| Error::Lease { peer, source })?;
        Ok(Self { stream, peer })
    }

    /// Waits until the peer is gone. May be given up and awaited again.
    pub async fn ended(&mut self) -> LeaseEnd {
        LeaseEnd::of(self.stream.read(&mut [0]).await)
    }

    /// Has a thread wait for the end, where there is no async runtime. It calls `on_end` once the peer is gone.
    ///
    /// # Errors
    /// [`Error::Lease`] when there is no thread.
    pub fn watch(self, on_end: impl FnOnce(LeaseEnd) + Send + 'static) -> Result<Watch, Error> {
        let peer = self.peer;
        let watch = || {
            let stream = self.stream.into_std()?;
            stream.set_nonblocking(false)?;
            Watch::start(stream, on_end)
        };
        watch().map_err(|source| Error::Lease { peer, source })
    }
}

/// A lease in the hands of a thread. Dropping it tells the peer that this end is gone; `on_end` is then not called, or
/// has returned.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    stream: net::TcpStream,
    is_released: AtomicBool,
}

impl Watch {
    fn start(stream: net::TcpStream, on_end: impl FnOnce(LeaseEnd) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Watched { stream, is_released: AtomicBool::new(false) });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new().name("roce-lease".to_owned()).spawn(move || {
            let end = watched.wait();
            if !watched.is_released.load(Ordering::Acquire) {
                on_end(end);
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Watched {
    fn wait(&self) -> LeaseEnd {
        loop {
            match (&self.stream).read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                outcome => return LeaseEnd::of(outcome),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_released.store(true, Ordering::Release);
        // Fails where the connection is broken, and then the thread has ended.
        let _ = self.shared.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // What a panicking `on_end` said stands on standard error.
            let _ = thread.join();
        }
    }
}

/// How a lease ended. Whichever it was, the peer is of no more use.
#[derive(Debug)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// The peer ended, or let this end go.
    Closed,
    /// The connection broke: the peer was killed, or its machine is gone.
    Broken(io::Error),
    /// The peer sent something, which no end of a lease does.
    Spoke,
}

impl LeaseEnd {
    fn of(read: io::Result<usize>) -> Self {
        match read {
            Ok(0) => Self::Closed,
            Ok(_) => Self::Spoke,
            Err(error) => Self::Broken(error),
        }
    }
}

impl fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it closed the connection"),
            Self::Broken(error) => write!(f, "the connection broke: {error}"),
            Self::Spoke => f.write_str("it sent bytes on a connection that it leases"),
        }
    }
}
