//! The least that a ping-pong over UC takes, straight on libibverbs: what benchmarks compare the transport with.
//!
//! One message that never changes, its request made once; one completion polled at a time; no batches, windows,
//! counters, rings or flags.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use roce_core::{CompletionError, PostError, RecvWr, RegionId, SendWr};

use crate::cq;
use crate::qp::QpHandle;
use crate::sys::{Zeroed, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc};
use crate::wr::set_verb;
use crate::{VerbsRecv, VerbsSend};

/// Sends per completion asked for.
const SIGNAL_EVERY: u32 = 16;
/// Completions taken at once.
const BATCH: usize = 16;

/// One end of a raw ping-pong.
pub struct RawEnd {
    qp: Arc<QpHandle>,
    request: ibv_send_wr,
    entry: Box<ibv_sge>,
    /// What an inline request sends.
    inline: Box<[u8]>,
    flags: u32,
    receive: RecvWr,
    depth: u32,
    in_flight: u32,
    since_signal: u32,
    wc: [ibv_wc; BATCH],
}

// SAFETY: the pointers in the request lead into the boxes of the same value, which move with it unchanged.
unsafe impl Send for RawEnd {}

impl std::fmt::Debug for RawEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawEnd")
            .field("qp", &self.qp)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl RawEnd {
    /// Takes over a connected queue pair whose receives are posted. Every send will be `message`; every receive
    /// consumed is replaced by `receive`. `depth` is the queue pair's send depth, at least 32.
    ///
    /// # Errors
    /// [`PostError::OutOfRange`] when the message's bytes do not lie in their region.
    pub fn new(
        send: VerbsSend,
        recv: VerbsRecv,
        message: &SendWr,
        receive: RecvWr,
        depth: u32,
    ) -> Result<Self, PostError> {
        drop(recv);
        let (qp, max_inline) = send.queue_pair();
        let region = match message.sge.region {
            RegionId::Rx => qp.rx(),
            RegionId::Tx => qp.tx(),
        };
        let entry = Box::new(region.span().sge(message.sge.offset, message.sge.len)?);
        let len = message.sge.len as usize;
        let mut inline = vec![0; if len <= max_inline { len } else { 0 }].into_boxed_slice();
        region.span().load(message.sge.offset, &mut inline)?;
        let flags = if inline.is_empty() { 0 } else { ibv_send_flags::IBV_SEND_INLINE.0 };
        let mut request = ibv_send_wr::zeroed();
        set_verb(&mut request, message.verb);
        let mut end = Self {
            qp: Arc::clone(qp),
            request,
            entry,
            inline,
            flags,
            receive,
            depth,
            in_flight: 0,
            since_signal: 0,
            wc: std::array::from_fn(|_| ibv_wc::zeroed()),
        };
        if !end.inline.is_empty() {
            end.entry.addr = end.inline.as_ptr().expose_provenance() as u64;
        }
        end.request.sg_list = &raw mut *end.entry;
        end.request.num_sge = c_int::from(len > 0);
        end.request.next = ptr::null_mut();
        Ok(end)
    }

    /// Posts the message. Waits for a completion when the send queue is full.
    ///
    /// # Errors
    /// What `ibv_post_send` refuses, or a send that failed.
    #[inline]
    pub fn send(&mut self) -> io::Result<()> {
        self.since_signal += 1;
        self.request.send_flags = self.flags;
        if self.since_signal == SIGNAL_EVERY {
            self.since_signal = 0;
            self.request.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
            self.reap()?;
        }
        while self.in_flight == self.depth {
            self.reap()?;
            std::hint::spin_loop();
        }
        self.in_flight += 1;
        // SAFETY: one request without a successor; its entry leads to our own bytes when it is inline, and into a
        // region of the queue pair otherwise.
        unsafe { self.qp.post_send(NonNull::from(&mut self.request)) }.map_err(|refused| refused.1)
    }

    /// Messages that have arrived, at most 16; their receives are posted again. Never blocks.
    ///
    /// # Errors
    /// A receive that failed, or cannot be posted again.
    #[inline]
    pub fn receive(&mut self) -> io::Result<u32> {
        let count = self.qp.recv_cq().poll(&mut self.wc).map_err(io::Error::other)?;
        for at in 0..count {
            check(&self.wc[at], "receive")?;
            self.qp.post_recv(self.receive).map_err(io::Error::other)?;
        }
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn reap(&mut self) -> io::Result<()> {
        let count = self.qp.send_cq().poll(&mut self.wc).map_err(io::Error::other)?;
        for wc in &self.wc[..count] {
            check(wc, "send")?;
            self.in_flight = self.in_flight.saturating_sub(SIGNAL_EVERY);
        }
        Ok(())
    }
}

#[inline]
fn check(wc: &ibv_wc, what: &'static str) -> io::Result<()> {
    let failed: Option<CompletionError> = cq::failure(wc, what);
    failed.map_or(Ok(()), |error| Err(io::Error::other(error)))
}
