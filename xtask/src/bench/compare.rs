//! What changed from one file of results to another, beyond the noise of the runs in them.
//!
//! Where both have limits, ratios are judged: what slows the whole machine slows the limit too. The noise is three
//! standard deviations of the runs of both files, by their median absolute deviations, and 3 % at least. What loses
//! messages that it did not lose before is worse, however fast the others are.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::table;

/// Changes below this are noise on any machine.
const LEAST_NOISE: f64 = 0.03;
/// Standard deviations that are noise.
const TIMES_SPREAD: f64 = 3.0;
/// The relative standard deviation of a figure that was measured once or twice.
const UNKNOWN_SPREAD: f64 = 0.05;
/// From a median absolute deviation to a standard deviation.
const TO_SIGMA: f64 = 1.4826;

/// A line of a file.
#[derive(Debug, Clone, PartialEq)]
struct Measured {
    /// Case, backend, mode, frame, depth, rate, transceivers: what makes it the same measurement.
    key: String,
    /// A rate, of which more is better; else a time.
    is_rate: bool,
    /// The figure of each run in which something was answered.
    figures: Vec<f64>,
    /// The limit of each of them, where it was measured.
    limits: Option<Vec<f64>>,
    /// Messages that were never answered.
    lost: u64,
    /// What it ran on, and on which CPUs.
    place: String,
    commit: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Better,
    Worse,
    /// Messages are lost that were not before.
    Loses,
    Same,
}

/// The same measurement in both files.
#[derive(Debug, Clone, PartialEq)]
struct Change {
    figure: (f64, f64),
    /// Relative change of what is judged: more is a larger value.
    by: f64,
    noise: f64,
    by_ratio: bool,
    verdict: Verdict,
}

