//! How a thread waits for the next message.

use std::hint;
use std::thread;

/// How a polling thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpinPolicy {
    /// Never gives the core away. Only for threads that have one each.
    Spin,
    /// Polls this many times, then gives the core to whoever else wants it between polls. On a core of its
    /// own a thread comes straight back.
    SpinThenYield {
        /// Polls before the first yield.
        polls: u32,
    },
}

impl Default for SpinPolicy {
    fn default() -> Self {
        Self::SpinThenYield { polls: 64 }
    }
}

/// A wait under a [`SpinPolicy`].
#[derive(Debug)]
pub struct Backoff {
    polls: Option<u32>,
    idle: u32,
}

impl Backoff {
    /// Starts as if work had just been found.
    pub fn new(policy: SpinPolicy) -> Self {
        let polls = match policy {
            SpinPolicy::Spin => None,
            SpinPolicy::SpinThenYield { polls } => Some(polls),
        };
        Self { polls, idle: 0 }
    }

    /// There was something to do.
    pub fn reset(&mut self) {
        self.idle = 0;
    }

    /// There was nothing to do: waits a moment.
    pub fn idle(&mut self) {
        match self.polls {
            Some(polls) if self.idle >= polls => thread::yield_now(),
            _ => {
                self.idle = self.idle.saturating_add(1);
                hint::spin_loop();
            }
        }
    }
}
