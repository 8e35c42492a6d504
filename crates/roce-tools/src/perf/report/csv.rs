//! A row per result, for spreadsheets.

use std::io::{self, Write};

use serde::Serialize;

use crate::perf::place::listed;
use crate::perf::plan::{Case, ServiceMode};
use crate::perf::record::{Figure, Record};

#[derive(Serialize)]
struct Row<'a> {
    case: Case,
    backend: &'a str,
    mode: ServiceMode,
    frame: u32,
    depth: u32,
    rate: Option<u32>,
    transceivers: Option<u32>,
    pages: Option<u32>,
    p50_ns: f64,
    p99_ns: f64,
    p99_9_ns: f64,
    p99_99_ns: f64,
    max_ns: f64,
    per_s: f64,
    figure: Figure,
    limit: Option<f64>,
    ratio: Option<f64>,
    target: Option<f64>,
    limit_name: &'a str,
    count: u64,
    lost: u64,
    limit_lost: u64,
    batch: u64,
    busy_threads: usize,
    pinned: String,
    memory_growth_kib: i64,
    mtu: Option<u32>,
    cpu: &'a str,
    cores: usize,
    kernel: &'a str,
    virtual_machine: bool,
    governor: Option<&'a str>,
    isolated: &'a str,
    load: f64,
    commit: Option<&'a str>,
}

/// Writes headers and rows.
///
/// # Errors
/// Those of `out`.
pub fn write(records: &[Record], out: impl Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    for record in records {
        writer.serialize(Row {
            case: record.case,
            backend: &record.backend,
            mode: record.mode,
            frame: record.frame,
            depth: record.depth,
            rate: record.rate,
            transceivers: record.many.map(|many| many.transceivers),
            pages: record.many.map(|many| many.pages),
            p50_ns: record.p50_ns,
            p99_ns: record.p99_ns,
            p99_9_ns: record.p99_9_ns,
            p99_99_ns: record.p99_99_ns,
            max_ns: record.max_ns,
            per_s: record.per_s,
            figure: record.figure,
            limit: record.limit,
            ratio: record.ratio,
            target: record.target,
            limit_name: &record.limit_name,
            count: record.count,
            lost: record.lost,
            limit_lost: record.limit_lost,
            batch: record.batch,
            busy_threads: record.busy_threads,
            pinned: listed(&record.pinned),
            memory_growth_kib: record.memory_growth_kib,
            mtu: record.mtu,
            cpu: &record.machine.cpu,
            cores: record.machine.cores,
            kernel: &record.machine.kernel,
            virtual_machine: record.machine.virtual_machine,
            governor: record.machine.governor.as_deref(),
            isolated: &record.machine.isolated,
            load: record.machine.load,
            commit: record.machine.commit.as_deref(),
        })?;
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::tests::{point, record_of, sample};

    #[test]
    fn each_column_has_what_its_name_says() {
        let mut record = record_of(point(Case::Rtt), vec![(sample(&[1000], 1), Some(sample(&[900], 1)))]);
        (record.p50_ns, record.p99_ns, record.p99_9_ns) = (1.0, 2.0, 3.0);
        (record.p99_99_ns, record.max_ns, record.per_s) = (4.0, 5.0, 6.0);
        (record.count, record.lost, record.limit_lost) = (7, 8, 9);
        let mut bytes = Vec::new();
        write(&[record.clone()], &mut bytes).unwrap();
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        let headers = reader.headers().unwrap().clone();
        let row = reader.records().next().unwrap().unwrap();
        let json = serde_json::to_value(&record).unwrap();
        let mut compared = 0;
        for (name, cell) in headers.iter().zip(&row) {
            let value = json.get(name).or_else(|| json["machine"].get(name));
            match value {
                Some(serde_json::Value::Number(number)) => {
                    assert_eq!(cell.parse::<f64>().ok(), number.as_f64(), "{name}");
                    compared += 1;
                }
                Some(serde_json::Value::String(text)) => assert_eq!(cell, text, "{name}"),
                _ => {}
            }
        }
        assert!(compared >= 18, "{compared} numbers");
    }

    #[test]
    fn names_with_commas_stay_one_column() {
        let mut record = record_of(point(Case::Rtt), vec![(sample(&[1000], 1), None)]);
        record.machine.cpu = "A \"fast\" CPU, really".to_owned();
        let mut bytes = Vec::new();
        write(&[record], &mut bytes).unwrap();
        let mut reader = csv::Reader::from_reader(bytes.as_slice());
        let column = reader.headers().unwrap().iter().position(|name| name == "cpu").unwrap();
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!((rows.len(), &rows[0][0], &rows[0][column]), (1, "rtt", "A \"fast\" CPU, really"));
    }
}
