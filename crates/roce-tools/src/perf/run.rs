//! Runs a plan: a case and its limit in turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::limit::udp;
use super::machine::Machine;
use super::meter::Sample;
use super::plan::{Backend, Budget, Case, Plan, Point};
use super::progress::Progress;
use super::record::{Context, Record};
use super::trial::Trial;
use super::wire::{packet_lens, soft_address};
use super::{codec, dispatch, handoff, scale, stream, wire};
use crate::Error;

/// To set a run up and take it down.
const AROUND: Duration = Duration::from_millis(30);
/// What is taken for the time of a run of so many messages, for the progress bar.
const COUNTED: Duration = Duration::from_secs(1);

/// Measures all of `plan`; `done` gets each result at once.
///
/// # Errors
/// [`Error::Stopped`] when `stop` is set meanwhile, and whatever fails on the way.
pub fn run(
    plan: &Plan,
    machine: &Machine,
    stop: &AtomicBool,
    mut done: impl FnMut(Record) -> Result<(), Error>,
) -> Result<(), Error> {
    let progress = Progress::new(plan.takes());
    for (index, point) in plan.points.iter().enumerate() {
        let samples = plan.samples(point, &progress, stop)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped { done: index, of: plan.points.len() });
        }
        let record = Record::new(plan.context(point, machine), samples);
        progress.suspend(|| done(record))?;
    }
    Ok(())
}

impl Plan {
    /// About how long it will take.
    pub fn takes(&self) -> Duration {
        let trials = if self.baseline { 2 } else { 1 };
        self.trial_takes() * self.runs * trials * u32::try_from(self.points.len()).unwrap_or(u32::MAX)
    }

    fn trial_takes(&self) -> Duration {
        let measured = match self.budget {
            Budget::Time(time) => time,
            Budget::Count(_) => COUNTED,
        };
        measured.mul_f64(1.11) + AROUND
    }

    /// Case, limit, case, limit: what disturbs the machine meets both.
    fn samples(
        &self,
        point: &Point,
        progress: &Progress,
        stop: &AtomicBool,
    ) -> Result<Vec<(Sample, Option<Sample>)>, Error> {
        let seats = self.placement.seats(point.busy_threads());
        let limit_seats = self.placement.seats(point.busy_threads().min(2));
        let trial = Trial { backend: &self.backend, point, seats: &seats, budget: self.budget, stop };
        let mut samples = Vec::new();
        for _ in 0..self.runs {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            progress.begin(point.title(), self.trial_takes());
            let case = measure(&trial)?;
            let limit = if self.baseline {
                progress.begin(format!("limit of {}", point.title()), self.trial_takes());
                Some(measure_limit(&Trial { seats: &limit_seats, ..trial })?)
            } else {
                None
            };
            samples.push((case, limit));
        }
        Ok(samples)
    }

    fn context(&self, point: &Point, machine: &Machine) -> Context {
        Context {
            point: *point,
            backend: self.backend.label.clone(),
            is_soft: self.backend.is_soft(),
            limit_name: limit_name(&self.backend, point.case),
            pinned: self.placement.seats(point.busy_threads()).cpus().to_vec(),
            machine: machine.clone(),
        }
    }
}

fn limit_name(backend: &Backend, case: Case) -> &'static str {
    match (case, backend.is_soft()) {
        (Case::Rtt | Case::Jitter, true) => "UDP ping-pong",
        (Case::Rtt | Case::Jitter, false) => "UC ping-pong on libibverbs",
        (Case::Throughput, true) => "sendmmsg/recvmmsg loop",
        (Case::Throughput, false) => "UC posts in a loop",
        (Case::Handoff, _) => "two threads, two flags",
        (Case::Dispatch, _) => "copies and flags, called straight",
        (Case::Codec, _) => "two copies, two CRCs",
        (Case::Scale, _) => "one of 64 pages with a thread of its own",
    }
}

