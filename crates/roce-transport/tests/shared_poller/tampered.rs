//! The userspace link, which fails on demand and counts how often it is asked.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use roce_core::{
    CompletionError, ConnectError, Device, Mtu, PeerEndpoint, PostError, QpAttr, Qpn, RecvCompletion, RecvWr,
    Rkey, SendWr, UcQp, UcRecv, UcSend, WireId, WireStats,
};
use roce_soft::{SoftDevice, SoftError};

type SoftQp = <SoftDevice as Device>::Qp;

/// What is to go wrong, and what was asked.
#[derive(Debug, Default)]
pub(crate) struct Tamper {
    /// The next poll fails.
    pub(crate) fails: AtomicBool,
    /// The next poll panics.
    pub(crate) panics: AtomicBool,
    /// The send queue has no room.
    pub(crate) is_full: AtomicBool,
    /// Polls that may ask the socket.
    pub(crate) polls: AtomicU64,
    /// Looks at what has landed.
    pub(crate) looks: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Tampered<T> {
    pub(crate) link: T,
    pub(crate) tamper: Arc<Tamper>,
}

impl Device for Tampered<SoftDevice> {
    type Qp = Tampered<SoftQp>;
    type Error = SoftError;

    fn create_qp(&self, attr: &QpAttr) -> Result<Self::Qp, SoftError> {
        Ok(Tampered { link: self.link.create_qp(attr)?, tamper: Arc::clone(&self.tamper) })
    }
}

impl UcQp for Tampered<SoftQp> {
    type Send = Tampered<<SoftQp as UcQp>::Send>;
    type Recv = Tampered<<SoftQp as UcQp>::Recv>;
    type Error = SoftError;

    fn qpn(&self) -> Qpn {
        self.link.qpn()
    }

    fn rkey(&self) -> Rkey {
        self.link.rkey()
    }

    fn local_ip(&self) -> Ipv4Addr {
        self.link.local_ip()
    }

    fn path_mtu(&self) -> Mtu {
        self.link.path_mtu()
    }

    fn wire_stats(&self) -> Arc<dyn WireStats> {
        self.link.wire_stats()
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.link.post_recv(wr)
    }

    fn connect(self, peer: &PeerEndpoint) -> Result<(Self::Send, Self::Recv), ConnectError<Self>> {
        let Self { link, tamper } = self;
        match link.connect(peer) {
            Ok((send, recv)) => {
                Ok((Tampered { link: send, tamper: Arc::clone(&tamper) }, Tampered { link: recv, tamper }))
            }
            Err(e) => Err(ConnectError { qp: Self { link: e.qp, tamper }, error: e.error }),
        }
    }
}

impl<S: UcSend> UcSend for Tampered<S> {
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError> {
        let is_full = self.tamper.is_full.load(Ordering::Relaxed);
        if is_full { Err(PostError::QueueFull) } else { self.link.stage(wr) }
    }

    fn flush(&mut self) -> Result<usize, PostError> {
        self.link.flush()
    }

    fn reap(&mut self) -> Result<(), CompletionError> {
        self.link.reap()
    }
}

impl<R: UcRecv> UcRecv for Tampered<R> {
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.link.post_recv(wr)
    }

    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        self.tamper.polls.fetch_add(1, Ordering::Relaxed);
        self.link.poll(out)
    }

    fn counts_packets(&self) -> bool {
        self.link.counts_packets()
    }

    fn poll_landed(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        self.tamper.looks.fetch_add(1, Ordering::Relaxed);
        assert!(!self.tamper.panics.swap(false, Ordering::Relaxed), "as the test demands");
        if self.tamper.fails.swap(false, Ordering::Relaxed) {
            return Err(CompletionError { what: "receive", reason: "demanded", status: 1, vendor: 2 });
        }
        self.link.poll_landed(out)
    }

    fn shared_wire(&self) -> Option<WireId> {
        self.link.shared_wire()
    }
}
