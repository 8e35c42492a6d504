//! A line of text per result.

use super::{rate, time};
use crate::perf::record::{Figure, Record};

/// Names and widths of the columns.
const COLUMNS: &[(&str, usize)] = &[
    ("case", 41),
    ("p50", 9),
    ("p99", 9),
    ("p99.9", 9),
    ("p99.99", 9),
    ("max", 9),
    ("per s", 8),
    ("limit", 9),
    ("ratio", 6),
    ("target", 7),
];

/// The headers, and a line below.
pub fn table() -> String {
    let line = |cells: Vec<String>| format_row(&cells);
    let names = line(COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect());
    let rules = line(COLUMNS.iter().map(|(_, width)| "-".repeat(*width)).collect());
    format!("{names}\n{rules}")
}

/// A line of the table.
pub fn row(record: &Record) -> String {
    let limit = record.limit.map(|limit| match record.figure {
        Figure::P50Ns => time(limit),
        Figure::PerS => rate(limit),
    });
    let cells = vec![
        record.title(),
        time(record.p50_ns),
        time(record.p99_ns),
        time(record.p99_9_ns),
        time(record.p99_99_ns),
        time(record.max_ns),
        rate(record.per_s),
        limit.unwrap_or_default(),
        record.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
        target(record),
    ];
    let note = record.note().map(|note| format!("\n  ({note})")).unwrap_or_default();
    format!("{}{note}", format_row(&cells))
}

/// What the ratio shall be, and a mark where it is not.
pub(super) fn target(record: &Record) -> String {
    let Some(target) = record.target else { return String::new() };
    let sign = if record.figure == Figure::PerS { ">=" } else { "<=" };
    let missed = if record.is_met() == Some(false) { " !" } else { "" };
    format!("{sign} {target}{missed}")
}

/// The first cell to the left, the others to the right.
fn format_row(cells: &[String]) -> String {
    let mut text = String::new();
    for (index, (cell, (_, width))) in cells.iter().zip(COLUMNS).enumerate() {
        text += &if index == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::plan::Case;
    use crate::perf::record::tests::{point, record_of, sample};

    #[test]
    fn columns_stand_below_their_headers() {
        let record = record_of(point(Case::Rtt), vec![(sample(&[5400], 1), Some(sample(&[5000], 1)))]);
        let (headers, line) = (table(), row(&record));
        let at = headers.find("ratio").unwrap() + "ratio".len();
        assert_eq!(line.find("1.08").map(|found| found + 4), Some(at), "{headers}\n{line}");
        assert!(line.ends_with("<= 1.15"), "{line}");
    }

    #[test]
    fn each_column_has_what_its_header_says() {
        let mut record = record_of(point(Case::Rtt), vec![(sample(&[1], 1), Some(sample(&[1], 1)))]);
        (record.p50_ns, record.p99_ns, record.p99_9_ns, record.p99_99_ns) = (1.0, 2.0, 3.0, 4.0);
        (record.max_ns, record.per_s, record.limit, record.ratio) = (5.0, 6.0, Some(7.0), Some(8.0));
        let line = row(&record);
        let cells: Vec<&str> = line.split_whitespace().filter(|cell| *cell != "ns").collect();
        let figures = &cells[cells.len() - 11..];
        assert_eq!(
            figures,
            ["1.0", "2.0", "3.0", "4.0", "5.0", "6", "7.0", "8.00", "<=", "1.15", "!"],
            "{line}"
        );
        let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names[1..], ["p50", "p99", "p99.9", "p99.99", "max", "per s", "limit", "ratio", "target"]);
    }

    #[test]
    fn a_missed_target_is_marked() {
        let slow = record_of(point(Case::Rtt), vec![(sample(&[200], 1), Some(sample(&[100], 1)))]);
        assert!(row(&slow).ends_with("<= 1.15 !"));
        let slow = record_of(point(Case::Throughput), vec![(sample(&[1; 6], 1), Some(sample(&[1; 10], 1)))]);
        assert!(row(&slow).ends_with(">= 0.7 !"));
    }
}
