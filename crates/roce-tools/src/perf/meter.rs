//! Counts and times what a loop does, and says when it is enough.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::machine::resident_kib;
use super::plan::Budget;
use super::record::Bin;

/// What came of one run.
#[derive(Debug)]
pub(super) struct Sample {
    /// Nanoseconds, each of `batch` messages.
    pub(super) times: Histogram<u64>,
    /// Messages that one entry stands for.
    pub(super) batch: u64,
    /// Messages.
    pub(super) count: u64,
    /// Messages that were never answered.
    pub(super) lost: u64,
    pub(super) elapsed: Duration,
    pub(super) series: Vec<Bin>,
    /// Payload bytes of the link's packets.
    pub(super) mtu: Option<u32>,
    /// Of the process, from the warm-up to the end.
    pub(super) memory_growth_kib: i64,
}

/// Longer than anything that is not a fault.
const LONGEST_NS: u64 = 60_000_000_000;
/// Bins of a time series.
const BINS: u32 = 200;

fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, digits).expect("bounds that a histogram takes")
}

impl Sample {
    /// Nothing yet. Each entry will stand for `batch` messages.
    pub(super) fn new(batch: u64) -> Self {
        Self {
            times: histogram(3),
            batch,
            count: 0,
            lost: 0,
            elapsed: Duration::ZERO,
            series: Vec::new(),
            mtu: None,
            memory_growth_kib: 0,
        }
    }

    /// Nanoseconds of a message at quantile `q`, 0 to 1.
    pub(super) fn ns(&self, q: f64) -> f64 {
        self.times.value_at_quantile(q) as f64 / self.batch as f64
    }

    /// Messages per second.
    pub(super) fn per_s(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.count as f64 / seconds } else { 0.0 }
    }
}

/// Until when.
#[derive(Debug, Clone, Copy)]
enum Until {
    Time(Instant),
    Count(u64),
}

impl Until {
    fn new(budget: Budget, part: u32) -> Self {
        match budget {
            Budget::Time(time) => Self::Time(Instant::now() + time / part),
            Budget::Count(count) => Self::Count(count.div_ceil(part.into())),
        }
    }

    #[inline]
    fn is_over(self, now: Instant, count: u64) -> bool {
        match self {
            Self::Time(end) => now >= end,
            Self::Count(end) => count >= end,
        }
    }
}

/// How far a run is. What comes before it is measured is not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    WarmUp,
    /// What was done between warm-up and here, a look at the memory, is no part of what is measured.
    Settle,
    Measure,
}

/// Counts and times what a loop does. Nothing is recorded for the first tenth.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    sample: Sample,
    budget: Budget,
    until: Until,
    /// Messages since it began to warm up, or to measure.
    seen: u64,
    phase: Phase,
    memory_kib: u64,
    /// When the phase began.
    started: Instant,
    stop: &'a AtomicBool,
    series: Option<Series>,
}

impl<'a> Meter<'a> {
    /// Starts to warm up. Each entry will stand for `batch` messages.
    pub(super) fn new(budget: Budget, batch: u64, stop: &'a AtomicBool) -> Self {
        let until = Until::new(budget, 10);
        Self {
            sample: Sample::new(batch),
            budget,
            until,
            seen: 0,
            phase: Phase::WarmUp,
            memory_kib: 0,
            started: Instant::now(),
            stop,
            series: None,
        }
    }

    /// Also keeps how it went over time.
    pub(super) fn with_series(mut self) -> Self {
        let length = match self.budget {
            Budget::Time(time) => time / BINS,
            Budget::Count(_) => Duration::ZERO,
        };
        self.series = Some(Series::new(length.max(Duration::from_millis(5))));
        self
    }

    /// A batch took `ns` and ended `now`. Whether to go on. What came together with the end of a phase is not of the next.
    #[inline]
    pub(super) fn record(&mut self, now: Instant, ns: u64) -> bool {
        if now < self.started {
            return !self.stop.load(Ordering::Relaxed);
        }
        self.sample.times.saturating_record(ns);
        if let Some(series) = &mut self.series {
            series.record(now, ns);
        }
        self.sample.count += self.sample.batch;
        self.seen += self.sample.batch;
        self.goes_on(now)
    }

    /// Messages were never answered. Whether to go on.
    #[cold]
    pub(super) fn lose(&mut self, now: Instant, messages: u64) -> bool {
        self.sample.lost += messages;
        self.seen += messages;
        self.goes_on(now)
    }

    #[inline]
    fn goes_on(&mut self, now: Instant) -> bool {
        if !self.until.is_over(now, self.seen) {
            return !self.stop.load(Ordering::Relaxed);
        }
        match self.phase {
            Phase::WarmUp => self.settle(),
            Phase::Settle => self.begin(),
            Phase::Measure => false,
        }
    }

