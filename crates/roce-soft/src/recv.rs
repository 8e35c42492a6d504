//! The receiving half.

#![forbid(unsafe_code)]

use std::sync::Arc;

use roce_core::{CompletionError, Memory, PostError, Received, RecvCompletion, RecvWr, UcRecv, WireId};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::device::Registration;
use crate::qp::Completion;
use crate::send::FaultyLink;

/// The owner's ends of the two queues between it and the responder.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    receives: Producer<RecvWr>,
    completions: Consumer<Completion>,
    /// Posted, and the completion not taken yet: at most `depth`, so neither queue overflows.
    outstanding: u32,
    depth: u32,
    rx: Memory,
}

impl ReceiveQueue {
    /// With the responder's ends.
    pub(crate) fn new(depth: u32, rx: Memory) -> (Self, Consumer<RecvWr>, Producer<Completion>) {
        let (receives, responder_receives) = RingBuffer::new(depth as usize);
        let (responder_completions, completions) = RingBuffer::new(depth as usize);
        let queue = Self { receives, completions, outstanding: 0, depth, rx };
        (queue, responder_receives, responder_completions)
    }

    #[inline]
    pub(crate) fn post(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if !self.rx.contains(wr.offset, wr.len as usize) {
            return Err(PostError::OutOfRange { offset: wr.offset, len: wr.len, region_len: self.rx.len() });
        }
        if self.outstanding == self.depth {
            return Err(PostError::QueueFull);
        }
        self.receives.push(wr).map_err(|_| PostError::QueueFull)?;
        self.outstanding += 1;
        Ok(())
    }

    #[inline]
    fn take(&mut self, out: &mut [RecvCompletion]) -> usize {
        let mut taken = 0;
        // Asked for their number first, as the queue is empty most of the time.
        for slot in out.iter_mut().take(self.completions.slots()) {
            let Ok(Completion { id, kind, len, imm, lead }) = self.completions.pop() else { break };
            *slot = RecvCompletion { id, result: Ok(Received { kind, len, imm, lead }) };
            self.outstanding -= 1;
            taken += 1;
        }
        taken
    }
}

/// The receiving half of a queue pair.
#[derive(Debug)]
pub struct SoftRecv {
    registration: Arc<Registration>,
    queue: ReceiveQueue,
    /// Packets that the fault injector holds leave here too, as nothing else may be called for long.
    faults: Option<FaultyLink>,
}

impl SoftRecv {
    pub(crate) fn new(
        registration: Arc<Registration>,
        queue: ReceiveQueue,
        faults: Option<FaultyLink>,
    ) -> Self {
        Self { registration, queue, faults }
    }
}

impl UcRecv for SoftRecv {
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.queue.post(wr)
    }

    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        if let Some(faults) = &self.faults {
            // An error is counted, and the sending half meets it as well.
            let _ = faults.pump_unless_busy();
        }
        let taken = self.queue.take(out);
        if taken != 0 {
            return Ok(taken);
        }
        match self.registration.port.drive() {
            Ok(true) => Ok(self.queue.take(out)),
            Ok(false) => Ok(0),
            Err(e) => Err(CompletionError {
                what: "receive",
                reason: "the UDP socket failed",
                status: e.raw_os_error().unwrap_or(0),
                vendor: 0,
            }),
        }
    }

    fn counts_packets(&self) -> bool {
        true
    }

    /// Bytes land while somebody polls, and their completions are queued then.
    fn poll_landed(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        Ok(self.queue.take(out))
    }
    /// The socket of the address.
    fn shared_wire(&self) -> Option<WireId> {
        Some(WireId::of(&self.registration.port))
    }
}