fn measure(trial: &Trial<'_>) -> Result<Sample, Error> {
    match trial.point.case {
        Case::Rtt | Case::Jitter => wire::round_trips(trial),
        Case::Throughput => stream::throughput(trial),
        Case::Handoff => handoff::through_rings(trial),
        Case::Dispatch => dispatch::through_dispatcher(trial),
        Case::Codec => codec::round_trip(trial),
        Case::Scale => scale::round_trips(trial),
    }
}

fn measure_limit(trial: &Trial<'_>) -> Result<Sample, Error> {
    match trial.point.case {
        Case::Handoff => handoff::through_flags(trial),
        Case::Dispatch => dispatch::called_straight(trial),
        Case::Codec => codec::copies_and_crcs(trial),
        Case::Scale => scale::single(trial),
        Case::Rtt | Case::Jitter | Case::Throughput => {
            let (caller, service) = trial.backend.devices();
            match soft_address(&caller).zip(soft_address(&service)) {
                Some((caller, service)) => {
                    let (request_len, answer_len) = packet_lens(trial.point.frame);
                    let exchange = udp::Exchange { caller, service, request_len, answer_len };
                    match trial.point.case {
                        Case::Throughput => exchange.stream(trial),
                        _ => exchange.ping_pong(trial),
                    }
                }
                None => over_uc(&caller, &service, trial),
            }
        }
    }
}

#[cfg(feature = "verbs")]
fn over_uc(caller: &str, service: &str, trial: &Trial<'_>) -> Result<Sample, Error> {
    super::limit::uc::Exchange::connect(caller, service, trial.point.frame)?.run(trial)
}

