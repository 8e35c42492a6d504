//! The receiving half.

use std::sync::Arc;

use roce_core::{CompletionError, PostError, Received, RecvCompletion, RecvKind, RecvWr, UcRecv};

use crate::cq::{self, Cq};
use crate::events::Watch;
use crate::qp::QpHandle;
use crate::stats::VerbsStats;
use crate::sys::{Zeroed, ibv_wc};

/// Completions taken from the device at once.
const BATCH: usize = 32;

/// The receiving half of a queue pair, for one thread.
#[derive(Debug)]
pub struct VerbsRecv {
    qp: Arc<QpHandle>,
    cq: Arc<Cq>,
    completions: Completions,
    depth: u32,
    outstanding: u32,
    watch: Watch,
    stats: Arc<VerbsStats>,
}

/// Where the device writes completions to.
pub(crate) struct Completions(Box<[ibv_wc]>);

impl Completions {
    pub(crate) fn new() -> Self {
        Self((0..BATCH).map(|_| ibv_wc::zeroed()).collect())
    }

    /// At most `max` of what has completed.
    #[inline]
    pub(crate) fn poll(&mut self, cq: &Cq, max: usize) -> Result<&[ibv_wc], CompletionError> {
        let room = max.min(BATCH);
        let filled = cq.poll(&mut self.0[..room])?;
        Ok(&self.0[..filled.min(room)])
    }
}

impl std::fmt::Debug for Completions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completions").finish_non_exhaustive()
    }
}

impl VerbsRecv {
    pub(crate) fn new(qp: &Arc<QpHandle>, depth: u32, stats: &Arc<VerbsStats>) -> Self {
        Self {
            qp: Arc::clone(qp),
            cq: Arc::clone(qp.recv_cq()),
            completions: Completions::new(),
            depth,
            outstanding: 0,
            watch: Watch::new(qp.fault()),
            stats: Arc::clone(stats),
        }
    }

    /// The queue pair was reset: nothing is posted any more.
    pub(crate) fn forget_posted(&mut self) {
        self.outstanding = 0;
    }

    /// Every so many idle polls: what has happened to the queue pair, its port or the device.
    #[inline]
    fn idle(&mut self) -> Result<usize, CompletionError> {
        if self.watch.idle() {
            self.qp.collect_events(&self.watch)?;
        }
        Ok(0)
    }
}

impl UcRecv for VerbsRecv {
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if self.outstanding >= self.depth {
            return Err(PostError::QueueFull);
        }
        self.qp.post_recv(wr)?;
        self.outstanding += 1;
        self.stats.rx.posted.add(1);
        Ok(())
    }

    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        let completions = self.completions.poll(&self.cq, out.len())?;
        let count = completions.len();
        for (out, wc) in out.iter_mut().zip(completions) {
            *out = received(wc);
        }
        if count == 0 {
            return self.idle();
        }
        self.outstanding = self.outstanding.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        self.stats.rx.completed.add(count as u64);
        Ok(count)
    }
}

#[inline]
fn received(wc: &ibv_wc) -> RecvCompletion {
    let id = u32::try_from(wc.wr_id).unwrap_or(u32::MAX);
    let kind = if cq::is_write(wc) { RecvKind::WriteWithImm } else { RecvKind::Send };
    let result = match cq::failure(wc, "receive") {
        None => Ok(Received::new(kind, wc.byte_len, cq::immediate(wc))),
        Some(error) => Err(error),
    };
    RecvCompletion { id, result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{ibv_wc_flags, ibv_wc_opcode};

    #[test]
    fn completions_keep_kind_length_and_immediate() {
        let mut wc = ibv_wc::zeroed();
        (wc.wr_id, wc.byte_len, wc.opcode) = (7, 100, ibv_wc_opcode::IBV_WC_RECV);
        let send = Received::new(RecvKind::Send, 100, None);
        assert_eq!(received(&wc), RecvCompletion { id: 7, result: Ok(send) });
        wc.opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        wc.imm_data_invalidated_rkey_union.imm_data = 3u32.to_be();
        let write = Received::new(RecvKind::WriteWithImm, 100, Some(3));
        assert_eq!(received(&wc).result, Ok(write));
        wc.status = 4;
        let failed = received(&wc);
        assert_eq!((failed.id, failed.result.map_err(|e| e.reason)), (7, Err("IBV_WC_LOC_PROT_ERR")));
    }
}
