//! Completion queues.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use roce_core::CompletionError;

use crate::context::{Context, torn_down};
use crate::error::VerbsError;
use crate::events::Fault;
use crate::sys::{self, ibv_cq, ibv_wc, ibv_wc_opcode};

/// A completion queue. One thread polls it.
#[derive(Debug)]
pub(crate) struct Cq {
    raw: NonNull<ibv_cq>,
    context: Arc<Context>,
    /// The context word of `raw` points to it.
    fault: Arc<Fault>,
}

// SAFETY: libibverbs allows any thread to poll a completion queue, and locks against several at once.
unsafe impl Send for Cq {}
// SAFETY: the same locks allow shared use from several threads.
unsafe impl Sync for Cq {}

impl Cq {
    /// With room for `depth` completions at least.
    pub(crate) fn create(
        context: &Arc<Context>,
        depth: u32,
        fault: &Arc<Fault>,
    ) -> Result<Arc<Self>, VerbsError> {
        let entries = c_int::try_from(depth.max(1)).unwrap_or(c_int::MAX);
        let word = Arc::as_ptr(fault).cast_mut().cast();
        // SAFETY: an open context; no channel; the word's target is kept alive as long as the queue.
        let cq = unsafe {
            (context.verbs().ibv_create_cq)(context.raw().as_ptr(), entries, word, ptr::null_mut(), 0)
        };
        match sys::check_ptr(cq) {
            Ok(raw) => Ok(Arc::new(Self { raw, context: Arc::clone(context), fault: Arc::clone(fault) })),
            Err(source) => {
                let max = context.attributes().ok().map(|attr| attr.max_cqe);
                Err(VerbsError::CreateCq { device: context.name().to_owned(), depth, max, source })
            }
        }
    }

    pub(crate) fn raw(&self) -> NonNull<ibv_cq> {
        self.raw
    }

    /// Fills `wc` with what has completed, oldest first, and says how many.
    #[inline]
    pub(crate) fn poll(&self, wc: &mut [ibv_wc]) -> Result<usize, CompletionError> {
        // SAFETY: both the queue and its context live as long as `self`.
        unsafe { sys::poll_cq(self.raw, wc) }.map_err(poll_failed)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep their completion queues, so none uses this one now.
        let ret = unsafe { (self.context.verbs().ibv_destroy_cq)(self.raw.as_ptr()) };
        if !torn_down("ibv_destroy_cq", self.context.name(), ret) {
            std::mem::forget((Arc::clone(&self.context), Arc::clone(&self.fault)));
        }
    }
}

#[cold]
fn poll_failed(error: io::Error) -> CompletionError {
    let status = error.raw_os_error().unwrap_or(libc::EIO);
    CompletionError { what: "ibv_poll_cq", reason: "the completion queue is broken", status, vendor: 0 }
}

/// What a failed completion says; `None` for one that succeeded.
#[inline]
pub(crate) fn failure(wc: &ibv_wc, what: &'static str) -> Option<CompletionError> {
    if wc.status == 0 { None } else { Some(failed(wc, what)) }
}

#[cold]
fn failed(wc: &ibv_wc, what: &'static str) -> CompletionError {
    let name = usize::try_from(wc.status).ok().and_then(|i| STATUS.get(i).copied());
    let status = i32::try_from(wc.status).unwrap_or(i32::MAX);
    CompletionError { what, reason: name.unwrap_or("unknown status"), status, vendor: wc.vendor_err }
}

/// The immediate of a completion, in host order.
#[inline]
pub(crate) fn immediate(wc: &ibv_wc) -> Option<u32> {
    // SAFETY: 32 bits, however they are named.
    let bits = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
    (wc.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0).then(|| u32::from_be(bits))
}

/// Whether a receive was consumed by an RDMA WRITE WITH IMMEDIATE.
#[inline]
pub(crate) fn is_write(wc: &ibv_wc) -> bool {
    wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
}

/// The names of `enum ibv_wc_status`, by number.
pub(crate) const STATUS: [&str; 24] = [
    "IBV_WC_SUCCESS",
    "IBV_WC_LOC_LEN_ERR",
    "IBV_WC_LOC_QP_OP_ERR",
    "IBV_WC_LOC_EEC_OP_ERR",
    "IBV_WC_LOC_PROT_ERR",
    "IBV_WC_WR_FLUSH_ERR",
    "IBV_WC_MW_BIND_ERR",
    "IBV_WC_BAD_RESP_ERR",
    "IBV_WC_LOC_ACCESS_ERR",
    "IBV_WC_REM_INV_REQ_ERR",
    "IBV_WC_REM_ACCESS_ERR",
    "IBV_WC_REM_OP_ERR",
    "IBV_WC_RETRY_EXC_ERR",
    "IBV_WC_RNR_RETRY_EXC_ERR",
    "IBV_WC_LOC_RDD_VIOL_ERR",
    "IBV_WC_REM_INV_RD_REQ_ERR",
    "IBV_WC_REM_ABORT_ERR",
    "IBV_WC_INV_EECN_ERR",
    "IBV_WC_INV_EEC_STATE_ERR",
    "IBV_WC_FATAL_ERR",
    "IBV_WC_RESP_TIMEOUT_ERR",
    "IBV_WC_GENERAL_ERR",
    "IBV_WC_TM_ERR",
    "IBV_WC_TM_RNDV_INCOMPLETE",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Zeroed;

    #[test]
    fn failures_carry_name_number_and_vendor() {
        let mut wc = ibv_wc::zeroed();
        assert_eq!(failure(&wc, "send"), None);
        wc.status = 5;
        wc.vendor_err = 0xF9;
        let error = failure(&wc, "receive").expect("failed");
        assert_eq!(error.to_string(), "receive failed: IBV_WC_WR_FLUSH_ERR (status 5, vendor 0xf9)");
        wc.status = 999;
        assert_eq!(failure(&wc, "send").map(|e| (e.reason, e.status)), Some(("unknown status", 999)));
    }

    #[test]
    fn immediates_are_in_network_order() {
        let mut wc = ibv_wc::zeroed();
        wc.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
        assert_eq!(immediate(&wc), None, "the flag says whether there is one");
        wc.wc_flags = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
        assert_eq!(immediate(&wc), Some(0x0102_0304));
    }
}