#[cfg(not(feature = "verbs"))]
fn over_uc(caller: &str, _service: &str, _trial: &Trial<'_>) -> Result<Sample, Error> {
    Err(Error::Options(format!("{caller}: this build has no RDMA devices; build it with --features verbs")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::place::{Pin, Placement, Spin};
    use roce_transport::FaultConfig;

    use crate::perf::plan::{Many, ServiceMode, full_points, quick_points};
    use crate::perf::record::Figure;

    fn plan(points: Vec<Point>) -> Plan {
        Plan {
            points,
            backend: Backend {
                device: "soft".to_owned(),
                peer: None,
                label: "soft".to_owned(),
                faults: None,
            },
            runs: 2,
            budget: Budget::Count(200),
            baseline: true,
            placement: Placement::new(Pin::No, Spin::Yield).unwrap(),
        }
    }

    fn records(plan: &Plan) -> Vec<Record> {
        let mut records = Vec::new();
        let machine = Machine::here(2, None);
        let ended = run(plan, &machine, &AtomicBool::new(false), |record| {
            records.push(record);
            Ok(())
        });
        ended.unwrap();
        assert_eq!(records.len(), plan.points.len());
        records
    }

    #[test]
    fn every_case_is_measured_beside_its_limit() {
        for record in records(&plan(quick_points())) {
            let title = record.title();
            assert!(record.p50_ns > 0.0 && record.p99_ns >= record.p50_ns, "{title}: {record:?}");
            assert!(record.max_ns >= record.p99_9_ns && record.per_s > 0.0, "{title}: {record:?}");
            assert!(record.limit.is_some_and(|limit| limit > 0.0), "{title}: {record:?}");
            assert!(record.ratio.is_some_and(|ratio| ratio > 0.0), "{title}: {record:?}");
            assert!(record.count >= 400, "{title}: {}", record.count);
            assert_eq!((record.lost, record.runs.len()), (0, 2), "{title}");
            assert_eq!(record.mtu.is_some(), record.case.is_wire(), "{title}");
        }
    }

    #[test]
    fn frames_of_every_size_go_round() {
        let frames = full_points(2).into_iter().filter(|point| point.case == Case::Rtt);
        let mut points: Vec<Point> = frames.collect();
        points.push(Point { frame: 25, ..points[0] });
        let plan = Plan { runs: 1, budget: Budget::Count(20), ..plan(points) };
        assert!(records(&plan).iter().all(|record| record.lost == 0 && record.count == 20));
    }

    #[test]
    fn many_transceivers_answer_in_turn_under_a_poller_and_with_threads() {
        let point = |mode, transceivers, depth| {
            let many = Some(Many { transceivers, pages: 64 });
            Point { case: Case::Scale, mode, depth, many, ..quick_points()[0] }
        };
        use ServiceMode::{Forward, Shared};
        let points =
            vec![point(Shared, 1, 1), point(Shared, 16, 1), point(Shared, 5, 64), point(Forward, 3, 2)];
        for record in records(&plan(points)) {
            assert_eq!((record.lost, record.mtu.is_some()), (0, true), "{record:?}");
            assert!(record.ratio.is_some_and(|ratio| ratio > 0.0), "{record:?}");
            assert_eq!(record.figure == Figure::PerS, record.depth > 1);
        }
    }

    #[test]
    fn a_paced_run_keeps_its_rate_and_its_history() {
        let point = Point { case: Case::Jitter, rate: Some(2000), ..quick_points()[0] };
        let budget = Budget::Time(Duration::from_millis(200));
        let record = records(&Plan { runs: 1, budget, ..plan(vec![point]) }).remove(0);
        // Slower on a busy machine, and never faster.
        assert!(record.per_s < 2100.0, "{record:?}");
        assert!(!record.series.is_empty() && record.lost == 0, "{record:?}");
    }

    /// Points over a link, of which each end drops packets with this probability.
    fn dropping(drop: f64, count: u64, points: Vec<Point>) -> Vec<Record> {
        let mut plan = Plan { runs: 1, budget: Budget::Count(count), baseline: false, ..plan(points) };
        plan.backend.faults = Some(FaultConfig { drop, seed: 3, ..FaultConfig::default() });
        records(&plan)
    }

    fn wire_points() -> Vec<Point> {
        let modes = [ServiceMode::Unified, ServiceMode::Threads, ServiceMode::Forward];
        let of = |case, depth| {
            let rate = (case == Case::Jitter).then_some(1000);
            modes.map(|mode| Point { case, mode, depth, rate, ..quick_points()[0] })
        };
        let many = |depth, transceivers| {
            let many = Some(Many { transceivers, pages: 64 });
            Point { case: Case::Scale, mode: ServiceMode::Shared, depth, many, ..quick_points()[0] }
        };
        [&of(Case::Rtt, 1)[..], &of(Case::Jitter, 1), &of(Case::Throughput, 64), &[many(1, 2), many(16, 3)]]
            .concat()
    }

    #[test]
    fn every_case_over_a_link_sees_what_is_lost() {
        // A lost message takes a second where one is under way at a time, so points run side by side.
        std::thread::scope(|scope| {
            for point in wire_points() {
                scope.spawn(move || {
                    let record = dropping(0.1, 30, vec![point]).remove(0);
                    assert!(record.lost > 0 && record.count > 0, "{}: {record:?}", point.title());
                    assert!(record.note().is_some_and(|note| note.contains("lost")), "{record:?}");
                });
            }
        });
    }

    #[test]
    fn nothing_that_is_never_answered_is_measured() {
        std::thread::scope(|scope| {
            for point in wire_points() {
                scope.spawn(move || {
                    let record = dropping(1.0, 1, vec![point]).remove(0);
                    assert!(record.lost >= 1 && record.count == 0, "{record:?}");
                    assert_eq!((record.p50_ns, record.p99_ns, record.ratio), (0.0, 0.0, None), "{record:?}");
                });
            }
        });
    }

    #[test]
    fn without_limits_there_are_no_ratios() {
        let plan = Plan { baseline: false, runs: 1, ..plan(quick_points()[..1].to_vec()) };
        let records = records(&plan);
        assert_eq!((records[0].limit, records[0].ratio), (None, None));
        assert!(records[0].limit_curve.is_empty());
    }

    #[test]
    fn a_stop_is_told_with_how_far_it_came() {
        let machine = Machine::here(2, None);
        let stopped = run(&plan(quick_points()), &machine, &AtomicBool::new(true), |_| Ok(()));
        assert!(matches!(stopped, Err(Error::Stopped { done: 0, of: 8 })), "{stopped:?}");
    }
}