pub(super) fn run(before: &Path, after: &Path) -> Result<ExitCode> {
    let (before, after) = (read(before)?, read(after)?);
    let (text, is_worse) = report(&before, &after);
    print!("{text}");
    Ok(if is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn read(path: &Path) -> Result<Vec<Measured>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let measured: Vec<Measured> = lines
        .map(|(index, line)| {
            measured(line)
                .with_context(|| format!("{}, line {}: no result of bench --json", path.display(), index + 1))
        })
        .collect::<Result<_>>()?;
    if measured.is_empty() {
        bail!("{} has no results; take a file that --json wrote", path.display());
    }
    for (index, one) in measured.iter().enumerate() {
        if measured[..index].iter().any(|other| other.key == one.key) {
            bail!("{} has two results of {}; keep one of them", path.display(), one.key);
        }
    }
    Ok(measured)
}

fn measured(line: &str) -> Result<Measured> {
    let json: Value = serde_json::from_str(line)?;
    let text = |name: &str| json[name].as_str().with_context(|| format!("no {name}"));
    let number = |value: &Value, name: &str| value[name].as_f64().with_context(|| format!("no {name}"));
    let figure = text("figure")?;
    let runs = json["runs"].as_array().filter(|runs| !runs.is_empty()).context("no runs")?;
    let figures = runs.iter().map(|run| number(run, figure)).collect::<Result<Vec<f64>>>()?;
    let limits: Option<Vec<f64>> = runs.iter().map(|run| run["limit"].as_f64()).collect();
    // Runs without an answer have no time, and a limit of 0 is none.
    let pairs = figures.iter().zip(limits.iter().flatten());
    let pairs: Vec<(f64, f64)> = pairs
        .map(|(value, limit)| (*value, *limit))
        .filter(|(value, limit)| *value > 0.0 && *limit > 0.0)
        .collect();
    let (figures, limits) = if pairs.is_empty() {
        (figures.into_iter().filter(|value| *value > 0.0).collect(), None)
    } else {
        let (figures, limits) = pairs.into_iter().unzip();
        (figures, Some(limits))
    };
    let mut key = format!("{} {} {}", text("case")?, text("backend")?, text("mode")?);
    for (name, unit) in [("frame", " B"), ("depth", " deep")] {
        key += &format!(", {}{unit}", number(&json, name)?);
    }
    if let Some(rate) = json["rate"].as_u64() {
        key += &format!(", {rate} per second");
    }
    if let (Some(count), Some(pages)) = (json["transceivers"].as_u64(), json["pages"].as_u64()) {
        key += &format!(", {count}x{pages} pages");
    }
    let machine = &json["machine"];
    let fact = |name: &str| machine[name].as_str().unwrap_or_default().to_owned();
    let cpus = match json["pinned"].as_array() {
        Some(cpus) if !cpus.is_empty() => {
            format!("pinned to {}", cpus.iter().map(Value::to_string).collect::<Vec<_>>().join(" "))
        }
        _ => "not pinned".to_owned(),
    };
    let governor = machine["governor"].as_str().unwrap_or("none");
    let (cpu, kernel, cores) = (fact("cpu"), fact("kernel"), &machine["cores"]);
    let place = format!("{cpu}, {cores} cores, Linux {kernel}, governor {governor}, {cpus}");
    let lost = json["lost"].as_u64().unwrap_or(0);
    let commit = machine["commit"].as_str().map(str::to_owned);
    Ok(Measured { key, is_rate: figure == "per_s", figures, limits, lost, place, commit })
}

/// The table, and whether anything became worse.
fn report(before: &[Measured], after: &[Measured]) -> (String, bool) {
    let mut rows = Vec::new();
    let mut verdicts = Vec::new();
    let mut moved = Vec::new();
    for old in before {
        let Some(new) = after.iter().find(|new| new.key == old.key) else {
            rows.push(vec![old.key.clone(), shown(median(&old.figures)), "not measured".to_owned()]);
            continue;
        };
        let change = compare(old, new);
        verdicts.push(change.verdict);
        let places = (&old.place, &new.place);
        if places.0 != places.1 && !moved.contains(&places) {
            moved.push(places);
        }
        rows.push(row(&old.key, &change));
    }
    for new in after.iter().filter(|new| !before.iter().any(|old| old.key == new.key)) {
        rows.push(vec![new.key.clone(), "not measured".to_owned(), shown(median(&new.figures))]);
    }
    let headers = ["case", "before", "after", "change %", "noise %", "judged by", "verdict"];
    let mut text = table::render(&headers, &rows);
    for (old, new) in moved {
        text += &format!("\nnot the same machine or CPUs: {old}; {new}\n");
    }
    let commits = [before, after].map(|file| file.first().and_then(|first| first.commit.as_deref()));
    if let [Some(old), Some(new)] = commits {
        text += &format!("\ncommits: {old}; {new}\n");
    }
    if verdicts.is_empty() {
        text += "\nnothing was measured in both files\n";
    }
    let of = |known: &[Verdict]| verdicts.iter().filter(|verdict| known.contains(verdict)).count();
    let (better, worse) = (of(&[Verdict::Better]), of(&[Verdict::Worse, Verdict::Loses]));
    text += &format!("\n{better} better, {worse} worse, {} within the noise\n", of(&[Verdict::Same]));
    (text, worse > 0)
}

fn row(key: &str, change: &Change) -> Vec<String> {
    let verdict = match change.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::Loses => "LOSES",
        Verdict::Same => "same",
    };
    vec![
        key.to_owned(),
        shown(change.figure.0),
        shown(change.figure.1),
        format!("{:.1}", change.by * 100.0),
        format!("{:.1}", change.noise * 100.0),
        if change.by_ratio { "ratio" } else { "figure" }.to_owned(),
        verdict.to_owned(),
    ]
}

