//! The protection domain: regions and queue pairs of the same one may be used together.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::context::{Context, torn_down};
use crate::error::VerbsError;
use crate::sys::{self, ibv_pd};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows any thread to use a protection domain, and several at once.
unsafe impl Send for Pd {}
// SAFETY: shared use only reads the pointer, and libibverbs locks what it shares.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open, and the domain keeps it so.
        let pd = unsafe { (context.verbs().ibv_alloc_pd)(context.raw().as_ptr()) };
        let raw = sys::check_ptr(pd)
            .map_err(|source| VerbsError::AllocPd { device: context.name().to_owned(), source })?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(crate) fn raw(&self) -> NonNull<ibv_pd> {
        self.raw
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain has kept it, so nothing uses it now.
        let ret = unsafe { (self.context.verbs().ibv_dealloc_pd)(self.raw.as_ptr()) };
        if !torn_down("ibv_dealloc_pd", self.context.name(), ret) {
            std::mem::forget(Arc::clone(&self.context));
        }
    }
}