    #[cold]
    fn settle(&mut self) -> bool {
        self.phase = Phase::Settle;
        self.memory_kib = resident_kib();
        self.seen = 0;
        self.started = Instant::now();
        self.until = Until::new(self.budget, 100);
        !self.stop.load(Ordering::Relaxed)
    }

    #[cold]
    fn begin(&mut self) -> bool {
        self.phase = Phase::Measure;
        self.sample.times.reset();
        self.sample.count = 0;
        self.seen = 0;
        self.started = Instant::now();
        self.until = Until::new(self.budget, 1);
        if let Some(series) = &mut self.series {
            series.begin(self.started);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// What came of it.
    pub(super) fn finish(mut self) -> Sample {
        self.sample.elapsed = self.started.elapsed();
        self.sample.memory_growth_kib = resident_kib().cast_signed() - self.memory_kib.cast_signed();
        if let Some(series) = self.series {
            self.sample.series = series.bins;
        }
        self.sample
    }
}

/// A time series.
#[derive(Debug)]
struct Series {
    bins: Vec<Bin>,
    times: Histogram<u64>,
    began: Instant,
    bin_end: Instant,
    length: Duration,
}

impl Series {
    fn new(length: Duration) -> Self {
        let now = Instant::now();
        let bins = Vec::with_capacity(2 * BINS as usize);
        Self { bins, times: histogram(2), began: now, bin_end: now + length, length }
    }

    fn begin(&mut self, now: Instant) {
        self.bins.clear();
        self.times.reset();
        self.began = now;
        self.bin_end = now + self.length;
    }

    #[inline]
    fn record(&mut self, now: Instant, ns: u64) {
        self.times.saturating_record(ns);
        if now >= self.bin_end {
            self.close(now);
        }
    }

    #[cold]
    fn close(&mut self, now: Instant) {
        if self.bins.len() < self.bins.capacity() {
            self.bins.push(Bin {
                t_s: now.duration_since(self.began).as_secs_f64(),
                p50_ns: self.times.value_at_quantile(0.5),
                p99_ns: self.times.value_at_quantile(0.99),
                max_ns: self.times.max(),
            });
        }
        self.times.reset();
        self.bin_end = now + self.length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_tenth_is_not_recorded() {
        let stop = AtomicBool::new(false);
        let mut meter = Meter::new(Budget::Count(100), 2, &stop);
        let mut entries = 0;
        while meter.record(Instant::now(), if entries < 5 { 1_000_000 } else { 10 }) {
            entries += 1;
        }
        let sample = meter.finish();
        assert_eq!((sample.count, sample.times.len()), (100, 50));
        assert_eq!(sample.ns(1.0), 5.0);
    }

    #[test]
    fn answers_that_came_together_belong_to_one_phase() {
        let stop = AtomicBool::new(false);
        let mut meter = Meter::new(Budget::Count(10), 1, &stop);
        let mut batches = 0;
        let mut take = || {
            batches += 1;
            let now = Instant::now();
            (0..16).fold(true, |_, _| meter.record(now, batches))
        };
        while take() {}
        let sample = meter.finish();
        assert_eq!((batches, sample.count), (3, 16));
        assert_eq!((sample.times.min(), sample.times.max()), (3, 3), "warm-up and settling are not of it");
    }

    #[test]
    fn a_stop_ends_it_at_once() {
        let stop = AtomicBool::new(true);
        let mut meter = Meter::new(Budget::Count(100), 1, &stop);
        assert!(!meter.record(Instant::now(), 1));
    }

    #[test]
    fn losses_end_a_run_too_and_are_no_messages() {
        let stop = AtomicBool::new(false);
        let mut meter = Meter::new(Budget::Count(1), 1, &stop);
        assert!(meter.lose(Instant::now(), 1), "that was the warm-up");
        assert!(meter.lose(Instant::now(), 1), "and it settled");
        assert!(!meter.lose(Instant::now(), 1));
        let sample = meter.finish();
        assert_eq!((sample.lost, sample.count), (3, 0));
    }

    #[test]
    fn the_series_has_a_bin_for_each_length_of_time() {
        let stop = AtomicBool::new(false);
        let mut meter = Meter::new(Budget::Time(Duration::from_millis(40)), 1, &stop).with_series();
        while meter.record(Instant::now(), 7) {}
        let series = meter.finish().series;
        assert!((1..=8).contains(&series.len()), "{series:?}");
        assert!(series.iter().all(|bin| bin.max_ns == 7 && bin.t_s <= 20.0));
    }
}
