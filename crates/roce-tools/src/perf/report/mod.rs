//! Results for people: tables, CSV, plots, and a page that has all of it.

mod csv;
mod handoffs;
mod html;
mod plot;
mod table;

pub use csv::write as csv;
pub use handoffs::handoffs;
pub use html::page as html;
pub use plot::{Plot, plots};
pub use table::{row, table};

use super::record::Record;

/// Times with a unit that leaves a few digits before the point.
pub(super) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.1} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Each once, in the order in which they come.
fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    values.for_each(|value| {
        if !found.contains(&value) {
            found.push(value);
        }
    });
    found
}

/// Payload bytes of the links' packets, in words.
pub fn mtus(records: &[Record]) -> String {
    let mtus = unique(records.iter().filter_map(|record| record.mtu));
    if mtus.is_empty() {
        return "no link".to_owned();
    }
    mtus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Rates with three digits and a half.
pub(super) fn rate(per_s: f64) -> String {
    match per_s {
        per_s if per_s < 1e4 => format!("{per_s:.0}"),
        per_s if per_s < 1e6 => format!("{:.1} k", per_s / 1e3),
        per_s => format!("{:.2} M", per_s / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit_the_value() {
        assert_eq!([53.44, 5432.1, 7.5e6, 2e9].map(time), ["53.4 ns", "5.43 us", "7.50 ms", "2.00 s"]);
        assert_eq!([812.0, 123_456.0, 8_765_432.0].map(rate), ["812", "123.5 k", "8.77 M"]);
    }
}