/// Nanoseconds or messages per second.
fn shown(value: f64) -> String {
    if value < 1000.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn compare(old: &Measured, new: &Measured) -> Change {
    let by_ratio = old.limits.is_some() && new.limits.is_some();
    let values = |measured: &Measured| match &measured.limits {
        Some(limits) if by_ratio => {
            measured.figures.iter().zip(limits).map(|(value, limit)| value / limit).collect()
        }
        _ => measured.figures.clone(),
    };
    let (old_values, new_values) = (values(old), values(new));
    let (was, is) = (median(&old_values), median(&new_values));
    let by = if was > 0.0 { is / was - 1.0 } else { 0.0 };
    let noise = (TIMES_SPREAD * spread(&old_values).hypot(spread(&new_values))).max(LEAST_NOISE);
    let verdict = match by {
        _ if new.lost > 0 && old.lost == 0 || new.figures.is_empty() && !old.figures.is_empty() => {
            Verdict::Loses
        }
        by if by.abs() <= noise => Verdict::Same,
        by if (by > 0.0) == old.is_rate => Verdict::Better,
        _ => Verdict::Worse,
    };
    Change { figure: (median(&old.figures), median(&new.figures)), by, noise, by_ratio, verdict }
}

/// The standard deviation relative to the median, without regard to single outliers.
fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    if values.len() < 3 || middle <= 0.0 {
        return UNKNOWN_SPREAD;
    }
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    TO_SIGMA * median(&deviations) / middle
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[upper],
        _ => f64::midpoint(sorted[upper - 1], sorted[upper]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(case: &str, figures: &[f64], limits: Option<&[f64]>) -> String {
        let name = if case == "throughput" { "per_s" } else { "p50_ns" };
        let runs: Vec<Value> = figures
            .iter()
            .enumerate()
            .map(|(index, value)| json!({ name: value, "limit": limits.map(|limits| limits[index]) }))
            .collect();
        let machine = json!({ "cpu": "x", "cores": 2, "kernel": "6", "commit": "abc" });
        json!({
            "case": case, "backend": "soft", "mode": "unified", "frame": 64, "depth": 1, "figure": name,
            "runs": runs, "machine": machine,
        })
        .to_string()
    }

    fn change(case: &str, old: &[f64], new: &[f64]) -> Change {
        let of = |figures| measured(&line(case, figures, None)).unwrap();
        compare(&of(old), &of(new))
    }

    #[test]
    fn what_lies_within_the_runs_spread_is_the_same() {
        let steady = [100.0, 101.0, 100.0, 99.0, 100.0];
        assert_eq!(change("rtt", &steady, &steady.map(|v| v * 1.01)).verdict, Verdict::Same);
        assert_eq!(change("rtt", &steady, &steady.map(|v| v * 1.1)).verdict, Verdict::Worse);
        assert_eq!(change("rtt", &steady, &steady.map(|v| v * 0.9)).verdict, Verdict::Better);
        let noisy = [80.0, 90.0, 100.0, 112.0, 120.0];
        assert_eq!(change("rtt", &noisy, &noisy.map(|v| v * 1.1)).verdict, Verdict::Same);
        // One run that was disturbed is no noise.
        let disturbed = [100.0, 101.0, 300.0, 99.0, 100.0];
        assert_eq!(change("rtt", &disturbed, &steady.map(|v| v * 1.1)).verdict, Verdict::Worse);
    }

    #[test]
    fn of_rates_more_is_better() {
        let steady = [100.0, 101.0, 99.0];
        assert_eq!(change("throughput", &steady, &steady.map(|v| v * 1.2)).verdict, Verdict::Better);
        assert_eq!(change("throughput", &steady, &steady.map(|v| v * 0.8)).verdict, Verdict::Worse);
    }

    #[test]
    fn a_slower_machine_is_no_slower_transport() {
        let old = measured(&line("rtt", &[100.0, 100.0, 100.0], Some(&[50.0, 50.0, 50.0]))).unwrap();
        let slowed = measured(&line("rtt", &[150.0, 150.0, 150.0], Some(&[75.0, 75.0, 75.0]))).unwrap();
        let change = compare(&old, &slowed);
        assert!(change.by_ratio && change.verdict == Verdict::Same, "{change:?}");
        assert_eq!(change.figure, (100.0, 150.0));
        // Without limits on one side there is only the figure.
        let bare = measured(&line("rtt", &[150.0, 150.0, 150.0], None)).unwrap();
        let change = compare(&old, &bare);
        assert!(!change.by_ratio && change.verdict == Verdict::Worse, "{change:?}");
    }

    #[test]
    fn one_run_says_little() {
        assert_eq!(change("rtt", &[100.0], &[115.0]).verdict, Verdict::Same);
        assert_eq!(change("rtt", &[100.0], &[150.0]).verdict, Verdict::Worse);
    }

    #[test]
    fn the_report_names_what_changed_and_what_is_missing() {
        let steady = [100.0, 100.0, 100.0];
        let of = |case, factor: f64| measured(&line(case, &steady.map(|v| v * factor), None)).unwrap();
        let before = [of("rtt", 1.0), of("codec", 1.0), of("handoff", 1.0)];
        let after = [of("rtt", 1.5), of("codec", 0.5), of("dispatch", 1.0)];
        let (text, is_worse) = report(&before, &after);
        assert!(is_worse);
        for (case, word) in
            [("rtt", "WORSE"), ("codec", "better"), ("handoff", "not measured"), ("dispatch", "not measured")]
        {
            let line = text.lines().find(|line| line.starts_with(case));
            assert!(line.is_some_and(|line| line.contains(word)), "{case}: {text}");
        }
        assert!(text.ends_with("1 better, 1 worse, 0 within the noise\n"), "{text}");
        let (text, is_worse) = report(&before, &before);
        assert!(!is_worse && text.contains("0 worse, 3 within the noise"), "{text}");
    }

    #[test]
    fn numbers_of_transceivers_are_measurements_of_their_own() {
        let of = |count: u32| {
            let mut json: Value = serde_json::from_str(&line("scale", &[1.0], None)).unwrap();
            (json["transceivers"], json["pages"]) = (json!(count), json!(64));
            measured(&json.to_string()).unwrap()
        };
        let (text, _) = report(&[of(1), of(16)], &[of(1)]);
        assert_eq!(text.matches("not measured").count(), 1, "{text}");
        assert!(text.contains("16x64 pages"), "{text}");
    }

    #[test]
    fn another_machine_is_told() {
        let here = measured(&line("rtt", &[1.0, 1.0, 1.0], None)).unwrap();
        assert!(!report(std::slice::from_ref(&here), std::slice::from_ref(&here)).0.contains("not the same"));
        let there = Measured { place: "another".to_owned(), ..here.clone() };
        assert!(report(&[here], &[there]).0.contains("not the same machine"));
    }

    /// A line with some of its fields replaced.
    fn with(fields: &[(&str, Value)]) -> Measured {
        let mut json: Value =
            serde_json::from_str(&line("rtt", &[100.0, 100.0, 100.0], Some(&[50.0, 50.0, 50.0]))).unwrap();
        fields.iter().for_each(|(name, value)| json[*name] = value.clone());
        measured(&json.to_string()).unwrap()
    }

    #[test]
    fn cpus_and_governors_are_told_apart_and_commits_are_named() {
        let pinned = with(&[("pinned", json!([0, 1]))]);
        let (text, _) = report(&[with(&[])], &[pinned]);
        assert!(text.contains("not pinned; ") && text.contains("pinned to 0 1"), "{text}");
        assert!(text.contains("commits: abc; abc"), "{text}");
    }

    #[test]
    fn each_rate_is_a_measurement_of_its_own() {
        let (slow, fast) = (with(&[("rate", json!(1000))]), with(&[("rate", json!(10_000))]));
        let (text, _) = report(&[slow], &[fast]);
        assert!(text.contains("1000 per second") && text.contains("nothing was measured in both"), "{text}");
    }

    #[test]
    fn what_loses_messages_is_worse_however_fast() {
        let runs = |ns: f64| json!([{ "p50_ns": ns, "limit": 50.0 }]);
        let of = |ns, lost: u64| with(&[("runs", runs(ns)), ("lost", json!(lost))]);
        let verdict = |old, new| compare(&old, &new).verdict;
        assert_eq!(verdict(of(100.0, 0), of(60.0, 3)), Verdict::Loses);
        assert_eq!(verdict(of(100.0, 0), of(0.0, 3)), Verdict::Loses);
        assert_eq!(verdict(of(100.0, 3), of(0.0, 9)), Verdict::Loses);
        assert_eq!(verdict(of(100.0, 3), of(100.0, 2)), Verdict::Same);
        assert!(report(&[of(100.0, 0)], &[of(100.0, 1)]).1, "an exit code says so");
    }

    #[test]
    fn limits_of_nothing_are_none() {
        let of = |limit: f64| with(&[("runs", json!([{ "p50_ns": 100.0, "limit": limit }]))]);
        let change = compare(&of(50.0), &of(0.0));
        assert!(!change.by_ratio && change.verdict == Verdict::Same, "{change:?}");
    }

    #[test]
    fn files_that_are_no_results_are_named_with_their_line() {
        let path = std::env::temp_dir().join(format!("xtask-bench-{}.json", std::process::id()));
        fs::write(&path, format!("{}\n{{\"case\": 1}}\n", line("rtt", &[1.0], None))).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        let twice = line("rtt", &[1.0], None);
        fs::write(&path, format!("{twice}\n{twice}\n")).unwrap();
        let twice = format!("{:#}", read(&path).unwrap_err());
        assert!(twice.contains("two results of rtt"), "{twice}");
        fs::write(&path, "\n").unwrap();
        let empty = format!("{:#}", read(&path).unwrap_err());
        fs::remove_file(&path).unwrap();
        assert!(error.contains("line 2") && empty.contains("no results"), "{error}; {empty}");
        assert!(read(Path::new("/no/such/file")).is_err());
    }
}
