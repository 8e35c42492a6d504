//! The sending half.

use std::sync::Arc;

use roce_core::{CompletionError, PostError, RegionId, SendWr, UcSend};

use crate::cq::{self, Cq};
use crate::events::Watch;
use crate::mem::Span;
use crate::qp::QpHandle;
use crate::recv::Completions;
use crate::staging::Staging;
use crate::stats::VerbsStats;
use crate::window::SendWindow;
use crate::wr::SendBatch;

/// The sending half of a queue pair, for one thread.
///
/// Messages are copied when they are staged, so their slots are free at once: up to the queue pair's inline limit to
/// be posted inline, and longer ones to registered memory of the queue pair's own, which has for each send that may
/// be on its way as many bytes as the TX region. A message longer than its share of the TX region, by
/// [`send_depth`](roce_core::QpAttr::send_depth), is not: see [`stage`](UcSend::stage).
#[derive(Debug)]
pub struct VerbsSend {
    qp: Arc<QpHandle>,
    cq: Arc<Cq>,
    rx: Span,
    tx: Span,
    batch: SendBatch,
    window: SendWindow,
    completions: Completions,
    watch: Watch,
    stats: Arc<VerbsStats>,
}

impl VerbsSend {
    pub(crate) fn new(qp: &Arc<QpHandle>, depth: u32, max_inline: u32, stats: &Arc<VerbsStats>) -> Self {
        Self {
            qp: Arc::clone(qp),
            cq: Arc::clone(qp.send_cq()),
            rx: qp.rx().span().clone(),
            tx: qp.tx().span().clone(),
            batch: SendBatch::new(depth, max_inline, Staging::new(qp.staging().span().clone(), depth)),
            window: SendWindow::new(depth),
            completions: Completions::new(),
            watch: Watch::new(qp.fault()),
            stats: Arc::clone(stats),
        }
    }

    /// The queue pair, and the bytes of the longest message that it posts inline.
    #[cfg(feature = "raw")]
    pub(crate) fn queue_pair(&self) -> (&Arc<QpHandle>, usize) {
        (&self.qp, self.batch.max_inline())
    }

    fn count_posted(&self) {
        self.stats.tx.posted.set(self.window.posted());
        self.stats.tx.signalled.set(self.window.signalled());
    }
}

impl UcSend for VerbsSend {
    /// Copies messages of up to `tx.len() / send_depth` bytes of the [`QpAttr`](roce_core::QpAttr), from either
    /// region: all of a ring whose slots are as many as the sends. A longer one the device reads where it is,
    /// between the flush and some completion that [`reap`](UcSend::reap) takes: whoever changes it earlier sends some
    /// of the new bytes.
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError> {
        let staged = self.batch.len() as u64;
        if staged >= self.window.room() {
            return Err(PostError::QueueFull);
        }
        let span = match wr.sge.region {
            RegionId::Rx => &self.rx,
            RegionId::Tx => &self.tx,
        };
        self.batch.push(self.window.number(staged), span, wr)
    }

    /// A refusal other than for want of room drops what it refuses: the queue pair is then useless.
    fn flush(&mut self) -> Result<usize, PostError> {
        let posted = self.batch.post(&self.qp, &mut self.window);
        self.count_posted();
        match posted {
            Ok(()) => Ok(0),
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => Ok(self.batch.len()),
            Err(source) => {
                self.batch.clear();
                Err(PostError::Os { call: "ibv_post_send", source })
            }
        }
    }

    fn reap(&mut self) -> Result<(), CompletionError> {
        let completions = self.completions.poll(&self.cq, usize::MAX)?;
        if completions.is_empty() {
            if self.watch.idle() {
                self.qp.collect_events(&self.watch)?;
            }
            return Ok(());
        }
        for wc in completions {
            if let Some(error) = cq::failure(wc, "send") {
                return Err(error);
            }
            self.window.complete(wc.wr_id);
        }
        self.stats.tx.completed.set(self.window.completed());
        Ok(())
    }
}
