//! A transceiver on whatever link, and its end for one thread.

use std::ptr;
use std::sync::Arc;

use roce_core::{Device, LocalEndpoint, PeerEndpoint, UcQp};
use roce_ring::Ring;
use roce_transport::{Error, Monitor, SharedPoller, State, Stats, Transceiver, Unified};

use crate::instance::Handle;
use crate::port::AnyPort;

/// [`Transceiver`], without its link in the type.
pub(crate) trait Engine: Send + Sync {
    fn setup(&self) -> Result<LocalEndpoint, Error>;
    fn connect(&self, peer: &PeerEndpoint) -> Result<(), Error>;
    fn blocking_monitor(&self) -> Result<(), Error>;
    fn join(&self, poller: &SharedPoller) -> Result<Monitor, Error>;
    fn close(&self);
    fn state(&self) -> State;
    fn error(&self) -> Option<Error>;
    fn stats(&self) -> Stats;
    /// RX and TX; from set-up to close.
    fn rings(&self) -> Option<(Arc<Ring>, Arc<Ring>)>;
    /// For that handle.
    fn take_port(&self, handle: Handle) -> Option<AnyPort>;
}

/// [`Unified`], without its link in the type. [`error`](Self::error) has the reason of a failure.
pub(crate) trait Port: Send {
    fn rx_poll(&mut self) -> Result<Option<u32>, Failed>;
    fn tx_publish(&mut self, slot: u32) -> Result<(), Failed>;
    fn tx_publish_len(&mut self, slot: u32, len: u32) -> Result<(), Failed>;
    /// Why the last call failed.
    fn error(&self) -> Error;
    /// Its handle.
    fn handle(&self) -> Handle;
}

/// A call on a [`Port`] failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed;

/// A [`Unified`], and how it failed.
pub(crate) struct UnifiedPort<Q: UcQp> {
    unified: Unified<Q>,
    error: Option<Error>,
    handle: usize,
}

impl<D: Device + 'static> Engine for Transceiver<D> {
    fn setup(&self) -> Result<LocalEndpoint, Error> {
        self.setup()
    }

    fn connect(&self, peer: &PeerEndpoint) -> Result<(), Error> {
        self.connect(peer)
    }

    fn blocking_monitor(&self) -> Result<(), Error> {
        self.blocking_monitor()
    }

    fn join(&self, poller: &SharedPoller) -> Result<Monitor, Error> {
        poller.add(self)
    }

    fn close(&self) {
        self.close();
    }

    fn state(&self) -> State {
        self.state()
    }

    fn error(&self) -> Option<Error> {
        self.error()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn rings(&self) -> Option<(Arc<Ring>, Arc<Ring>)> {
        self.rx_ring().zip(self.tx_ring())
    }

    fn take_port(&self, handle: Handle) -> Option<AnyPort> {
        let handle = handle.addr();
        Some(AnyPort::new(UnifiedPort { unified: self.take_unified()?, error: None, handle }))
    }
}

impl<Q: UcQp> UnifiedPort<Q> {
    #[cold]
    #[inline(never)]
    fn fail(&mut self, error: Error) -> Failed {
        self.error = Some(error);
        Failed
    }
}

impl<Q: UcQp> Port for UnifiedPort<Q> {
    #[inline(always)] // into the entries
    fn rx_poll(&mut self) -> Result<Option<u32>, Failed> {
        self.unified.rx_poll().map_err(|e| self.fail(e))
    }

    #[inline(always)] // into the entries
    fn tx_publish(&mut self, slot: u32) -> Result<(), Failed> {
        self.unified.tx_publish(slot).map_err(|e| self.fail(e))
    }

    fn tx_publish_len(&mut self, slot: u32, len: u32) -> Result<(), Failed> {
        self.unified.tx_publish_len(slot, len).map_err(|e| self.fail(e))
    }

    fn error(&self) -> Error {
        self.error.clone().unwrap_or(Error::Closed)
    }

    fn handle(&self) -> Handle {
        ptr::without_provenance_mut(self.handle)
    }
}
