//! Plots as SVG.

use std::error::Error as StdError;
use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::{rate, time, unique};
use crate::Error;
use crate::perf::plan::{Case, Many, ServiceMode};
use crate::perf::record::Record;

const SIZE: (u32, u32) = (760, 446);
/// Pixels in which lines are drawn, and those of the legend above them: a margin and its rows.
const DRAWN: f64 = 330.0;
const LEGEND: (f64, f64) = (18.0, 16.0);
const FONT: &str = "sans-serif";
/// Told apart by those who do not see all colours, too (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const LIMIT: RGBColor = RGBColor(110, 110, 110);
/// The last quantile of a plot, percent: the maximum stands here.
const LAST: f64 = 99.9995;

/// A plot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plot {
    /// Fit for a file: `rtt-distribution`.
    pub name: String,
    /// For people.
    pub title: String,
    /// What it shows, in a sentence.
    pub caption: String,
    /// The drawing.
    pub svg: String,
}

/// Every plot that the results are enough for.
///
/// # Errors
/// [`Error::Plot`] when one cannot be drawn.
pub fn plots(records: &[Record]) -> Result<Vec<Plot>, Error> {
    let mut charts: Vec<Chart> = [Case::Rtt, Case::Jitter, Case::Handoff]
        .iter()
        .filter_map(|&case| distribution(records, case))
        .collect();
    charts.extend(against_frame(records));
    charts.extend(against_depth(records));
    charts.extend(against_number(records));
    charts.extend(records.iter().filter_map(over_time));
    let facts = facts(records);
    charts.into_iter().map(|chart| chart.draw(&facts)).collect()
}

/// What the results were measured on, in a line.
fn facts(records: &[Record]) -> String {
    let Some(first) = records.first() else { return String::new() };
    let mut links = unique(records.iter().map(|record| record.backend.clone()));
    links.extend(
        unique(records.iter().filter_map(|record| record.mtu)).iter().map(|mtu| format!("MTU {mtu}")),
    );
    format!("{}; {}", links.join(", "), first.machine.brief())
}

/// How a figure grows with another.
struct Chart {
    name: String,
    title: String,
    caption: String,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
}

struct Axis {
    label: &'static str,
    scale: Scale,
    format: fn(f64) -> String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// From the least value to the largest.
    Linear,
    /// From 0.
    FromZero,
    /// By decades.
    Log,
}

struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    is_limit: bool,
}

/// Distribution of times: one line per mode, and one for the limit, of the frame size that most modes have.
fn distribution(records: &[Record], case: Case) -> Option<Chart> {
    let records = of_one_frame(records, case);
    let first = *records.first()?;
    let mut lines: Vec<Line> =
        records.iter().map(|record| Line::new(mode(record), on_tail(&record.curve))).collect();
    lines.push(Line::limit(first, on_tail(&first.limit_curve)));
    lines.retain(|line| !line.points.is_empty());
    if lines.is_empty() {
        return None;
    }
    let bytes = if first.frame == 0 { String::new() } else { format!(", {} B", first.frame) };
    let rate = first.rate.map(|rate| format!(", {rate} per second")).unwrap_or_default();
    Some(Chart {
        name: format!("{}-distribution", case.name()),
        title: format!("Distribution of times: {}{bytes}{rate}", case.name()),
        caption: "How many messages took at most so long; the further a line stays down to the right, the steadier."
            .to_owned(),
        x: Axis { label: "quantile", scale: Scale::Linear, format: quantile },
        y: Axis { label: "time", scale: Scale::Log, format: round_time },
        lines,
    })
}

/// Results of a case with the frame size that most of them have, of as many the first: lines are of one size each.
fn of_one_frame(records: &[Record], case: Case) -> Vec<&Record> {
    let of_case = || records.iter().filter(|record| record.case == case);
    let of = |frame| of_case().filter(move |record| record.frame == frame);
    // Of the reversed the last of the largest.
    let frames = unique(of_case().map(|record| record.frame)).into_iter().rev();
    frames.max_by_key(|&frame| of(frame).count()).map(|frame| of(frame).collect()).unwrap_or_default()
}

