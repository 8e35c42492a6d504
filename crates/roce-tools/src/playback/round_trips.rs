//! How long the answers took by the FPGA's own clock: from the send time that it put into a request to the time at
//! which it captured the answer.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::Error;

/// Bins that a histogram has at most, the open one apart.
const BINS: u64 = 24;
/// Characters of its longest bar.
const BAR: u64 = 40;

/// One message's way out and back, in nanoseconds since the epoch of the FPGA's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// Its id.
    pub message: u32,
    /// When it was sent.
    pub sent: u64,
    /// When its answer was captured.
    pub captured: u64,
}

impl RoundTrip {
    /// Nanoseconds.
    pub fn took(&self) -> u64 {
        self.captured.saturating_sub(self.sent)
    }
}

/// Writes the round trips as CSV, in the order of their capture: `message,sent_ns,captured_ns,rtt_ns`.
pub fn write_csv(path: &Path, trips: &[RoundTrip]) -> Result<(), Error> {
    let mut text = String::from("message,sent_ns,captured_ns,rtt_ns\n");
    for trip in trips {
        let _ = writeln!(text, "{},{},{},{}", trip.message, trip.sent, trip.captured, trip.took());
    }
    fs::write(path, text).map_err(|source| Error::File { call: "write", path: path.to_owned(), source })
}

/// Round trips in nanoseconds, from the FPGA's send time to its time of capture; `None` where none was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Rtt {
    /// The shortest.
    pub min: Option<u64>,
    /// Half took no longer.
    pub p50: Option<u64>,
    /// 99 of 100 took no longer.
    pub p99: Option<u64>,
    /// 999 of 1000 took no longer.
    pub p999: Option<u64>,
    /// The longest.
    pub max: Option<u64>,
    /// The average.
    pub mean: Option<u64>,
    /// The standard deviation.
    pub deviation: Option<u64>,
}

impl Rtt {
    /// Of round trips in ascending order.
    pub(super) fn of(sorted: &[u64]) -> Self {
        // The least value that at least so many of a thousand do not exceed.
        let permille = |n: usize| sorted.get((sorted.len() * n).div_ceil(1000).max(1) - 1).copied();
        let mean = mean(sorted.iter().map(|&took| u128::from(took)));
        let variance =
            mean.and_then(|m| self::mean(sorted.iter().map(|&took| u128::from(took.abs_diff(m)).pow(2))));
        Self {
            min: sorted.first().copied(),
            p50: permille(500),
            p99: permille(990),
            p999: permille(999),
            max: sorted.last().copied(),
            mean,
            deviation: variance.map(u64::isqrt),
        }
    }
}

fn mean(values: impl ExactSizeIterator<Item = u128>) -> Option<u64> {
    let count = values.len() as u128;
    u64::try_from(values.sum::<u128>().checked_div(count)?).ok()
}

/// How many round trips took how long.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Where the first bin begins, in nanoseconds.
    pub from_ns: u64,
    /// How wide each bin is, in nanoseconds.
    pub bin_ns: u64,
    /// Round trips in each bin.
    pub counts: Vec<u64>,
    /// Round trips beyond the last bin.
    pub beyond: u64,
    /// For people, a line for each bin: where it begins in microseconds, its count, and a bar.
    pub text: String,
}

impl Histogram {
    /// Of round trips in ascending order. The bins reach to the 99th percentile; a few outliers do not squeeze the rest.
    pub(super) fn of(sorted: &[u64]) -> Self {
        let Rtt { min: Some(min), p99: Some(p99), .. } = Rtt::of(sorted) else { return Self::default() };
        let bin_ns = round_width((p99 - min) / BINS + 1);
        let from_ns = min / bin_ns * bin_ns;
        let bins = (p99 - from_ns) / bin_ns + 1;
        let bin_of = |took: u64| (took - from_ns) / bin_ns;
        let beyond = sorted.iter().filter(|&&took| bin_of(took) >= bins).count() as u64;
        let in_bin = |bin| sorted.iter().filter(|&&took| bin_of(took) == bin).count() as u64;
        let bare =
            Self { from_ns, bin_ns, counts: (0..bins).map(in_bin).collect(), beyond, text: String::new() };
        Self { text: bare.for_people(), ..bare }
    }

    fn for_people(&self) -> String {
        let most = self.counts.iter().copied().max().unwrap_or(0).max(self.beyond).max(1);
        let mut text = String::new();
        let mut line = |edge: String, count: u64| {
            let bar = "#".repeat(usize::try_from((count * BAR).div_ceil(most)).unwrap_or(0));
            let _ = writeln!(text, "  {edge:>12} us  {count:>7}  {bar}");
        };
        let mut edge = self.from_ns;
        for &count in &self.counts {
            line(micros(edge), count);
            edge += self.bin_ns;
        }
        if self.beyond > 0 {
            line(format!("{} or more", micros(edge)), self.beyond);
        }
        text
    }
}

/// The next of 1, 2, 5, 10, 20, 50, ...
fn round_width(least: u64) -> u64 {
    let mut decade = 1;
    loop {
        for step in [1, 2, 5] {
            if step * decade >= least {
                return step * decade;
            }
        }
        decade *= 10;
    }
}

fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_ramp() {
        let ramp: Vec<u64> = (1..=1000).collect();
        let rtt = Rtt::of(&ramp);
        assert_eq!(
            (rtt.min, rtt.p50, rtt.p99, rtt.p999, rtt.max),
            (Some(1), Some(500), Some(990), Some(999), Some(1000))
        );
        assert_eq!((rtt.mean, rtt.deviation), (Some(500), Some(288)));
        assert_eq!(Rtt::of(&[]), Rtt::default());
        assert_eq!(Rtt::of(&[7]).deviation, Some(0));
    }

    #[test]
    fn every_round_trip_is_in_one_bin() {
        for sorted in [vec![5], vec![0, 0, 0], (3000..9000).collect(), vec![1_000, 1_001, u64::MAX / 2]] {
            let histogram = Histogram::of(&sorted);
            let counted = histogram.counts.iter().sum::<u64>() + histogram.beyond;
            assert_eq!(counted, sorted.len() as u64, "{histogram:?}");
            assert!(histogram.counts.len() as u64 <= BINS + 1, "{histogram:?}");
            assert!(histogram.from_ns <= sorted[0]);
        }
        assert_eq!(Histogram::of(&[]), Histogram::default());
    }

    #[test]
    fn outliers_stand_apart() {
        let mut sorted = vec![4_000; 150];
        sorted.extend(vec![4_900; 49]);
        sorted.push(1_000_000);
        let histogram = Histogram::of(&sorted);
        assert_eq!((histogram.from_ns, histogram.bin_ns, histogram.beyond), (4_000, 50, 1));
        assert_eq!((histogram.counts[0], histogram.counts[18]), (150, 49));
        let text = histogram.text;
        assert!(text.starts_with(&format!("         4.000 us      150  {}\n", "#".repeat(40))), "{text}");
        assert!(text.ends_with("4.950 or more us        1  #\n"), "{text}");
    }

    #[test]
    fn the_csv_has_a_line_for_each() {
        let path = tempfile::NamedTempFile::new().unwrap();
        write_csv(path.path(), &[RoundTrip { message: 3, sent: 10, captured: 4_010 }]).unwrap();
        let text = fs::read_to_string(path.path()).unwrap();
        assert_eq!(text, "message,sent_ns,captured_ns,rtt_ns\n3,10,4010,4000\n");
        assert!(write_csv(Path::new("/no/such/folder/x.csv"), &[]).is_err());
    }
}
