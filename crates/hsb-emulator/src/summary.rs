//! What came of all the windows.

use std::fmt;
use std::time::Duration;

use crate::announce::EnumerationCounts;
use crate::control::ControlCounts;

/// So many ids are kept; of the rest only the number.
const KEPT: usize = 1024;

/// What came of all the windows of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Windows sent.
    pub windows: u64,
    /// Windows answered, well or not.
    pub responses: u64,
    /// Answers that tell of a failure, and why.
    pub failures: IdList<Failure>,
    /// Windows that could not be sent, by request id.
    pub send_errors: IdList<u32>,
    /// Windows without an answer, by request id.
    pub timeouts: IdList<u32>,
    /// Packets of the windows sent, metadata included.
    pub packets: u64,
    /// Windows that the virtual port let out of the FPGA no more: its mask was off, or it was unconfigured.
    pub masked: u64,
    /// Answers to no window in flight: late, twice, or foreign.
    pub late: u64,
    /// Messages that an FPGA does not take: WRITEs, and SENDs with an immediate.
    pub ignored: u64,
    /// Windows still in flight when the run was stopped, or when the host ordered something else.
    pub abandoned: u64,
    /// Passes that could not be played, or broke off.
    pub refused: Vec<PassError>,
    /// How long the player ran.
    pub duration: Duration,
    /// From sending a window to its answer.
    pub round_trips: RoundTrips,
    /// What the control plane saw.
    pub control: ControlCounts,
    /// What came of its announcements; `None` where it makes none.
    pub enumeration: Option<EnumerationCounts>,
    /// Counters of the wire below the queue pair in use last, as the device names them.
    pub wire: Vec<(&'static str, u64)>,
}

impl Summary {
    /// Whether windows were sent and each of them was answered well.
    pub fn is_success(&self) -> bool {
        let clean = self.failures.is_empty() && self.send_errors.is_empty() && self.timeouts.is_empty();
        self.windows > 0 && self.responses == self.windows && clean && self.refused.is_empty()
    }
}

/// How many, and the first 1024 of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdList<T> {
    total: u64,
    first: Vec<T>,
}

impl<T> Default for IdList<T> {
    fn default() -> Self {
        Self { total: 0, first: Vec::new() }
    }
}

impl<T> IdList<T> {
    /// How many.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The first 1024.
    pub fn first(&self) -> &[T] {
        &self.first
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub(crate) fn push(&mut self, item: T) {
        self.total += 1;
        if self.first.len() < KEPT {
            self.first.push(item);
        }
    }
}

/// An answer that tells of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Of the window.
    pub request_id: u32,
    /// What is wrong.
    pub kind: FailureKind,
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Shorter than its header, or than its header says.
    Short {
        /// Bytes.
        len: usize,
    },
    /// Not a response; with `forward`, not a request.
    BadMagic {
        /// The first four bytes.
        magic: u32,
    },
    /// The handler or the dispatcher failed.
    Status {
        /// Positive: the handler's; negative: the dispatcher's.
        status: i32,
    },
    /// A forwarded request came back changed.
    EchoDiffers {
        /// Of the first byte that differs.
        offset: usize,
    },
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { len } => write!(f, "cut short, {len} bytes"),
            Self::BadMagic { magic } => write!(f, "magic {magic:#010x} is not an answer's"),
            Self::Status { status } => write!(f, "status {status}"),
            Self::EchoDiffers { offset } => write!(f, "byte {offset} differs from the request"),
        }
    }
}

/// Why a pass could not be played, or broke off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The player's registers make no windows that the playback memory holds.
    #[error(
        "{windows} windows of {size} bytes cannot be played: the size must be a multiple of 64, and there is room for \
         512 beats of 64 bytes"
    )]
    Windows {
        /// Of the WINDOW_NUMBER register.
        windows: u32,
        /// Of the WINDOW_SIZE register.
        size: u32,
    },
    /// The queue pair did not reach the peer that the virtual port names.
    #[error("no connection to QP {qpn:#x} at {ip}: {reason}")]
    Connect {
        /// The peer's queue pair.
        qpn: u32,
        /// The peer's address.
        ip: std::net::Ipv4Addr,
        /// What the device says.
        reason: String,
    },
    /// The queue pair failed; the next pass makes a new one, with another number.
    #[error("the queue pair broke: {0}")]
    QueuePair(#[from] roce_core::CompletionError),
}

/// Times from sending a window to its answer, by the emulator's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundTrips {
    count: u64,
    sum: Duration,
    min: Duration,
    max: Duration,
}

impl RoundTrips {
    pub(crate) fn record(&mut self, time: Duration) {
        self.min = if self.count == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.sum += time;
        self.count += 1;
    }

    /// How many were measured.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest; `None` before the first.
    pub fn min(&self) -> Option<Duration> {
        (self.count > 0).then_some(self.min)
    }

    /// The longest; `None` before the first.
    pub fn max(&self) -> Option<Duration> {
        (self.count > 0).then_some(self.max)
    }

    /// The mean; `None` before the first.
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.sum.as_nanos().checked_div(u128::from(self.count))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_is_every_window_answered_well() {
        let good = Summary { windows: 2, responses: 2, late: 1, ..Summary::default() };
        assert!(good.is_success());
        assert!(!Summary::default().is_success(), "nothing was shown");
        assert!(!Summary { responses: 1, ..good.clone() }.is_success());
        let mut failed = good.clone();
        failed.failures.push(Failure { request_id: 1, kind: FailureKind::Status { status: 5 } });
        let mut unsent = good.clone();
        unsent.send_errors.push(3);
        let refused = vec![PassError::Windows { windows: 513, size: 64 }];
        assert!(!failed.is_success() && !unsent.is_success());
        assert!(!Summary { refused, ..good }.is_success());
    }

    #[test]
    fn long_lists_are_counted_to_the_end() {
        let mut list = IdList::default();
        (0..2000_u32).for_each(|id| list.push(id));
        assert_eq!((list.total(), list.first().len(), list.first()[1023]), (2000, 1024, 1023));
    }

    #[test]
    fn round_trips() {
        let mut times = RoundTrips::default();
        assert_eq!((times.min(), times.mean(), times.max()), (None, None, None));
        [30, 10, 20].map(Duration::from_micros).into_iter().for_each(|time| times.record(time));
        let expected = [10, 20, 30].map(|us| Some(Duration::from_micros(us)));
        assert_eq!([times.min(), times.mean(), times.max()], expected);
    }
}
