//! The frame of one call, in a type for each state.

use std::fmt;
use std::time::Duration;

use roce_transport::Backoff;
use zerocopy::IntoBytes;

use super::calls::{Dispatch, Reply};
use super::payload::{Types, array_type};
use super::{CallError, CallResult, Caller, Function, Payload, Scalar};
use crate::UnifiedLink;
use crate::rpc::{packed_len, unpack_bits};
use crate::schema::{HandlerSchema, PayloadType};

/// One slot, held for one call. Dropping it gives the slot back: at once, or, once dispatched, when the answer comes
/// or the time is up.
pub struct Frame<'c, L: UnifiedLink, S> {
    held: Held<'c, L>,
    schema: Option<&'c HandlerSchema>,
    state: S,
}

/// The state in which arguments are written.
#[derive(Debug)]
pub struct Acquired {
    function_id: u32,
    ptp_timestamp: u64,
    capacity: u32,
    /// Bytes of arguments so far.
    len: usize,
    /// Arguments so far.
    count: usize,
}

/// The state in which the answer is awaited.
#[derive(Debug)]
pub struct Dispatched(());

/// The state in which results are read.
#[derive(Debug)]
pub struct Answered {
    reply: Reply,
    /// Bytes of results taken so far.
    taken: usize,
    /// Results taken so far.
    count: usize,
}

/// Gives the slot back when dropped.
struct Held<'c, L: UnifiedLink> {
    caller: &'c Caller<L>,
    slot: u32,
}

impl<L: UnifiedLink> Drop for Held<'_, L> {
    fn drop(&mut self) {
        self.caller.calls.borrow_mut().release(self.slot);
    }
}

impl<L: UnifiedLink, S> Frame<'_, L, S> {
    /// The number by which its answer is known.
    pub fn request_id(&self) -> u32 {
        self.held.caller.calls.borrow().id(self.held.slot)
    }

    /// The slot of both rings that it has.
    pub fn slot(&self) -> u32 {
        self.held.slot
    }
}

impl<'c, L: UnifiedLink> Frame<'c, L, Acquired> {
    pub(super) fn acquired(caller: &'c Caller<L>, slot: u32, function: &Function<'c>) -> Self {
        let Function { id: function_id, schema } = *function;
        // A frame's length has 32 bits.
        let capacity = u32::try_from(caller.room()).unwrap_or(u32::MAX);
        let state = Acquired { function_id, ptp_timestamp: 0, capacity, len: 0, count: 0 };
        Self { held: Held { caller, slot }, schema, state }
    }

    /// Appends an argument.
    ///
    /// # Errors
    /// [`CallError::Type`] when the function's schema has another one there, [`CallError::TooLong`]; the frame is as
    /// it was.
    pub fn put(&mut self, argument: &(impl Payload + ?Sized)) -> Result<&mut Self, CallError> {
        let start = self.state.len;
        let end = self.end_of(start, argument.byte_len())?;
        Types::args(self.schema).check(self.state.count, argument.payload_type(), argument.elements())?;
        let mut calls = self.held.caller.calls.borrow_mut();
        argument.emit(&mut |at, bytes| calls.write(self.held.slot, start + at, start + at, bytes));
        drop(calls);
        self.state.len = end;
        self.state.count += 1;
        Ok(self)
    }

