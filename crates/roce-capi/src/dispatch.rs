//! Unified mode with a C callback: `blocking_monitor` drives the transceiver and calls it per request.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use roce_ring::Ring;
use roce_transport::{Backoff, Error, SpinPolicy};

use crate::engine::Failed;
use crate::error::Refusal;
use crate::port::AnyPort;

/// `size_t fn(void *ctx, const void *rx_slot, void *tx_slot, size_t slot_size)`: reads a request and writes the
/// answer, both of at most `slot_size` bytes; returns the answer's bytes, 0 for none.
pub type Dispatch = unsafe extern "C" fn(
    ctx: *mut c_void,
    rx_slot: *const c_void,
    tx_slot: *mut c_void,
    slot_size: usize,
) -> usize;

/// A callback and what it gets back.
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    function: Dispatch,
    ctx: *mut c_void,
}

// SAFETY: whoever set the callback allowed it to be called from the thread that monitors; `ctx` is only handed back.
unsafe impl Send for Callback {}

impl Callback {
    /// # Safety
    ///
    /// As long as it is set, `function` may be called with `ctx` from any one thread, touches nothing of the slots
    /// but their `slot_size` bytes while it runs, and does not unwind.
    pub(crate) unsafe fn new(function: Dispatch, ctx: *mut c_void) -> Self {
        Self { function, ctx }
    }

    fn call(self, rx: &Ring, tx: &Ring, slot: u32) -> usize {
        let (request, answer) = (rx.slot(slot), tx.slot(slot));
        // SAFETY: `new` was promised this call. Both slots have `len` bytes, and the rings outlive the call.
        unsafe { (self.function)(self.ctx, request.as_ptr().cast(), answer.as_ptr().cast(), request.len()) }
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").field("ctx", &self.ctx).finish_non_exhaustive()
    }
}

/// The loop that calls the callback.
pub(crate) struct Server<'a, F> {
    pub(crate) port: AnyPort,
    pub(crate) rx: &'a Ring,
    pub(crate) tx: &'a Ring,
    pub(crate) callback: Callback,
    /// Takes what the callback did wrong.
    pub(crate) complain: F,
}

impl<F: FnMut(Refusal)> Server<'_, F> {
    /// Serves until the transceiver is closed, or fails.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut backoff = Backoff::new(SpinPolicy::default());
        loop {
            match self.step() {
                Ok(true) => backoff.reset(),
                Ok(false) => backoff.idle(),
                Err(Failed) => break,
            }
        }
        match self.port.get().error() {
            Error::Closed => Ok(()),
            error => Err(error),
        }
    }

    /// Whether there was a request.
    fn step(&mut self) -> Result<bool, Failed> {
        let Some(slot) = self.port.get().rx_poll()? else { return Ok(false) };
        let slot_size = self.tx.geometry().page_size();
        let answer = self.callback.call(self.rx, self.tx, slot);
        match u32::try_from(answer) {
            Ok(0) => {}
            Ok(len) if len <= slot_size => self.port.get().tx_publish_len(slot, len)?,
            _ => (self.complain)(Refusal::AnswerTooLong { len: answer, slot_size }),
        }
        Ok(true)
    }
}

thread_local! {
    /// The object whose callback this thread runs.
    static SERVED: Cell<*const c_void> = const { Cell::new(ptr::null()) };
}

/// Marks this thread as the one that runs an object's callback, until dropped.
pub(crate) struct Serving(*const c_void);

impl Serving {
    pub(crate) fn begin<T>(object: &Arc<T>) -> Self {
        Self(SERVED.replace(Arc::as_ptr(object).cast()))
    }

    /// Whether this thread runs that object's callback.
    pub(crate) fn is(object: *const c_void) -> bool {
        SERVED.get() == object
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVED.set(self.0);
    }
}