/// A tenth of what is left with each step to the right.
fn on_tail(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    curve.iter().map(|&(percent, ns)| (-(1.0 - percent.min(LAST) / 100.0).log10(), ns)).collect()
}

fn quantile(nines: f64) -> String {
    if nines < 0.05 {
        return "0 %".to_owned();
    }
    if (nines - nines.round()).abs() > 0.01 {
        return String::new();
    }
    let percent = 100.0 - 100.0 * 10f64.powf(-nines);
    format!("{} %", plain(&format!("{percent:.4}")))
}

/// Of a number with decimals, those that say something.
fn plain(number: &str) -> String {
    number.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A time at an axis: `20 us`.
fn short_time(ns: f64) -> String {
    let text = time(ns);
    text.split_once(' ').map_or_else(|| text.clone(), |(number, unit)| format!("{} {unit}", plain(number)))
}

/// Nothing between 1, 2 and 5 and their decades, where labels would lie on each other.
fn round_time(ns: f64) -> String {
    let mantissa = ns / 10f64.powf(ns.log10().floor());
    let is_round = [1.0, 2.0, 5.0, 10.0].iter().any(|round| (mantissa - round).abs() < 0.01);
    if is_round { short_time(ns) } else { String::new() }
}

/// Times of round trips over the bytes of a frame.
fn against_frame(records: &[Record]) -> Option<Chart> {
    let of = |mode| records.iter().filter(move |record| record.case == Case::Rtt && record.mode == mode);
    let mut lines = Vec::new();
    for mode in [ServiceMode::Unified, ServiceMode::Threads, ServiceMode::Forward] {
        let points = |value: fn(&Record) -> f64| -> Vec<(f64, f64)> {
            of(mode).map(|record| (f64::from(record.frame).log2(), value(record))).collect()
        };
        lines.push(Line::new(format!("{} p50", mode.name()), points(|record| record.p50_ns)));
        if mode == ServiceMode::Unified {
            lines.push(Line::new(format!("{} p99", mode.name()), points(|record| record.p99_ns)));
            let limits = of(mode).filter_map(|record| Some((f64::from(record.frame).log2(), record.limit?)));
            lines.extend(of(mode).next().map(|first| Line::limit(first, limits.collect())));
        }
    }
    Chart::of_powers(
        "rtt-frames",
        "Round trip against frame size",
        "bytes of a frame",
        "time",
        short_time,
        lines,
    )
}

/// Round trips per second over those under way.
fn against_depth(records: &[Record]) -> Option<Chart> {
    let records = of_one_frame(records, Case::Throughput);
    let of = |mode| records.iter().filter(move |record| record.mode == mode);
    let frame = records.first()?.frame;
    let depth = |record: &Record| f64::from(record.depth).log2();
    let mut lines = Vec::new();
    for mode in [ServiceMode::Unified, ServiceMode::Forward, ServiceMode::Threads] {
        lines.push(Line::new(
            mode.name().to_owned(),
            of(mode).map(|record| (depth(record), record.per_s)).collect(),
        ));
    }
    let limited = [ServiceMode::Unified, ServiceMode::Forward, ServiceMode::Threads]
        .into_iter()
        .max_by_key(|&mode| of(mode).filter(|record| record.limit.is_some()).count())?;
    let limits = of(limited).filter_map(|record| Some((depth(record), record.limit?))).collect();
    lines.extend(of(limited).next().map(|first| Line::limit(first, limits)));
    Chart::of_powers(
        "throughput-depth",
        &format!("Throughput against depth, {frame} B"),
        "requests under way",
        "round trips per second",
        rate,
        lines,
    )
}

/// Times of round trips over the number of transceivers under one poller.
fn against_number(records: &[Record]) -> Option<Chart> {
    let records = of_one_frame(records, Case::Scale);
    let single = |record: &&&Record| record.mode == ServiceMode::Shared && record.depth == 1;
    let counted = || {
        let shared = records.iter().filter(single);
        shared.filter_map(|record| Some((record.many?, *record)))
    };
    let number = |many: Many| f64::from(many.transceivers).log2();
    let mut lines: Vec<Line> = unique(counted().map(|(many, _)| many.pages))
        .into_iter()
        .map(|pages| {
            let of_size = counted().filter(|(many, _)| many.pages == pages);
            let points = of_size.map(|(many, record)| (number(many), record.p50_ns)).collect();
            Line::new(format!("{pages} pages"), points)
        })
        .collect();
    let (least, first) = counted().min_by_key(|(many, _)| many.pages)?;
    let limits = counted().filter(|(many, _)| many.pages == least.pages);
    lines.push(Line::limit(
        first,
        limits.filter_map(|(many, record)| Some((number(many), record.limit?))).collect(),
    ));
    Chart::of_powers(
        "scale-number",
        "Round trip against the number of transceivers under one poller",
        "transceivers",
        "time",
        short_time,
        lines,
    )
}

/// How a long run went.
fn over_time(record: &Record) -> Option<Chart> {
    if record.series.len() < 2 {
        return None;
    }
    let line = |name: &str, value: fn(&crate::perf::record::Bin) -> u64| {
        let points = record.series.iter().map(|bin| (bin.t_s, value(bin).max(1) as f64)).collect();
        Line::new(name.to_owned(), points)
    };
    Some(Chart {
        name: format!("{}-{}-{}-time", record.case.name(), record.mode.name(), record.frame),
        title: format!("Over time: {}, {} per second", record.title(), record.rate.unwrap_or(0)),
        caption: "Each point is a piece of the run: its median, its 99th percentile and its slowest message."
            .to_owned(),
        x: Axis { label: "seconds", scale: Scale::Linear, format: |seconds| plain(&format!("{seconds:.3}")) },
        y: Axis { label: "time", scale: Scale::Log, format: round_time },
        lines: vec![
            line("median", |bin| bin.p50_ns),
            line("99 %", |bin| bin.p99_ns),
            line("slowest", |bin| bin.max_ns),
        ],
    })
}

fn mode(record: &Record) -> String {
    if record.mode == ServiceMode::None {
        record.case.name().to_owned()
    } else {
        record.mode.name().to_owned()
    }
}

impl Line {
    fn new(name: String, points: Vec<(f64, f64)>) -> Self {
        Self { name, points, is_limit: false }
    }

    fn limit(record: &Record, points: Vec<(f64, f64)>) -> Self {
        Self { name: format!("limit: {}", record.limit_name), points, is_limit: true }
    }
}

impl Chart {
    /// Over powers of two; `None` when no line has two points.
    fn of_powers(
        name: &str,
        title: &str,
        x: &'static str,
        y: &'static str,
        format: fn(f64) -> String,
        mut lines: Vec<Line>,
    ) -> Option<Self> {
        lines.retain(|line| line.points.len() > 1);
        let power = |exponent: f64| {
            let is_whole = (exponent - exponent.round()).abs() < 0.01;
            if is_whole { format!("{:.0}", exponent.exp2()) } else { String::new() }
        };
        (!lines.is_empty()).then(|| Self {
            name: name.to_owned(),
            title: title.to_owned(),
            caption: "Medians of the runs; the limit was measured in the same minutes.".to_owned(),
            x: Axis { label: x, scale: Scale::Linear, format: power },
            y: Axis { label: y, scale: Scale::FromZero, format },
            lines,
        })
    }

    fn draw(self, facts: &str) -> Result<Plot, Error> {
        let mut svg = String::new();
        let range = self.below_legend(self.range(|&(_, y)| y, self.y.scale));
        let drawn = match self.y.scale {
            Scale::Log => self.draw_on(&mut svg, facts, range.log_scale()),
            _ => self.draw_on(&mut svg, facts, range),
        };
        drawn.map_err(|e| Error::Plot { what: self.title.clone(), reason: e.to_string() })?;
        Ok(Plot { name: self.name, title: self.title, caption: self.caption, svg })
    }

    fn draw_on<Y>(&self, svg: &mut String, facts: &str, y: Y) -> Result<(), Box<dyn StdError + '_>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let text = (FONT, 13).into_font().color(&BLACK);
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(own)?;
        let (area, below) = area.split_vertically(SIZE.1 - 16);
        let small = (FONT, 11).into_font().color(&RGBColor(110, 110, 110));
        below.draw(&Text::new(facts, (14, 0), small)).map_err(own)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .caption(&self.title, (FONT, 16))
            .x_label_area_size(42)
            .y_label_area_size(78)
            .build_cartesian_2d(self.range(|&(x, _)| x, self.x.scale), y)
            .map_err(own)?;
        chart
            .configure_mesh()
            .label_style(text.clone())
            .axis_desc_style(text.clone())
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .x_label_formatter(&|x| (self.x.format)(*x))
            .y_label_formatter(&|y| (self.y.format)(*y))
            .light_line_style(WHITE.mix(0.0))
            .draw()
            .map_err(own)?;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = if line.is_limit { LIMIT } else { COLOURS[index % COLOURS.len()] };
            let style = colour.stroke_width(2);
            let points = line.points.iter().copied();
            let drawn = if line.is_limit {
                chart.draw_series(DashedLineSeries::new(points, 6, 4, style)).map_err(own)?
            } else {
                chart.draw_series(LineSeries::new(points, style)).map_err(own)?
            };
            drawn.label(&line.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .label_font(text)
            .draw()
            .map_err(own)?;
        area.present().map_err(own)
    }

    /// With so much room above all lines that the legend hides none.
    fn below_legend(&self, Range { start, end }: Range<f64>) -> Range<f64> {
        let (row, margin) = LEGEND;
        let part = (row * self.lines.len() as f64 + margin) / DRAWN;
        let stretch = part / (1.0 - part);
        match self.y.scale {
            Scale::Log => start..end * (end / start).powf(stretch),
            _ => start..end + (end - start) * stretch,
        }
    }

    /// From the least to the largest value of all lines, and a little room.
    fn range(&self, value: fn(&(f64, f64)) -> f64, scale: Scale) -> Range<f64> {
        let values = || self.lines.iter().flat_map(|line| &line.points).map(value);
        let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
        match scale {
            Scale::Linear if least < most => least..most,
            Scale::Linear => least..least + 1.0,
            Scale::FromZero => 0.0..(most * 1.02).max(1.0),
            Scale::Log => (least.max(1.0) * 0.8)..(most.max(2.0) * 1.1),
        }
    }
}

/// A backend's error without its lifetime.
fn own(error: impl StdError) -> Box<dyn StdError> {
    error.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::Bin;
    use crate::perf::record::tests::{point, record_of, sample};

    fn record(case: Case, frame: u32, depth: u32) -> Record {
        let point = crate::perf::plan::Point { frame, depth, ..point(case) };
        record_of(point, vec![(sample(&[5000, 6000, 90_000], 1), Some(sample(&[4000, 4100, 70_000], 1)))])
    }

    fn names(records: &[Record]) -> Vec<String> {
        plots(records).unwrap().into_iter().map(|plot| plot.name).collect()
    }

    #[test]
    fn plots_are_drawn_where_there_is_enough_for_them() {
        assert_eq!(names(&[]), [""; 0]);
        assert_eq!(names(&[record(Case::Rtt, 64, 1)]), ["rtt-distribution"]);
        assert_eq!(
            names(&[record(Case::Rtt, 64, 1), record(Case::Rtt, 128, 1)]),
            ["rtt-distribution", "rtt-frames"]
        );
        let streams = [record(Case::Throughput, 64, 1), record(Case::Throughput, 64, 64)];
        assert_eq!(names(&streams), ["throughput-depth"]);
        let scaled = [1, 16].map(|transceivers| {
            let many = Some(Many { transceivers, pages: 64 });
            Record { mode: ServiceMode::Shared, many, ..record(Case::Scale, 64, 1) }
        });
        assert_eq!(names(&scaled), ["scale-number"]);
        let mut jitter = record(Case::Jitter, 64, 1);
        let bin = |t_s| Bin { t_s, p50_ns: 5000, p99_ns: 6000, max_ns: 50_000 };
        jitter.series = vec![bin(0.1), bin(0.2)];
        assert_eq!(names(&[jitter]), ["jitter-distribution", "jitter-unified-64-time"]);
    }

    #[test]
    fn results_without_a_single_answer_are_drawn_too() {
        let lost = |case, depth| {
            let point = crate::perf::plan::Point { depth, ..point(case) };
            record_of(point, vec![(crate::perf::meter::Sample::new(1), None)])
        };
        let records =
            [lost(Case::Rtt, 1), lost(Case::Jitter, 1), lost(Case::Throughput, 1), lost(Case::Throughput, 2)];
        for plot in plots(&records).unwrap() {
            assert!(!plot.svg.contains("NaN") && !plot.svg.contains("inf"), "{}", plot.svg);
        }
        assert_eq!(names(&records[..1]), [""; 0], "no line, no plot");
    }

    #[test]
    fn drawings_name_their_axes_and_lines() {
        let plots = plots(&[record(Case::Rtt, 64, 1)]).unwrap();
        for text in ["quantile", "time", "unified", "limit: something raw", "99 %", "us"] {
            assert!(plots[0].svg.contains(text), "{text}");
        }
        assert!(plots[0].svg.starts_with("<svg") && plots[0].svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn a_distribution_is_of_the_size_that_most_modes_have() {
        let forward = Record { mode: ServiceMode::Forward, ..record(Case::Rtt, 64, 1) };
        let records = [record(Case::Rtt, 32, 1), record(Case::Rtt, 64, 1), forward];
        let plots = plots(&records).unwrap();
        assert_eq!(plots[0].title, "Distribution of times: rtt, 64 B");
        assert!(plots[0].svg.contains("unified") && plots[0].svg.contains("forward"));
    }

    #[test]
    fn throughput_is_of_one_size() {
        let at = |frame, depth, per_s| Record { per_s, ..record(Case::Throughput, frame, depth) };
        let one = [at(64, 1, 1e5), at(64, 2, 2e5)];
        let two = [at(256, 1, 9e4), at(256, 2, 9e5)];
        let drawn = |records: &[Record]| plots(records).unwrap().remove(0);
        let plot = drawn(&[one.clone(), two].concat());
        assert_eq!(
            (plot.title.as_str(), plot.svg == drawn(&one).svg),
            ("Throughput against depth, 64 B", true)
        );
    }

    #[test]
    fn a_drawing_says_what_it_was_measured_on() {
        let plots = plots(&[Record { mtu: Some(4096), ..record(Case::Rtt, 64, 1) }]).unwrap();
        assert!(
            plots[0].svg.contains("soft, MTU 4096; ") && plots[0].svg.contains("Linux "),
            "{}",
            plots[0].svg
        );
    }

    #[test]
    fn no_line_lies_below_the_legend() {
        let line = |name: &str| Line::new(name.to_owned(), vec![(1.0, 100.0), (2.0, 100_000.0)]);
        for scale in [Scale::FromZero, Scale::Log] {
            let chart = Chart {
                name: String::new(),
                title: String::new(),
                caption: String::new(),
                x: Axis { label: "", scale: Scale::Linear, format: time },
                y: Axis { label: "", scale, format: time },
                lines: ["a", "b", "c", "d", "e"].map(line).into(),
            };
            let Range { start, end } = chart.below_legend(chart.range(|&(_, y)| y, scale));
            let at = match scale {
                Scale::Log => (100_000.0 / start).ln() / (end / start).ln(),
                _ => 100_000.0 / end,
            };
            let free = (1.0 - at) * DRAWN;
            assert!((106.0..130.0).contains(&free), "{scale:?}: {free} pixels");
        }
    }

    #[test]
    fn labels_of_an_axis_are_short_and_apart() {
        assert_eq!([10_000.0, 20_000.0, 2.5e6, 0.0].map(short_time), ["10 us", "20 us", "2.5 ms", "0 ns"]);
        assert_eq!(
            [1e4, 2e4, 3e4, 5e4, 9e4, 1e5].map(round_time),
            ["10 us", "20 us", "", "50 us", "", "100 us"]
        );
        assert_eq!([0.05, 12.0, 600.0].map(|s| plain(&format!("{s:.3}"))), ["0.05", "12", "600"]);
    }

    #[test]
    fn quantiles_are_named_by_their_nines() {
        assert_eq!(
            [0.0, 1.0, 2.0, 3.0, 4.0, 1.5].map(quantile),
            ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", ""]
        );
    }
}
