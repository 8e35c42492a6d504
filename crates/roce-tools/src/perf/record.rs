//! The result of one point: a line of JSON.

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::meter::Sample;
use super::plan::{Case, Many, Point, ServiceMode};

/// The quantiles of a distribution that are kept, in percent.
const CURVE: &[f64] = &[
    0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.8, 99.9, 99.95, 99.99, 99.995, 99.999,
    100.0,
];

/// The result of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was measured.
    pub case: Case,
    /// The link.
    pub backend: String,
    /// How the service worked.
    pub mode: ServiceMode,
    /// Bytes of a frame; 0 where none are moved.
    pub frame: u32,
    /// Messages under way at once.
    pub depth: u32,
    /// Messages per second asked for.
    pub rate: Option<u32>,
    /// How many transceivers, in the case that compares numbers of them.
    #[serde(flatten)]
    pub many: Option<Many>,
    /// Nanoseconds, the median of the runs' medians; 0 when nothing was answered.
    pub p50_ns: f64,
    /// Nanoseconds, the median of the runs' 99th percentiles.
    pub p99_ns: f64,
    /// Nanoseconds, over all runs together, as are the next three.
    pub p99_9_ns: f64,
    /// Nanoseconds.
    pub p99_99_ns: f64,
    /// Nanoseconds.
    pub max_ns: f64,
    /// Messages per second, the median of the runs.
    pub per_s: f64,
    /// Which of the figures is compared with the limit: `p50_ns` or `per_s`.
    pub figure: Figure,
    /// The same figure of the raw limit, the median of its runs; `None`: not measured.
    pub limit: Option<f64>,
    /// What the limit is.
    pub limit_name: String,
    /// Figure over limit, as both stand here; `None` without a limit, and where nothing was answered.
    pub ratio: Option<f64>,
    /// What the ratio shall be at most, for times, or at least, for rates.
    pub target: Option<f64>,
    /// Messages in all runs.
    pub count: u64,
    /// Messages never answered.
    pub lost: u64,
    /// The same of the limit.
    #[serde(default)]
    pub limit_lost: u64,
    /// Messages that each time stands for: times are means over so many.
    pub batch: u64,
    /// Threads that never slept. With more than the machine has CPUs, times are those of the scheduler.
    pub busy_threads: usize,
    /// The CPUs of the threads, the caller's first; empty: wherever the system put them.
    pub pinned: Vec<usize>,
    /// Payload bytes of the link's packets; `None` without a link.
    pub mtu: Option<u32>,
    /// Growth of the process's memory from the warm-up to the end of a run, KiB, the largest.
    pub memory_growth_kib: i64,
    /// Each run beside the run of its limit.
    pub runs: Vec<Run>,
    /// Percent and nanoseconds: the distribution of all runs together.
    pub curve: Vec<(f64, f64)>,
    /// The same of the limit.
    pub limit_curve: Vec<(f64, f64)>,
    /// How the first run went over time, where that was kept.
    pub series: Vec<Bin>,
    /// What it was measured on.
    pub machine: Machine,
}

/// A run, and the run of the limit beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Nanoseconds.
    pub p50_ns: f64,
    /// Nanoseconds.
    pub p99_ns: f64,
    /// Messages per second.
    pub per_s: f64,
    /// The figure of the limit.
    pub limit: Option<f64>,
}

/// A piece of a time series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// Its end, seconds from the start.
    pub t_s: f64,
    /// Nanoseconds.
    pub p50_ns: u64,
    /// Nanoseconds.
    pub p99_ns: u64,
    /// Nanoseconds.
    pub max_ns: u64,
}

/// The figure that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The median time: less is better.
    P50Ns,
    /// Messages per second: more is better.
    PerS,
}

impl Figure {
    /// That of a point.
    pub fn of(point: &Point) -> Self {
        match point.case {
            Case::Throughput => Self::PerS,
            Case::Scale if point.depth > 1 => Self::PerS,
            _ => Self::P50Ns,
        }
    }

    fn in_sample(self, sample: &Sample) -> f64 {
        match self {
            Self::P50Ns => sample.ns(0.5),
            Self::PerS => sample.per_s(),
        }
    }
}

/// What is known of a point besides its samples.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) point: Point,
    pub(super) backend: String,
    pub(super) is_soft: bool,
    pub(super) limit_name: &'static str,
    pub(super) pinned: Vec<usize>,
    pub(super) machine: Machine,
}

