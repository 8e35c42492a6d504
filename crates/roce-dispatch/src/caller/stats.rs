//! Counters of a caller, readable from any thread.

use std::fmt;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use roce_core::Counter;

/// What a caller counts; the position in the array of counters.
#[derive(Clone, Copy)]
pub(super) enum Event {
    Call,
    NoRoom,
    Answer,
    Error,
    Timeout,
    Late,
    Malformed,
}

const EVENTS: usize = Event::Malformed as usize + 1;

/// A handle on a caller's counters. Clones read the same ones.
#[derive(Clone, Default)]
pub struct CallStats(Arc<CachePadded<[Counter; EVENTS]>>);

impl CallStats {
    /// The counters now. They are read one after the other, so a busy caller may be between two of them.
    pub fn snapshot(&self) -> CallCounts {
        let get = |event: Event| self.0[event as usize].get();
        CallCounts {
            calls: get(Event::Call),
            no_room: get(Event::NoRoom),
            answers: get(Event::Answer),
            errors: get(Event::Error),
            timeouts: get(Event::Timeout),
            late: get(Event::Late),
            malformed: get(Event::Malformed),
        }
    }

    /// Only the caller's thread calls this.
    pub(super) fn count(&self, event: Event) {
        self.0[event as usize].add(1);
    }
}

impl fmt::Debug for CallStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// What a caller has done so far. Each call that is over is an answer, an error or a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCounts {
    /// Requests sent.
    pub calls: u64,
    /// Requests not sent, as the link had no room in time. They are no calls.
    pub no_room: u64,
    /// Answers with results, those to calls that were given up included.
    pub answers: u64,
    /// Answers that say why there are no results, or have more than fit.
    pub errors: u64,
    /// Calls that were not answered in time.
    pub timeouts: u64,
    /// Answers to calls that were over already. Dropped.
    pub late: u64,
    /// Messages that answer no call of this caller's. Dropped.
    pub malformed: u64,
}
