//! Handlers written in C: one function pointer that sees whole slots.

use std::ffi::c_void;

use roce_ring::SlotBytes;

use crate::schema::{DispatchMode, FunctionEntry, RawFunctionTable};
use crate::table::{Function, Handler};
use crate::{DispatchError, FunctionTable};

/// A host call in C: `void handler(const void *rx_slot, void *tx_slot, size_t slot_size)`.
///
/// It reads the request, header included, from `rx_slot` and writes the response, header included, into
/// `tx_slot`. Both have `slot_size` bytes. `rx_slot` is a copy of the request that nobody else writes, zero
/// past its last argument; arguments begin on an 8-byte boundary.
pub type RawHandler = unsafe extern "C" fn(rx_slot: *const c_void, tx_slot: *mut c_void, slot_size: usize);

/// A raw handler whose registrar has vouched for it.
#[derive(Clone, Copy)]
pub(crate) struct RawFunction(RawHandler);

impl RawFunction {
    /// Runs the handler over a request that fills `request` and the TX slot that answers it.
    pub(crate) fn call(self, request: &[u8], tx: SlotBytes<'_>) {
        let slot_size = request.len().min(tx.len());
        // SAFETY: whoever registered the handler promised that it reads `slot_size` bytes at its first and writes
        // `slot_size` bytes at its second pointer and keeps neither. The first is a live slice that nobody else
        // writes; the second is the ring's memory, kept alive by `tx`, and free, so that no other thread uses it.
        unsafe { (self.0)(request.as_ptr().cast(), tx.as_ptr().cast(), slot_size) }
    }
}

impl FunctionTable {
    /// Adds a function written in C.
    ///
    /// # Errors
    /// [`DispatchError::Duplicate`] when a function of that name, or one whose name has the same hash, is there.
    ///
    /// # Safety
    /// For as long as the table lives, and from whichever thread serves it, `handler` may be called. It then must
    /// only read the `slot_size` bytes at `rx_slot`, only touch the `slot_size` bytes at `tx_slot`, use neither
    /// after it has returned, and not unwind (no C++ exception may leave it).
    pub unsafe fn register_raw(&mut self, name: &str, handler: RawHandler) -> Result<(), DispatchError> {
        self.add(name, None, Handler::Raw(RawFunction(handler)))
    }

    /// Adds every function of a C table. Nothing is kept of the table itself. Its schemas are not enforced: C
    /// handlers check their arguments themselves, and some leave their schema empty.
    ///
    /// # Errors
    /// [`DispatchError::NullTable`], and at the first entry that is refused [`DispatchError::NotHostCall`],
    /// [`DispatchError::NullHandler`] or [`DispatchError::Duplicate`]; the entries before it stay added.
    ///
    /// # Safety
    /// `table.entries` points to `table.count` entries that nobody writes during this call, and every handler of a
    /// HOST_CALL entry is null or a [`RawHandler`] that keeps the promises of [`register_raw`](Self::register_raw).
    pub unsafe fn register_c_table(&mut self, table: &RawFunctionTable) -> Result<(), DispatchError> {
        if table.count == 0 {
            return Ok(());
        }
        if table.entries.is_null() {
            return Err(DispatchError::NullTable { count: table.count });
        }
        for i in 0..table.count as usize {
            // SAFETY: the caller promised `count` readable entries from here on.
            let entry = unsafe { table.entries.add(i).read() };
            // SAFETY: the caller promised this of each entry's handler.
            unsafe { self.register_entry(&entry)? };
        }
        Ok(())
    }

    /// # Safety
    /// As [`register_c_table`](Self::register_c_table) asks of an entry.
    unsafe fn register_entry(&mut self, entry: &FunctionEntry) -> Result<(), DispatchError> {
        let id = entry.function_id;
        if entry.dispatch_mode != DispatchMode::HostCall.id() {
            return Err(DispatchError::NotHostCall { id, mode: entry.dispatch_mode });
        }
        if entry.handler.is_null() {
            return Err(DispatchError::NullHandler { id });
        }
        // SAFETY: not null, and the caller promised that a HOST_CALL entry's handler has this signature.
        let handler = unsafe { std::mem::transmute::<*const c_void, RawHandler>(entry.handler) };
        self.insert(Function::with_id(id, Handler::Raw(RawFunction(handler))))
    }
}