    /// Writes bytes at an offset in the arguments, in any order. What they leave out reads 0. Of a schema only the
    /// length in all is checked, at dispatch.
    ///
    /// # Errors
    /// [`CallError::TooLong`]; the frame is as it was.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<&mut Self, CallError> {
        let end = self.end_of(offset, bytes.len())?;
        self.held.caller.calls.borrow_mut().write(self.held.slot, self.state.len, offset, bytes);
        self.state.len = self.state.len.max(end);
        Ok(self)
    }

    /// Takes at most so many bytes of results; a longer answer is an error. Default: what a frame holds.
    ///
    /// # Errors
    /// [`CallError::Capacity`] when no frame holds that much.
    pub fn capacity(&mut self, bytes: usize) -> Result<&mut Self, CallError> {
        let room = self.held.caller.room();
        let fits = u32::try_from(bytes).ok().filter(|_| bytes <= room);
        self.state.capacity = fits.ok_or(CallError::Capacity { capacity: bytes, room })?;
        Ok(self)
    }

    /// The PTP timestamp of the request, which the answer brings back. Default: 0, unused.
    pub fn ptp_timestamp(&mut self, timestamp: u64) -> &mut Self {
        self.state.ptp_timestamp = timestamp;
        self
    }

    /// Sends the request. From the next look at the clock it may take `timeout` to be answered. A link that has no room
    /// for it is waited for, as a part of that time.
    ///
    /// # Errors
    /// [`CallError::Length`] when the arguments are not as long as the schema says, [`CallError::NoRoom`],
    /// [`CallError::Closed`] and [`CallError::Link`]; nothing was sent.
    pub fn dispatch(self, timeout: Duration) -> Result<Frame<'c, L, Dispatched>, CallError> {
        self.send(&self.call(timeout)?)?;
        Ok(self.dispatched())
    }

    /// As [`dispatch`](Self::dispatch), but the request leaves with the next [`Caller::flush`], poll or wait, together
    /// with all that were staged before: where a link sends several at the price of one, that makes for more calls per
    /// second.
    ///
    /// # Errors
    /// As [`dispatch`](Self::dispatch).
    pub fn stage(self, timeout: Duration) -> Result<Frame<'c, L, Dispatched>, CallError> {
        self.send(&Dispatch { staged: true, ..self.call(timeout)? })?;
        Ok(self.dispatched())
    }

    /// Sends the request and waits for nothing. The service answers all the same: the slot is taken until then, or
    /// until `timeout` is over.
    ///
    /// # Errors
    /// As [`dispatch`](Self::dispatch).
    pub fn dispatch_and_forget(self, timeout: Duration) -> Result<(), CallError> {
        self.send(&Dispatch { abandoned: true, ..self.call(timeout)? })
    }

    /// As [`stage`](Self::stage), without a wait: `None` when the link has no room now.
    pub(super) fn try_stage(self, timeout: Duration) -> Result<Option<Frame<'c, L, Dispatched>>, CallError> {
        let call = Dispatch { staged: true, ..self.call(timeout)? };
        let mut calls = self.held.caller.calls.borrow_mut();
        calls.prepare(self.held.slot, &call);
        let staged = calls.try_dispatch(self.held.slot, &call)?;
        drop(calls);
        Ok(staged.then(|| self.dispatched()))
    }

    fn call(&self, timeout: Duration) -> Result<Dispatch, CallError> {
        let Acquired { function_id, ptp_timestamp, capacity, len: arg_len, .. } = self.state;
        Types::args(self.schema).check_total(arg_len)?;
        let (abandoned, staged) = (false, false);
        Ok(Dispatch { function_id, arg_len, ptp_timestamp, capacity, timeout, abandoned, staged })
    }

    fn send(&self, call: &Dispatch) -> Result<(), CallError> {
        let Held { caller, slot } = self.held;
        let mut calls = caller.calls.borrow_mut();
        calls.prepare(slot, call);
        if calls.try_dispatch(slot, call)? { Ok(()) } else { calls.dispatch_waiting(slot, call, caller.spin) }
    }

    fn dispatched(self) -> Frame<'c, L, Dispatched> {
        Frame { held: self.held, schema: self.schema, state: Dispatched(()) }
    }

    fn end_of(&self, offset: usize, len: usize) -> Result<usize, CallError> {
        let room = self.held.caller.room();
        let end = offset.saturating_add(len);
        if end <= room { Ok(end) } else { Err(CallError::TooLong { len: end, room }) }
    }
}

impl<'c, L: UnifiedLink> Frame<'c, L, Dispatched> {
    /// Whether [`wait`](Self::wait) returns at once. Does not poll: see [`Caller::poll`].
    pub fn is_over(&self) -> bool {
        self.held.caller.calls.borrow().is_over(self.held.slot)
    }