impl Record {
    /// From the samples of the case, each with that of the limit beside it.
    pub(super) fn new(context: Context, samples: Vec<(Sample, Option<Sample>)>) -> Self {
        let Context { point, .. } = context;
        let figure = Figure::of(&point);
        let runs: Vec<Run> = samples.iter().map(|(case, limit)| run(figure, case, limit.as_ref())).collect();
        let batch = samples.first().map_or(1, |(case, _)| case.batch);
        let all = merged(samples.iter().map(|(case, _)| case));
        let limit_of_all = merged(samples.iter().filter_map(|(_, limit)| limit.as_ref()));
        // Where nothing was answered there is no time, and least of all a short one.
        let time = |value: fn(&Run) -> f64| median(runs.iter().map(value).filter(|ns| *ns > 0.0).collect());
        let limits: Vec<f64> = runs.iter().filter_map(|run| run.limit).filter(|limit| *limit > 0.0).collect();
        let limit = (!limits.is_empty()).then(|| median(limits));
        let (p50_ns, per_s) = (time(|run| run.p50_ns), median(runs.iter().map(|run| run.per_s).collect()));
        let value = if figure == Figure::PerS { per_s } else { p50_ns };
        Self {
            case: point.case,
            mode: point.mode,
            frame: point.frame,
            depth: point.depth,
            rate: point.rate,
            many: point.many,
            p50_ns,
            p99_ns: time(|run| run.p99_ns),
            p99_9_ns: round(all.ns(0.999)),
            p99_99_ns: round(all.ns(0.9999)),
            max_ns: round(all.times.max() as f64 / batch as f64),
            per_s,
            figure,
            limit,
            limit_name: context.limit_name.to_owned(),
            ratio: limit.filter(|_| value > 0.0).map(|limit| (value / limit * 1e4).round() / 1e4),
            target: target(&point, context.is_soft),
            count: all.count,
            lost: all.lost,
            limit_lost: limit_of_all.lost,
            batch,
            busy_threads: point.busy_threads(),
            pinned: context.pinned,
            mtu: samples.first().and_then(|(case, _)| case.mtu),
            memory_growth_kib: samples.iter().map(|(case, _)| case.memory_growth_kib).max().unwrap_or(0),
            curve: curve(&all),
            limit_curve: curve(&limit_of_all),
            series: samples.into_iter().next().map(|(case, _)| case.series).unwrap_or_default(),
            runs,
            backend: context.backend,
            machine: context.machine,
        }
    }

    /// The figure that counts.
    pub fn value(&self) -> f64 {
        match self.figure {
            Figure::P50Ns => self.p50_ns,
            Figure::PerS => self.per_s,
        }
    }

    /// Whether the ratio is as good as it shall be, where that is known. Who loses messages meets nothing.
    pub fn is_met(&self) -> Option<bool> {
        let target = self.target?;
        if self.lost > 0 {
            return Some(false);
        }
        let ratio = self.ratio?;
        Some(match self.figure {
            Figure::P50Ns => ratio <= target,
            Figure::PerS => ratio >= target,
        })
    }

    /// For people: `rtt unified 64 B`.
    pub fn title(&self) -> String {
        let Self { case, mode, frame, depth, rate, many, .. } = *self;
        Point { case, mode, frame, depth, rate, many }.title()
    }

    /// What a reader has to know to take the figures for what they are.
    pub fn note(&self) -> Option<String> {
        let crowd = self.crowd().map(|crowd| format!("{crowd}: the scheduler is measured too"));
        let lost = (self.lost > 0).then(|| format!("{} of {} lost", self.lost, self.lost + self.count));
        let limit = (self.limit_lost > 0)
            .then(|| format!("the limit lost {}: it would be better without", self.limit_lost));
        let notes: Vec<String> = [crowd, lost, limit].into_iter().flatten().collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// That threads which never sleep had to share CPUs, where they had.
    pub(super) fn crowd(&self) -> Option<String> {
        let threads = self.busy_threads;
        let cpus = if self.pinned.is_empty() { self.machine.cores } else { self.pinned.len() };
        (threads > cpus).then(|| format!("{threads} busy threads on {cpus} CPUs"))
    }
}

fn run(figure: Figure, case: &Sample, limit: Option<&Sample>) -> Run {
    Run {
        p50_ns: round(case.ns(0.5)),
        p99_ns: round(case.ns(0.99)),
        per_s: round(case.per_s()),
        limit: limit.map(|limit| round(figure.in_sample(limit))),
    }
}

/// The ratios to hold, where one is set.
fn target(point: &Point, is_soft: bool) -> Option<f64> {
    let unified = point.mode == ServiceMode::Unified;
    match point.case {
        Case::Rtt if unified && point.frame == 64 && is_soft => Some(1.15),
        Case::Rtt if unified && point.frame == 64 => Some(1.06),
        Case::Throughput
            if point.mode != ServiceMode::Threads && point.frame == 64 && point.depth >= 64 && is_soft =>
        {
            Some(0.7)
        }
        Case::Handoff => Some(1.2),
        // What is taken for flat, in the number of transceivers and in the pages of their rings.
        Case::Scale if point.mode == ServiceMode::Shared && point.frame == 64 && is_soft => {
            Some(if point.depth > 1 { 0.8 } else { 1.25 })
        }
        _ => None,
    }
}

fn merged<'a>(samples: impl Iterator<Item = &'a Sample>) -> Sample {
    let mut all = Sample::new(1);
    for sample in samples {
        all.times.add(&sample.times).expect("histograms of the same bounds");
        all.batch = sample.batch;
        all.count += sample.count;
        all.lost += sample.lost;
    }
    all
}

