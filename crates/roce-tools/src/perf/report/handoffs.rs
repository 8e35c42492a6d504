//! What threads cost: a round trip through a service with threads beside one with a single thread.

use super::time;
use crate::perf::plan::{Case, ServiceMode};
use crate::perf::record::Record;

/// Hand-offs that threads may cost, from the receiving thread to the dispatcher and from there to the sending one.
const TARGET: f64 = 2.0;

/// A line for each pair of round trips, where a hand-off was measured in the same run.
pub fn handoffs(records: &[Record]) -> Vec<String> {
    let of = |mode| records.iter().filter(move |r| r.case == Case::Rtt && r.mode == mode);
    let Some(handoff) = one_handoff(records) else { return Vec::new() };
    let pairs = of(ServiceMode::Threads).filter_map(|threads| {
        let unified = of(ServiceMode::Unified).find(|unified| is_same_trip(unified, threads))?;
        Some(line(unified, threads, handoff))
    });
    pairs.collect()
}

/// Nanoseconds from one thread to another by a flag: half of there and back.
fn one_handoff(records: &[Record]) -> Option<f64> {
    let flags = records.iter().find(|record| record.case == Case::Handoff)?.limit?;
    (flags > 0.0).then_some(flags / 2.0)
}

fn is_same_trip(unified: &Record, threads: &Record) -> bool {
    (&unified.backend, unified.frame) == (&threads.backend, threads.frame)
}

fn line(unified: &Record, threads: &Record, handoff: f64) -> String {
    let more = threads.p50_ns - unified.p50_ns;
    let (count, size) = (more / handoff, threads.frame);
    let sign = if more < 0.0 { "-" } else { "" };
    let verdict = if let Some(crowd) = threads.crowd() {
        format!("tells nothing: {crowd}")
    } else if count <= TARGET {
        format!("<= {TARGET}")
    } else {
        format!("<= {TARGET} !")
    };
    format!(
        "threads over unified, {size} B: {sign}{} or {count:.1} hand-offs of {} each ({verdict})",
        time(more.abs()),
        time(handoff)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::plan::Point;
    use crate::perf::record::tests::{point, record_of, sample};

    fn record(case: Case, mode: ServiceMode, ns: f64, limit: f64) -> Record {
        let mut record = record_of(Point { mode, ..point(case) }, vec![(sample(&[1], 1), None)]);
        (record.p50_ns, record.limit, record.machine.cores) = (ns, Some(limit), 4);
        record.pinned = vec![0, 1, 2, 3];
        record
    }

    fn run(threads_ns: f64) -> Vec<Record> {
        vec![
            record(Case::Rtt, ServiceMode::Unified, 5000.0, 4000.0),
            record(Case::Rtt, ServiceMode::Threads, threads_ns, 4000.0),
            record(Case::Handoff, ServiceMode::None, 120.0, 100.0),
        ]
    }

    #[test]
    fn threads_are_counted_in_flags_passed_on() {
        assert_eq!(
            handoffs(&run(5090.0)),
            ["threads over unified, 64 B: 90.0 ns or 1.8 hand-offs of 50.0 ns each (<= 2)"]
        );
        assert!(handoffs(&run(5200.0))[0].ends_with("4.0 hand-offs of 50.0 ns each (<= 2 !)"));
        assert!(handoffs(&run(4950.0))[0].contains("-50.0 ns or -1.0 hand-offs"));
    }

    #[test]
    fn without_a_cpu_for_each_thread_it_tells_nothing() {
        let mut records = run(9000.0);
        records.iter_mut().for_each(|record| record.pinned = vec![0, 1]);
        let lines = handoffs(&records);
        assert!(lines[0].ends_with("(tells nothing: 4 busy threads on 2 CPUs)"), "{lines:?}");
        records.iter_mut().for_each(|record| (record.machine.cores, record.pinned) = (3, Vec::new()));
        assert!(handoffs(&records)[0].ends_with("(tells nothing: 4 busy threads on 3 CPUs)"));
    }

    #[test]
    fn it_takes_both_modes_of_one_frame_and_a_handoff() {
        let all = run(5090.0);
        (0..3).for_each(|left_out| {
            let mut records = all.clone();
            records.remove(left_out);
            assert!(handoffs(&records).is_empty(), "without {left_out}");
        });
        let mut records = all;
        records[1].frame = 1024;
        assert!(handoffs(&records).is_empty());
    }
}
