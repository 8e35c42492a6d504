//! The FPGA's clock: seconds and nanoseconds since the epoch.

use std::time::{SystemTime, UNIX_EPOCH};

use roce_core::FrameTime;

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A time as messages carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Timestamp {
    pub(crate) seconds: u32,
    pub(crate) nanoseconds: u32,
}

impl Timestamp {
    /// The system's time. Seconds wrap as an FPGA's 32 bits do.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs() as u32, nanoseconds: since.subsec_nanos() }
    }

    /// The system's time, or the next nanosecond where the clock has not moved on from `last`: each window's
    /// send time tells it apart.
    pub(crate) fn now_after(last: Self) -> Self {
        Self::now().max(last.next())
    }

    fn next(self) -> Self {
        if self.nanoseconds + 1 < NANOS_PER_SECOND {
            Self { nanoseconds: self.nanoseconds + 1, ..self }
        } else {
            Self { seconds: self.seconds.wrapping_add(1), nanoseconds: 0 }
        }
    }

    /// As a frame's metadata have it.
    pub(crate) fn frame_time(self) -> FrameTime {
        FrameTime { seconds: self.seconds.into(), nanoseconds: self.nanoseconds }
    }

    /// Seconds in the high word, nanoseconds in the low one.
    pub(crate) fn packed(self) -> u64 {
        u64::from(self.seconds) << 32 | u64::from(self.nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_send_times_are_the_same() {
        let ahead = Timestamp { seconds: u32::MAX - 1, nanoseconds: NANOS_PER_SECOND - 1 };
        assert_eq!(Timestamp::now_after(ahead), Timestamp { seconds: u32::MAX, nanoseconds: 0 });
        let first = Timestamp::now_after(Timestamp::default());
        assert!(Timestamp::now_after(first) > first);
    }

    #[test]
    fn seconds_are_the_high_word() {
        let time = Timestamp { seconds: 0x1122_3344, nanoseconds: 0x0102_0304 };
        assert_eq!(time.packed(), 0x1122_3344_0102_0304);
    }
}
