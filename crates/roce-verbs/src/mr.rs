//! Registered memory.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use roce_core::{DmaRegion, Rkey};

use crate::context::torn_down;
use crate::error::VerbsError;
use crate::mem::Span;
use crate::pd::Pd;
use crate::sys::{self, ibv_mr};

/// A region that the device may read and write. It keeps the memory alive, and gives it up only after the device
/// has: that makes registering it safe.
#[derive(Debug)]
pub(crate) struct Mr {
    raw: NonNull<ibv_mr>,
    span: Span,
    rkey: Rkey,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs allows any thread to use a region; the object itself never changes.
unsafe impl Send for Mr {}
// SAFETY: shared use only reads the object, which never changes.
unsafe impl Sync for Mr {}

impl Mr {
    /// For receiving: a peer with the rkey may write it, and its first byte has the address 0 for the peer and
    /// in our own work requests. The region must begin on the boundary of a page: a device maps whole pages.
    pub(crate) fn register_rx(pd: &Arc<Pd>, region: &Arc<dyn DmaRegion>) -> Result<Self, VerbsError> {
        // SAFETY: a live domain; the region's bytes stay allocated and writable while `Mr` holds it, which it
        // does until the device has given them back. Nobody has references to them.
        let mr = unsafe {
            (pd.context().verbs().ibv_reg_mr_iova)(
                pd.raw().as_ptr(),
                region.base().as_ptr().cast(),
                region.len(),
                0,
                sys::REMOTE_WRITE.cast_signed(),
            )
        };
        Self::registered(pd, region, 0, sys::check_ptr(mr), ("ibv_reg_mr_iova", "RX"))
    }

    /// For sending: no peer can reach it.
    pub(crate) fn register_tx(pd: &Arc<Pd>, region: &Arc<dyn DmaRegion>) -> Result<Self, VerbsError> {
        Self::register_local(pd, region, "TX")
    }

    /// For copies of what is sent from either region; for the device it is as the TX region.
    pub(crate) fn register_staging(pd: &Arc<Pd>, region: &Arc<dyn DmaRegion>) -> Result<Self, VerbsError> {
        Self::register_local(pd, region, "staging")
    }

    fn register_local(
        pd: &Arc<Pd>,
        region: &Arc<dyn DmaRegion>,
        name: &'static str,
    ) -> Result<Self, VerbsError> {
        // SAFETY: a live domain, and bytes that stay until the device has given them back, as in `register_rx`.
        let mr = unsafe {
            (pd.context().verbs().ibv_reg_mr)(
                pd.raw().as_ptr(),
                region.base().as_ptr().cast(),
                region.len(),
                sys::LOCAL_WRITE.cast_signed(),
            )
        };
        let origin = region.base().addr().get() as u64;
        Self::registered(pd, region, origin, sys::check_ptr(mr), ("ibv_reg_mr", name))
    }

    fn registered(
        pd: &Arc<Pd>,
        region: &Arc<dyn DmaRegion>,
        origin: u64,
        mr: io::Result<NonNull<ibv_mr>>,
        (verb, name): (&'static str, &'static str),
    ) -> Result<Self, VerbsError> {
        let raw = mr.map_err(|source| VerbsError::RegisterMr {
            verb,
            region: name,
            device: pd.context().name().to_owned(),
            len: region.len(),
            memlock: memlock_limit(),
            source,
        })?;
        // SAFETY: a region that was just registered.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Self { raw, span: Span::new(region, origin, lkey), rkey: Rkey::new(rkey), pd: Arc::clone(pd) })
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn rkey(&self) -> Rkey {
        self.rkey
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let context = self.pd.context();
        // SAFETY: queue pairs keep their regions, so none uses this one now.
        let ret = unsafe { (context.verbs().ibv_dereg_mr)(self.raw.as_ptr()) };
        if !torn_down("ibv_dereg_mr", context.name(), ret) {
            // The device may still write: the memory must stay.
            std::mem::forget((Arc::clone(self.span.region()), Arc::clone(&self.pd)));
        }
    }
}

/// Bytes that this process may lock; `None` without limit.
fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local variable that may be written.
    let ret = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (ret == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
