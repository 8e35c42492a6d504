//! Counters of a dispatch loop, readable while it runs.

use std::fmt;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use roce_core::Counter;

use crate::rpc::Status;

/// What a loop counts; the position in the array of counters.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Request,
    Response,
    BadMagic,
    UnknownFunction,
    BadLength,
    HandlerError,
    Panic,
    ResultTooLarge,
    NoResponse,
    Overwritten,
}

const EVENTS: usize = Event::Overwritten as usize + 1;

/// A handle on a loop's counters. Clones read the same ones.
#[derive(Clone, Default)]
pub struct DispatchStats(Arc<CachePadded<[Counter; EVENTS]>>);

impl DispatchStats {
    /// The counters now. They are read one after the other, so a running loop may be between two of them.
    pub fn snapshot(&self) -> DispatchCounts {
        let get = |event: Event| self.0[event as usize].get();
        DispatchCounts {
            requests: get(Event::Request),
            responses: get(Event::Response),
            bad_magic: get(Event::BadMagic),
            unknown_function: get(Event::UnknownFunction),
            bad_length: get(Event::BadLength),
            handler_errors: get(Event::HandlerError),
            panics: get(Event::Panic),
            result_too_large: get(Event::ResultTooLarge),
            no_response: get(Event::NoResponse),
            overwritten: get(Event::Overwritten),
        }
    }

    /// Only the loop calls this.
    #[inline]
    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].add(1);
    }

    /// As [`count`](Self::count), for `n` of them.
    pub(crate) fn count_several(&self, event: Event, n: u64) {
        self.0[event as usize].add(n);
    }

    /// Counts how a call went, where it did not go well.
    #[cold]
    pub(crate) fn count_status(&self, status: Status) {
        match status {
            Status::UNKNOWN_FUNCTION => self.count(Event::UnknownFunction),
            Status::BAD_LENGTH => self.count(Event::BadLength),
            Status::HANDLER_PANICKED => self.count(Event::Panic),
            Status::RESULT_TOO_LARGE => self.count(Event::ResultTooLarge),
            Status::NO_RESPONSE => self.count(Event::NoResponse),
            Status::SUCCESS => {}
            _ => self.count(Event::HandlerError),
        }
    }
}

impl fmt::Debug for DispatchStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// What a loop has done so far, in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatchCounts {
    /// Requests that were begun to be served, whatever came of it.
    pub requests: u64,
    /// Responses handed to the transport.
    pub responses: u64,
    /// Messages dropped because they are no requests.
    pub bad_magic: u64,
    /// Requests for a function that is not in the table.
    pub unknown_function: u64,
    /// Requests whose arguments reach past the slot or are not what the function's schema says.
    pub bad_length: u64,
    /// Requests that their handler answered with an error of its own.
    pub handler_errors: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Results that did not fit a frame.
    pub result_too_large: u64,
    /// Raw handlers that left no response header.
    pub no_response: u64,
    /// Requests that the peer overwrote while they were being read or served; they are not answered.
    pub overwritten: u64,
}

impl DispatchCounts {
    /// Name and value of each counter.
    pub fn fields(&self) -> [(&'static str, u64); 10] {
        [
            ("requests", self.requests),
            ("responses", self.responses),
            ("bad_magic", self.bad_magic),
            ("unknown_function", self.unknown_function),
            ("bad_length", self.bad_length),
            ("handler_errors", self.handler_errors),
            ("panics", self.panics),
            ("result_too_large", self.result_too_large),
            ("no_response", self.no_response),
            ("overwritten", self.overwritten),
        ]
    }
}
