//! The calling side: many calls in flight over one ring, each answer paired with its call by the request id.
//!
//! ```text
//!  acquire ──> Frame<Acquired> ──> Frame<Dispatched> ──> Frame<Answered>
//!              write arguments      poll or wait          read results; drop releases the slot
//! ```
//!
//! A [`Caller`] owns a [`UnifiedLink`] and belongs to one thread; a [`CallerHandle`] offers it to several.
//! Arguments are written where they are sent from, and results are read where they arrived, as long as they are read
//! before the next poll: a poll moves unread results out of the ring first, since the peer may write there again. Until
//! then they are safe: a slot comes round again after as many messages as the ring has slots, and that many calls are
//! never in flight while one answer is held.
//!
//! The slot of a call follows from its id, and ids only count up. So answers may come in any order and in any RX
//! slot, and an answer to a call that is over is known by its id: it is counted as late and dropped. A call whose
//! answer is lost costs one timeout and nothing else.
//!
//! Once made, a caller allocates nothing, takes no lock, and reads the clock only now and then while it waits. So a
//! call's time runs from the first such look after its dispatch: it is never cut short, and a caller that does not
//! poll lets no call expire.
//!
//! ```
//! use std::time::Duration;
//! use roce_dispatch::UnifiedLink;
//! use roce_dispatch::caller::{CallError, Caller, Function};
//!
//! const SUM: Function<'_> = Function::new("sum");
//!
//! fn sum<L: UnifiedLink>(caller: &Caller<L>, numbers: &[i32]) -> Result<i64, CallError> {
//!     let mut frame = caller.acquire(&SUM)?;
//!     frame.put(numbers)?;
//!     let mut answer = frame.dispatch(Duration::from_millis(100))?.wait()?;
//!     answer.take()
//! }
//! ```

#![forbid(unsafe_code)]

mod calls;
mod error;
mod frame;
mod handle;
mod payload;
mod stats;

use std::cell::RefCell;
use std::fmt;

use roce_ring::Geometry;
use roce_transport::{Backoff, SpinPolicy, Unified};

use crate::rpc::function_id;
use crate::schema::HandlerSchema;
use crate::{DispatchError, UnifiedLink};

use calls::Calls;
pub use error::CallError;
pub use frame::{Acquired, Answered, Dispatched, Frame};
pub use handle::CallerHandle;
pub use payload::{Bits, Payload, Scalar};
pub use stats::{CallCounts, CallStats};

/// What came of a call.
pub type CallResult<'c, L> = Result<Frame<'c, L, Answered>, CallError>;

/// A function to call: its id, and what it takes and gives where that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function<'a> {
    id: u32,
    schema: Option<&'a HandlerSchema>,
}

impl<'a> Function<'a> {
    /// The function of that name. In a `const` the id is worked out by the compiler.
    pub const fn new(name: &str) -> Self {
        Self::from_id(function_id(name))
    }

    /// The function of that id.
    pub const fn from_id(id: u32) -> Self {
        Self { id, schema: None }
    }

    /// The same function, with each argument and result to be checked against `schema`.
    #[must_use]
    pub const fn with_schema(self, schema: &'a HandlerSchema) -> Self {
        Self { schema: Some(schema), ..self }
    }

    /// Its id on the wire.
    pub const fn id(&self) -> u32 {
        self.id
    }
}

/// Calls functions over a link, up to one call per slot at a time. One thread's; see the module's page.
///
/// The peer must give each request its answer, and that answer its request's id. A peer that serves slots strictly in
/// ring order is served in that order while no call times out and frames are dispatched in the order in which they
/// were acquired.
pub struct Caller<L = Unified> {
    calls: RefCell<Calls<L>>,
    geometry: Geometry,
    spin: SpinPolicy,
    stats: CallStats,
}

impl<L: UnifiedLink> Caller<L> {
    /// A caller over `link`.
    ///
    /// # Errors
    /// [`DispatchError::FrameTooSmall`] when a frame has no room for a header.
    pub fn new(link: L) -> Result<Self, DispatchError> {
        let stats = CallStats::default();
        let geometry = link.geometry();
        let calls = RefCell::new(Calls::new(link, stats.clone())?);
        Ok(Self { calls, geometry, spin: SpinPolicy::default(), stats })
    }

