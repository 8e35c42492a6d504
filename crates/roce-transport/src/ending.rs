//! The end of what moves a transceiver's messages, awaited by who closes it.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::mover::Mover;

/// Told once, by what has moved the messages.
#[derive(Default)]
pub(crate) struct Ending {
    /// `None` until then.
    left: Mutex<Option<Vec<Box<dyn Mover>>>>,
    told: Condvar,
}

impl Ending {
    /// Nothing moves messages from here on. `left` is freed by who closes: to destroy a queue pair takes long.
    pub(crate) fn tell(&self, left: Vec<Box<dyn Mover>>) {
        *self.lock() = Some(left);
        self.told.notify_all();
    }

    pub(crate) fn is_told(&self) -> bool {
        self.lock().is_some()
    }

    /// Returns once it is told.
    pub(crate) fn wait(&self) {
        drop(self.told());
    }

    /// Waits, and frees what is left; under the lock, so that of several that close all return when it is free.
    pub(crate) fn collect(&self) {
        *self.told() = Some(Vec::new());
    }

    fn told(&self) -> MutexGuard<'_, Option<Vec<Box<dyn Mover>>>> {
        let waiting = self.told.wait_while(self.lock(), |left| left.is_none());
        waiting.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Box<dyn Mover>>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending").field("is_told", &self.is_told()).finish_non_exhaustive()
    }
}
