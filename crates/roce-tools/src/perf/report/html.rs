//! A page that has all of it, and needs nothing else.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::table::target;
use super::{Plot, handoffs, mtus, plots, rate, time, unique};
use crate::Error;
use crate::perf::place::listed;
use crate::perf::record::{Figure, Record};

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1300px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; }
table { border-collapse: collapse; } th, td { padding: .25em .6em; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #888; }
tbody tr:nth-child(even) { background: #f4f6f8; } tr.note td { text-align: left; color: #a05a00; font-size: .9em; }
.wide { overflow-x: auto; } .facts td { text-align: left; } .bar { text-align: left; width: 130px; }
.bar span { display: inline-block; height: .8em; background: #0072b2; } .missed .bar span { background: #d55e00; }
.missed .ratio { color: #b03a00; font-weight: bold; } .met .ratio { color: #00704f; font-weight: bold; }
.side { display: flex; flex-wrap: wrap; gap: 0 4em; } .warning { color: #a05a00; font-weight: bold; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: 1em; }
figure { margin: 0; } figcaption { color: #555; font-size: .9em; }
svg { max-width: 100%; height: auto; border: 1px solid #ddd; }
";

/// Pixels of a ratio of 1.
const BAR_PIXELS: f64 = 60.0;

/// The page.
///
/// # Errors
/// [`Error::Plot`] when a plot cannot be drawn.
pub fn page(records: &[Record]) -> Result<String, Error> {
    let plots = plots(records)?;
    let backends: Vec<&str> = unique(records.iter().map(|record| record.backend.as_str()));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "roce-perf: " (backends.join(", ")) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Measurements of the RoCE transport: " (backends.join(", ")) }
                p {
                    "Each case was run in turns with its raw limit, which is what the same machine does with nothing of "
                    "the transport on the path. Figures are medians of the runs; the ratio is figure over limit: of "
                    "times less is better, of rates more. "
                    (totals(records))
                }
                @if let Some(warning) = records.first().and_then(|first| first.machine.warning()) {
                    p class="warning" { (warning) }
                }
                div class="side" {
                    @if records.iter().any(|record| record.is_met().is_some()) { div { (glance(records)) } }
                    div { (machine(records)) }
                }
                @if !plots.is_empty() {
                    h2 { "Plots" }
                    div class="plots" { @for plot in &plots { (figure(plot)) } }
                }
                h2 { "Results" }
                div class="wide" { (results(records)) }
                @for line in handoffs(records) { p { (line) } }
                p { (limits(records)) }
            }
        }
    };
    Ok(page.into_string())
}

fn totals(records: &[Record]) -> String {
    let with_target: Vec<bool> = records.iter().filter_map(Record::is_met).collect();
    let met = with_target.iter().filter(|met| **met).count();
    let lost: u64 = records.iter().map(|record| record.lost).sum();
    format!("{met} of {} targets are met; {lost} messages were lost.", with_target.len())
}

/// The figures that have a target.
fn glance(records: &[Record]) -> Markup {
    html! {
        h2 { "At a glance" }
        table {
            thead { tr { @for header in ["case", "figure", "limit", "ratio", "", "target"] { th { (header) } } } }
            tbody {
                @for record in records.iter().filter(|record| record.is_met().is_some()) {
                    tr class=(class(record)) {
                        td { (record.title()) }
                        td { (figure_of(record, record.value())) }
                        td { (record.limit.map(|limit| figure_of(record, limit)).unwrap_or_default()) }
                        td class="ratio" { (ratio(record)) }
                        td class="bar" { (bar(record)) }
                        td { (target(record)) }
                    }
                }
            }
        }
    }
}

/// What the limits of the cases are.
fn limits(records: &[Record]) -> String {
    let measured = records.iter().filter(|record| record.limit.is_some());
    let names = unique(measured.map(|record| format!("{}: {}", record.case.name(), record.limit_name)));
    if names.is_empty() { String::new() } else { format!("Limits: {}.", names.join("; ")) }
}

fn machine(records: &[Record]) -> Markup {
    let Some(first) = records.first() else { return html! { p { "There are no results." } } };
    let runs = first.runs.len();
    let cpus = |pinned: &[usize]| match pinned {
        [] => "none".to_owned(),
        cpus => listed(cpus),
    };
    let pinned = unique(records.iter().map(|record| cpus(&record.pinned)));
    html! {
        h2 { "Machine" }
        table class="facts" {
            @for (name, value) in first.machine.facts() { tr { th { (name) } td { (value) } } }
            tr { th { "path MTU" } td { (mtus(records)) } }
            tr { th { "threads pinned to CPUs" } td { (pinned.join("; ")) } }
            tr { th { "runs of each" } td { (runs) } }
        }
    }
}

fn results(records: &[Record]) -> Markup {
    let headers = ["case", "p50", "p99", "p99.9", "p99.99", "max", "per s", "limit", "ratio", "", "target"];
    html! {
        table {
            thead { tr { @for header in headers { th { (header) } } } }
            tbody { @for record in records { (result(record, headers.len())) } }
        }
    }
}

fn result(record: &Record, columns: usize) -> Markup {
    let times = [record.p50_ns, record.p99_ns, record.p99_9_ns, record.p99_99_ns, record.max_ns];
    html! {
        tr class=(class(record)) {
            td { (record.title()) }
            @for ns in times { td { (time(ns)) } }
            td { (rate(record.per_s)) }
            td title=(record.limit_name) {
                (record.limit.map(|limit| figure_of(record, limit)).unwrap_or_default())
            }
            td class="ratio" { (ratio(record)) }
            td class="bar" { (bar(record)) }
            td { (target(record)) }
        }
        @if let Some(note) = record.note() { tr class="note" { td colspan=(columns) { (note) } } }
    }
}

fn class(record: &Record) -> &'static str {
    match record.is_met() {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    }
}

/// A value of the figure that counts, with its unit.
fn figure_of(record: &Record, value: f64) -> String {
    match record.figure {
        Figure::P50Ns => time(value),
        Figure::PerS => format!("{} per s", rate(value)),
    }
}

fn ratio(record: &Record) -> String {
    record.ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}

fn bar(record: &Record) -> Markup {
    let Some(ratio) = record.ratio else { return html! {} };
    let width = (ratio * BAR_PIXELS).clamp(1.0, 2.0 * BAR_PIXELS);
    html! { span style=(format!("width: {width:.0}px")) title=(format!("{ratio:.3} of the limit")) {} }
}

fn figure(plot: &Plot) -> Markup {
    html! { figure { (PreEscaped(&plot.svg)) figcaption { (plot.caption) } } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::plan::Case;
    use crate::perf::record::tests::{point, record_of, sample};

    /// Elements that have no end tag.
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];

    /// Every element is closed, in the order in which they were opened, and no text has a stray bracket.
    fn check_nesting(page: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = page;
        while let Some(start) = rest.find('<') {
            assert!(
                !rest[..start].contains('>') || open.last() == Some(&"style"),
                "stray > in {:?}",
                &rest[..start]
            );
            let end = start + rest[start..].find('>').expect("a tag ends");
            let tag = &rest[start + 1..end];
            rest = &rest[end + 1..];
            let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap_or_default();
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed.trim()), "closed what was not open");
            } else if !tag.ends_with('/') && !VOID.contains(&name) {
                open.push(name);
            }
        }
        assert_eq!(open, [""; 0]);
    }

    fn records() -> Vec<Record> {
        let of = |case| record_of(point(case), vec![(sample(&[200, 300], 1), Some(sample(&[100, 150], 1)))]);
        vec![of(Case::Rtt), of(Case::Throughput), of(Case::Codec)]
    }

    #[test]
    fn the_page_is_well_formed_and_has_every_result() {
        let page = page(&records()).unwrap();
        check_nesting(&page);
        for text in [
            "rtt unified 64 B",
            "codec",
            "<svg",
            "kernel",
            "1 of 2 targets are met",
            "At a glance",
            "threads pinned to CPUs",
            "Limits: rtt: something raw; throughput: something raw",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        for outside in ["<script", "<link", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "the page needs something else: {outside}");
        }
    }

    #[test]
    fn what_is_to_be_doubted_is_said() {
        let mut records = records();
        records[0].machine.load = 0.0;
        assert!(!page(&records).unwrap().contains("was busy before"));
        records[0].machine.load = 9.5;
        assert!(page(&records).unwrap().contains("was busy before"));
        // Without limits there are no targets to look at.
        let bare: Vec<Record> = records.into_iter().map(|record| Record { ratio: None, ..record }).collect();
        assert!(!page(&bare).unwrap().contains("At a glance"));
    }

    #[test]
    fn names_cannot_break_the_page() {
        let mut records = records();
        records[0].machine.cpu = "</td><script>alert(1)</script> & co".to_owned();
        let page = page(&records).unwrap();
        check_nesting(&page);
        assert!(!page.contains("<script"));
    }

    #[test]
    fn no_results_are_a_page_too() {
        check_nesting(&page(&[]).unwrap());
    }
}
