//! What a loop does while there is nothing to serve.

#![forbid(unsafe_code)]

use std::hint::spin_loop;
use std::thread::yield_now;

/// What a loop does while there is nothing to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Spins. The lowest latency, for a core that the loop has to itself.
    Spin,
    /// Spins for a while, then lets other threads of the core run between any two looks.
    SpinThenYield {
        /// Looks before the first yield.
        spins: u32,
    },
}

impl Default for Idle {
    /// Some tens of microseconds of spinning, then yields.
    fn default() -> Self {
        Self::SpinThenYield { spins: 1000 }
    }
}

/// Looks in vain since the last message.
#[derive(Debug)]
pub(crate) struct Backoff {
    idle: Idle,
    looks: u32,
}

impl Backoff {
    pub(crate) fn new(idle: Idle) -> Self {
        Self { idle, looks: 0 }
    }

    /// To be told after each look how many messages it found.
    pub(crate) fn after(&mut self, found: usize) {
        if found > 0 {
            self.looks = 0;
            return;
        }
        self.looks = self.looks.saturating_add(1);
        match self.idle {
            Idle::SpinThenYield { spins } if self.looks > spins => yield_now(),
            _ => spin_loop(),
        }
    }
}