    /// Polls until the call is over.
    ///
    /// # Errors
    /// [`CallError::Timeout`], [`CallError::Remote`], [`CallError::ResponseTooLarge`]; [`CallError::Length`] when
    /// the results are not as long as the schema says; [`CallError::Closed`] and [`CallError::Link`].
    pub fn wait(self) -> CallResult<'c, L> {
        let mut backoff = Backoff::new(self.held.caller.spin);
        let reply = loop {
            let outcome = self.held.caller.calls.borrow().outcome(self.held.slot);
            match outcome {
                Some(outcome) => break outcome?,
                None => self.held.caller.poll_or_idle(&mut backoff)?,
            }
        };
        Types::results(self.schema).check_total(reply.len)?;
        let state = Answered { reply, taken: 0, count: 0 };
        Ok(Frame { held: self.held, schema: self.schema, state })
    }
}

impl<'c, L: UnifiedLink> Frame<'c, L, Answered> {
    /// Bytes of results.
    #[allow(clippy::len_without_is_empty)] // a number, not a collection
    pub fn len(&self) -> usize {
        self.state.reply.len
    }

    /// Bytes of results that were not yet taken.
    pub fn left(&self) -> usize {
        self.len() - self.state.taken
    }

    /// The request's PTP timestamp, as it came back.
    pub fn ptp_timestamp(&self) -> u64 {
        self.state.reply.ptp_timestamp
    }

    /// Copies the `out.len()` bytes of results at `offset` out.
    ///
    /// # Errors
    /// [`CallError::Exhausted`] when there are not that many.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> Result<(), CallError> {
        let left = self.len().saturating_sub(offset);
        if out.len() > left {
            return Err(CallError::Exhausted { wanted: out.len(), left });
        }
        self.held.caller.calls.borrow().read(self.held.slot, offset, out);
        Ok(())
    }

    /// All results as bytes. Allocates.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.held.caller.calls.borrow().read(self.held.slot, 0, &mut bytes);
        bytes
    }

    /// Takes the next result: one number.
    ///
    /// # Errors
    /// [`CallError::Type`] when the function's schema has something else there, [`CallError::Exhausted`].
    pub fn take<T: Scalar>(&mut self) -> Result<T, CallError> {
        let mut number = T::default();
        self.check_next(T::TYPE, 1)?;
        self.take_bytes(number.as_mut_bytes())?;
        self.state.count += 1;
        Ok(number)
    }

    /// Takes the next result: as many numbers as `out` has.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_array<T: Scalar>(&mut self, out: &mut [T]) -> Result<(), CallError> {
        self.check_next(array_type::<T>(), out.len())?;
        self.take_bytes(out.as_mut_bytes())?;
        self.state.count += 1;
        Ok(())
    }

    /// Takes the next result: as many packed bits as `out` has.
    ///
    /// # Errors
    /// As [`take`](Self::take), and [`CallError::SpareBits`].
    pub fn take_bits(&mut self, out: &mut [bool]) -> Result<(), CallError> {
        const CHUNK: usize = 64;
        self.check_next(PayloadType::BitPacked, out.len())?;
        let (wanted, left) = (packed_len(out.len()), self.left());
        if wanted > left {
            return Err(CallError::Exhausted { wanted, left });
        }
        let bits = out.len();
        for chunk in out.chunks_mut(8 * CHUNK) {
            let packed = &mut [0; CHUNK][..packed_len(chunk.len())];
            self.take_bytes(packed)?;
            unpack_bits(packed, chunk).map_err(|_| CallError::SpareBits { bits })?;
        }
        self.state.count += 1;
        Ok(())
    }

    fn check_next(&self, got: PayloadType, elements: usize) -> Result<(), CallError> {
        Types::results(self.schema).check(self.state.count, got, elements)
    }

    fn take_bytes(&mut self, out: &mut [u8]) -> Result<(), CallError> {
        self.copy_to(self.state.taken, out)?;
        self.state.taken += out.len();
        Ok(())
    }
}

impl<L: UnifiedLink, S: fmt::Debug> fmt::Debug for Frame<'_, L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("slot", &self.held.slot)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