    /// The same caller, waiting in another way.
    #[must_use]
    pub fn with_spin(self, spin: SpinPolicy) -> Self {
        Self { spin, ..self }
    }

    /// The rings' shape: as many calls as slots may be in flight.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Bytes of arguments, and of results, that a frame has room for.
    pub fn room(&self) -> usize {
        self.calls.borrow().room()
    }

    /// A handle on the counters.
    pub fn stats(&self) -> CallStats {
        self.stats.clone()
    }

    /// Slots that are taken: frames in hand, and calls that were given up and not yet answered.
    pub fn in_use(&self) -> u32 {
        self.calls.borrow().taken()
    }

    /// Takes a free slot for a call. Never waits, but polls once when all are taken.
    ///
    /// # Errors
    /// [`CallError::Busy`] when all slots are taken: wait for an answer, or [`poll`](Self::poll). The link's.
    pub fn acquire<'c>(&'c self, function: &Function<'c>) -> Result<Frame<'c, L, Acquired>, CallError> {
        let mut calls = self.calls.borrow_mut();
        let slot = match calls.acquire() {
            Some(slot) => slot,
            None => {
                calls.poll()?;
                calls.acquire().ok_or(CallError::Busy { slots: self.geometry.num_pages() })?
            }
        };
        drop(calls);
        Ok(Frame::acquired(self, slot, function))
    }

    /// Takes the answers that have arrived, at most one per slot, and says how many messages that were. Never waits.
    ///
    /// # Errors
    /// The link's.
    pub fn poll(&self) -> Result<usize, CallError> {
        let mut calls = self.calls.borrow_mut();
        let mut messages = 0;
        while messages < self.geometry.num_pages() as usize && calls.poll()? {
            messages += 1;
        }
        Ok(messages)
    }

    /// Sends the requests that are [staged](Frame::stage). A poll or a wait does it too, once it has taken the messages at
    /// hand.
    ///
    /// # Errors
    /// The link's.
    pub fn flush(&self) -> Result<(), CallError> {
        self.calls.borrow_mut().flush()
    }

    /// Waits until one of `pending` is over, takes it out, and gives its request id and what came of it. `None` when
    /// there is none. The others change their order.
    pub fn wait_any<'c>(
        &'c self,
        pending: &mut Vec<Frame<'c, L, Dispatched>>,
    ) -> Option<(u32, CallResult<'c, L>)> {
        let mut backoff = Backoff::new(self.spin);
        while !pending.is_empty() {
            if let Some(over) = pending.iter().position(Frame::is_over) {
                let frame = pending.swap_remove(over);
                return Some((frame.request_id(), frame.wait()));
            }
            if let Err(error) = self.poll_or_idle(&mut backoff) {
                let frame = pending.swap_remove(0);
                return Some((frame.request_id(), Err(error)));
            }
        }
        None
    }

    /// Gives up all calls and goes on over another link, as after the peer was started again. Counters and request
    /// ids go on; the first call takes slot 0. Gives back the old link.
    ///
    /// # Errors
    /// [`DispatchError::FrameTooSmall`]; the caller is as it was, and `link` is dropped.
    pub fn reconnect(&mut self, link: L) -> Result<L, DispatchError> {
        let geometry = link.geometry();
        let old = self.calls.get_mut().replace_link(link)?;
        self.geometry = geometry;
        Ok(old)
    }

    /// One poll, and a moment's wait if it brought nothing.
    fn poll_or_idle(&self, backoff: &mut Backoff) -> Result<(), CallError> {
        let mut calls = self.calls.borrow_mut();
        if calls.poll()? {
            backoff.reset();
        } else if calls.is_open() {
            backoff.idle();
        } else {
            return Err(CallError::Closed);
        }
        Ok(())
    }
}

impl<L> fmt::Debug for Caller<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("geometry", &self.geometry)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