fn curve(sample: &Sample) -> Vec<(f64, f64)> {
    if sample.times.is_empty() {
        return Vec::new();
    }
    CURVE.iter().map(|&percent| (percent, round(sample.ns(percent / 100.0)))).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[upper],
        _ => round(f64::midpoint(values[upper - 1], values[upper])),
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    pub(in crate::perf) fn sample(ns: &[u64], millis: u64) -> Sample {
        let mut sample = Sample::new(1);
        ns.iter().for_each(|&ns| sample.times.record(ns).unwrap());
        (sample.count, sample.elapsed) = (ns.len() as u64, Duration::from_millis(millis));
        sample
    }

    pub(in crate::perf) fn record_of(point: Point, samples: Vec<(Sample, Option<Sample>)>) -> Record {
        let context = Context {
            point,
            backend: "soft".to_owned(),
            is_soft: true,
            limit_name: "something raw",
            pinned: vec![0, 1],
            machine: Machine::here(2, None),
        };
        Record::new(context, samples)
    }

    pub(in crate::perf) fn point(case: Case) -> Point {
        let mode = if case.is_wire() { ServiceMode::Unified } else { ServiceMode::None };
        Point { case, mode, frame: 64, depth: 64, rate: None, many: None }
    }

    #[test]
    fn times_are_medians_of_runs_beside_their_limits() {
        let runs = vec![
            (sample(&[100, 100, 100], 1), Some(sample(&[50], 1))),
            (sample(&[300, 300, 300], 1), Some(sample(&[100], 1))),
            (sample(&[120, 120, 900], 1), Some(sample(&[80], 1))),
        ];
        let record = record_of(point(Case::Rtt), runs);
        assert_eq!((record.p50_ns, record.limit, record.ratio), (120.0, Some(80.0), Some(1.5)));
        assert_eq!((record.count, record.max_ns, record.runs.len()), (9, 900.0, 3));
        assert_eq!((record.target, record.is_met()), (Some(1.15), Some(false)));
        assert_eq!((record.curve[0], record.curve.last().copied()), ((0.0, 100.0), Some((100.0, 900.0))));
    }

    #[test]
    fn percentiles_are_those_of_their_names() {
        let all: Vec<u64> = (1..=100_000).collect();
        let mut steady = sample(&all, 1);
        steady.memory_growth_kib = 7;
        let record = record_of(point(Case::Rtt), vec![(steady, None), (sample(&all, 1), None)]);
        let is_near = |value: f64, exact: f64| (value / exact - 1.0).abs() < 0.001;
        let times = [record.p50_ns, record.p99_ns, record.p99_9_ns, record.p99_99_ns, record.max_ns];
        for (value, exact) in times.into_iter().zip([50_000.0, 99_000.0, 99_900.0, 99_990.0, 100_000.0]) {
            assert!(is_near(value, exact), "{value} for {exact}");
        }
        assert!(is_near(record.runs[0].p50_ns, 50_000.0) && is_near(record.runs[1].p99_ns, 99_000.0));
        assert!(record.curve.iter().all(|&(percent, ns)| percent == 0.0 || is_near(ns, percent * 1000.0)));
        assert_eq!((record.count, record.memory_growth_kib), (200_000, 7));
    }

    #[test]
    fn of_throughput_more_is_better() {
        let record =
            record_of(point(Case::Throughput), vec![(sample(&[1; 80], 10), Some(sample(&[1; 100], 10)))]);
        assert_eq!((record.per_s, record.limit, record.ratio), (8000.0, Some(10_000.0), Some(0.8)));
        assert_eq!(record.is_met(), Some(true));
    }

    #[test]
    fn without_a_limit_there_is_no_ratio() {
        let record = record_of(point(Case::Rtt), vec![(sample(&[1], 1), None)]);
        assert_eq!((record.limit, record.ratio, record.is_met()), (None, None, None));
    }

    #[test]
    fn a_record_is_one_line_of_json_and_comes_back_from_it() {
        let record = record_of(point(Case::Rtt), vec![(sample(&[100], 1), Some(sample(&[90], 1)))]);
        let line = serde_json::to_string(&record).unwrap();
        assert!(!line.contains('\n'));
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        for name in ["case", "backend", "mode", "frame", "p50_ns", "p99_ns", "per_s", "limit", "ratio"] {
            assert!(!json[name].is_null(), "{name}: {line}");
        }
        assert_eq!((json["case"].as_str(), json["mode"].as_str()), (Some("rtt"), Some("unified")));
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }

    #[test]
    fn medians_of_even_numbers_lie_between() {
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn more_threads_than_cpus_are_told() {
        let mut record = record_of(Point { mode: ServiceMode::Threads, ..point(Case::Rtt) }, Vec::new());
        assert!(record.note().is_some_and(|note| note.contains("4 busy threads on 2 CPUs")));
        (record.machine.cores, record.pinned) = (4, Vec::new());
        assert_eq!(record.note(), None);
        record.pinned = vec![0, 1, 2];
        assert!(record.note().is_some_and(|note| note.contains("4 busy threads on 3 CPUs")));
    }

    #[test]
    fn what_was_never_answered_is_not_fast() {
        let lost = || Sample { lost: 5, ..Sample::new(1) };
        let limit = || Some(sample(&[50], 1));
        let record = record_of(point(Case::Rtt), vec![(lost(), limit()), (lost(), limit())]);
        assert_eq!((record.p50_ns, record.ratio, record.lost), (0.0, None, 10));
        assert_eq!(record.is_met(), Some(false));
        assert!(record.note().is_some_and(|note| note.contains("10 of 10 lost")));
        // A run of which nothing came back leaves the median to the others, and the target missed.
        let runs = vec![(lost(), limit()), (sample(&[52], 1), limit()), (lost(), limit())];
        let record = record_of(point(Case::Rtt), runs);
        assert_eq!((record.p50_ns, record.ratio, record.is_met()), (52.0, Some(1.04), Some(false)));
    }

    #[test]
    fn a_limit_that_lost_messages_is_told_and_no_limit_where_it_lost_all() {
        let limit = |ns: &[u64]| Some(Sample { lost: 3, ..sample(ns, 1) });
        let record = record_of(point(Case::Rtt), vec![(sample(&[60], 1), limit(&[50]))]);
        assert_eq!((record.limit_lost, record.ratio), (3, Some(1.2)));
        assert!(record.note().is_some_and(|note| note.contains("the limit lost 3")));
        let record = record_of(point(Case::Rtt), vec![(sample(&[60], 1), limit(&[]))]);
        assert_eq!((record.limit, record.ratio), (None, None));
    }

    #[test]
    fn targets_are_those_that_are_to_hold() {
        let of = |point: Point, is_soft| target(&point, is_soft);
        let rtt = point(Case::Rtt);
        assert_eq!((of(rtt, true), of(rtt, false)), (Some(1.15), Some(1.06)));
        let throughput = point(Case::Throughput);
        assert_eq!((of(throughput, true), of(throughput, false)), (Some(0.7), None));
        assert_eq!(of(point(Case::Handoff), true), Some(1.2));
        let many = |depth| Point { mode: ServiceMode::Shared, depth, ..point(Case::Scale) };
        assert_eq!([1, 64].map(|depth| of(many(depth), true)), [Some(1.25), Some(0.8)]);
        assert_eq!(of(many(1), false), None);
        for other in [
            point(Case::Scale),
            Point { mode: ServiceMode::Threads, ..rtt },
            Point { frame: 128, ..rtt },
            Point { depth: 32, ..throughput },
            point(Case::Dispatch),
            point(Case::Codec),
            point(Case::Jitter),
        ] {
            assert_eq!(of(other, true), None, "{other:?}");
        }
    }
}
