//! From the reports of the three processes to one report and one verdict.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::options::{Mode, Options, Workload};
use crate::table;

/// What a run left behind.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The playback tool's reports, one per workload played.
    pub(super) runs: Vec<Value>,
    /// The bridge's report.
    pub(super) bridge: Option<Value>,
    /// The emulator's report.
    pub(super) emulator: Option<Value>,
    /// What went wrong beside the answers.
    pub(super) reasons: Vec<String>,
}

/// The whole run in one JSON object.
#[derive(Debug)]
pub(super) struct Report(Value);

/// Decoders may differ where two matchings weigh the same: in one shot of so many, rounded up.
const SHOTS_PER_DIFFERENCE: u64 = 512;
/// Counts that each of the playback tool's reports must have.
const COUNTS: [&str; 6] = ["messages", "responses", "matched", "payload_errors", "header_errors", "lost"];

impl Report {
    /// Judges the evidence. Nothing is taken on trust: a report that says PASS beside counts that do not add up
    /// fails, and so does a workload without a report.
    pub(super) fn new(options: &Options, backend: &str, evidence: Evidence) -> Self {
        let Evidence { runs, bridge, emulator, mut reasons } = evidence;
        for workload in &options.workloads {
            match runs.iter().find(|run| run["workload"] == workload.name()) {
                Some(run) => reasons.extend(judge(run, *workload, options)),
                None if reasons.is_empty() => reasons.push(format!("{}: no report", workload.name())),
                None => {}
            }
        }
        let mut report = json!({
            "backend": backend,
            "mode": options.mode.name(),
            "workload": names(&options.workloads),
        });
        for count in COUNTS {
            report[count] = sum(&runs, count).into();
        }
        let by_workload = |run: &Value| Some((run["workload"].as_str()?.to_owned(), run["lost_ids"].clone()));
        report["lost_ids"] = runs.iter().filter_map(by_workload).collect::<Map<_, _>>().into();
        report["late"] = emulator.as_ref().map_or(Value::Null, |emulator| emulator["late"].clone());
        report["overruns"] =
            bridge.as_ref().map_or(Value::Null, |bridge| bridge["stats"]["overruns"].clone());
        for only_of_one in ["logical_errors", "agreement", "reference_agreement"] {
            let found = runs.iter().map(|run| &run[only_of_one]).find(|value| !value.is_null());
            report[only_of_one] = found.cloned().unwrap_or(Value::Null);
        }
        report["rtt_ns"] = round_trip(&runs);
        report["verdict"] = if reasons.is_empty() { "PASS" } else { "FAIL" }.into();
        report["reasons"] = reasons.into();
        report["runs"] = runs.into();
        report["bridge"] = bridge.unwrap_or(Value::Null);
        report["emulator"] = emulator.unwrap_or(Value::Null);
        Self(report)
    }

    /// A report that another run of this program wrote, which must say how it ended.
    pub(super) fn written_by_another(text: &str, backend: &str) -> Result<Self> {
        let mut report: Value = serde_json::from_str(text).context("its report is no JSON")?;
        ensure!(
            matches!(report["verdict"].as_str(), Some("PASS" | "FAIL")),
            "its report says neither PASS nor FAIL"
        );
        report["backend"] = backend.into();
        Ok(Self(report))
    }

    /// Fails it, for this reason.
    pub(super) fn fail(&mut self, reason: String) {
        self.0["verdict"] = "FAIL".into();
        match self.0["reasons"].as_array_mut() {
            Some(reasons) => reasons.push(reason.into()),
            None => self.0["reasons"] = json!([reason]),
        }
    }

    pub(super) fn json(&self) -> &Value {
        &self.0
    }

    pub(super) fn passed(&self) -> bool {
        self.0["verdict"] == "PASS"
    }

    /// The line that scripts look for: what went wrong first, and losses where nothing else did.
    pub(super) fn result_line(&self) -> String {
        let is_loss =
            |reason: &&str| reason.split_once(": ").is_some_and(|(_, why)| why.starts_with("lost "));
        match self.reasons().find(|reason| !is_loss(reason)) {
            Some(reason) => format!("RESULT: FAIL ({})", reason.lines().next().unwrap_or_default()),
            None if self.passed() => "RESULT: PASS".to_owned(),
            None => format!("RESULT: FAIL (lost {})", self.0["lost"]),
        }
    }

    /// A table, the ids that were lost, and every reason.
    pub(super) fn for_people(&self) -> String {
        let runs = self.0["runs"].as_array().map_or(&[][..], Vec::as_slice);
        let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
        let headers = [
            "workload",
            "messages",
            "responses",
            "matched",
            "lost",
            "payload err",
            "header err",
            "logical err",
            "rtt min us",
            "p50",
            "p99",
            "max",
        ];
        let mut text = if rows.is_empty() { String::new() } else { table::render(&headers, &rows) };
        for run in runs.iter().filter(|run| run["lost"] != 0) {
            let ids: Vec<u64> = lost_ids(run).filter_map(Value::as_u64).collect();
            let name = run["workload"].as_str().unwrap_or("?");
            text += &format!("lost of {name}: {}\n", ranges(&ids, run["lost"].as_u64().unwrap_or(0)));
        }
        if self.0["late"].as_u64() > Some(0) {
            text += &format!(
                "late: {} answers came when nothing waited for them; their messages count as lost\n",
                self.0["late"]
            );
        }
        for reason in self.reasons() {
            text += &format!("FAILED: {reason}\n");
        }
        text
    }

    /// How the round trips of each workload spread, as the playback tool shows it.
    pub(super) fn histograms(&self) -> String {
        let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let runs = self.0["runs"].as_array().into_iter().flatten();
        let shown = |run: &Value| {
            format!("round trips of {}\n{}", word(&run["workload"]), word(&run["rtt_histogram"]["text"]))
        };
        runs.map(shown).collect()
    }

    fn reasons(&self) -> impl Iterator<Item = &str> {
        self.0["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }
}

/// Why a run of the playback tool is not good; empty when it is.
fn judge(run: &Value, workload: Workload, options: &Options) -> Vec<String> {
    let name = run["workload"].as_str().unwrap_or("?");
    let mut reasons = Vec::new();
    if run["verdict"] != "PASS" {
        let given = run["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
        reasons.extend(given.map(|reason| format!("{name}: {reason}")));
        if reasons.is_empty() {
            reasons.push(format!("{name}: the playback tool says {} and not why", run["verdict"]));
        }
        return reasons;
    }
    let count = |key: &str| run[key].as_u64();
    let Some(messages) = count("messages").filter(|messages| *messages > 0) else {
        return vec![format!("{name}: passed without a message")];
    };
    let must_be_all: &[&str] = if options.verify { &["responses", "matched"] } else { &["responses"] };
    let must_be_none = ["payload_errors", "header_errors", "lost"];
    for key in must_be_all.iter().filter(|key| count(key) != Some(messages)) {
        reasons.push(format!("{name}: passed with {key} {} of {messages}", run[*key]));
    }
    for key in must_be_none.iter().filter(|key| count(key) != Some(0)) {
        reasons.push(format!("{name}: passed with {key} {}", run[*key]));
    }
    let decodes = workload == Workload::SurfaceCode && options.mode != Mode::Forward;
    let enough = messages - messages.div_ceil(SHOTS_PER_DIFFERENCE);
    if decodes && options.verify && count("reference_agreement") < Some(enough) {
        let agreement = &run["reference_agreement"];
        reasons.push(format!("{name}: passed with reference_agreement {agreement} of {messages}"));
    }
    reasons
}

fn names(workloads: &[Workload]) -> String {
    workloads.iter().map(|workload| workload.name()).collect::<Vec<_>>().join("+")
}

fn sum(runs: &[Value], key: &str) -> u64 {
    runs.iter().filter_map(|run| run[key].as_u64()).sum()
}

fn lost_ids(run: &Value) -> impl Iterator<Item = &Value> {
    run["lost_ids"].as_array().into_iter().flatten()
}

/// The least minimum, the greatest maximum; of p50 and p99 the greatest, which the pooled ones cannot exceed.
fn round_trip(runs: &[Value]) -> Value {
    let all = |key: &str| {
        let values: Vec<u64> = runs.iter().filter_map(|run| run["rtt_ns"][key].as_u64()).collect();
        values.into_iter()
    };
    json!({
        "min": all("min").min(), "p50": all("p50").max(), "p99": all("p99").max(), "max": all("max").max(),
    })
}

fn row(run: &Value) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut cells = vec![text(&run["workload"])];
    cells.extend(COUNTS_SHOWN.iter().map(|key| text(&run[*key])));
    cells.extend(["min", "p50", "p99", "max"].map(|key| micros(&run["rtt_ns"][key])));
    cells
}

const COUNTS_SHOWN: [&str; 7] =
    ["messages", "responses", "matched", "lost", "payload_errors", "header_errors", "logical_errors"];

/// Nanoseconds as microseconds with one decimal.
fn micros(ns: &Value) -> String {
    ns.as_u64().map_or_else(|| "-".to_owned(), |ns| format!("{}.{}", ns / 1000, ns % 1000 / 100))
}

/// "3, 7-9": the ids of `lost` messages, as far as they are known and fit a few lines.
fn ranges(ids: &[u64], lost: u64) -> String {
    const SHOWN: usize = 40;
    let chunks = ids.chunk_by(|a, b| a + 1 == *b).take(SHOWN);
    let mut shown = 0;
    let mut parts = Vec::new();
    for chunk in chunks {
        shown += chunk.len() as u64;
        parts.push(match chunk {
            [first, .., last] => format!("{first}-{last}"),
            [one] => one.to_string(),
            [] => continue,
        });
    }
    let more = lost.saturating_sub(shown);
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(workload: &str, n: u64) -> Value {
        json!({
            "workload": workload, "messages": n, "responses": n, "matched": n, "payload_errors": 0,
            "header_errors": 0, "lost": 0, "lost_ids": [], "logical_errors": null, "agreement": null,
            "rtt_ns": { "min": 1000 * n, "p50": 2000 * n, "p99": 3000 * n, "max": 4000 * n },
            "verdict": "PASS", "reasons": [],
        })
    }

    fn surface() -> Value {
        let mut run = good("surface-code", 512);
        run["logical_errors"] = 34.into();
        run["agreement"] = 478.into();
        run["reference_agreement"] = 511.into();
        run
    }

    fn report(runs: Vec<Value>) -> Report {
        let bridge = Some(json!({ "stats": { "overruns": 3 } }));
        let emulator = Some(json!({ "late": 2 }));
        Report::new(&Options::default(), "soft", Evidence { runs, bridge, emulator, ..Evidence::default() })
    }

    #[test]
    fn histograms_are_those_of_the_playback_tool() {
        let mut run = good("increment", 100);
        run["rtt_histogram"] =
            json!({ "from_ns": 8000, "text": "  8.000 us  80  ####\n  8.500 us  20  #\n" });
        let text = report(vec![run]).histograms();
        assert_eq!(text, "round trips of increment\n  8.000 us  80  ####\n  8.500 us  20  #\n");
    }

    #[test]
    fn good_runs_pass_and_are_summed() {
        let report = report(vec![good("increment", 100), surface()]);
        assert!(report.passed());
        assert_eq!(report.result_line(), "RESULT: PASS");
        let json = report.json();
        assert_eq!(json["workload"], "increment+surface-code");
        assert_eq!((json["backend"].as_str(), json["mode"].as_str()), (Some("soft"), Some("threads")));
        for key in ["messages", "responses", "matched"] {
            assert_eq!(json[key], 612, "{key}");
        }
        assert_eq!(json["lost"], 0);
        assert_eq!((&json["overruns"], &json["late"]), (&3.into(), &2.into()));
        assert_eq!(json["reference_agreement"], 511);
        assert_eq!((json["logical_errors"].as_u64(), json["agreement"].as_u64()), (Some(34), Some(478)));
        let rtt = json!({ "min": 100_000, "p50": 1_024_000, "p99": 1_536_000, "max": 2_048_000 });
        assert_eq!(json["rtt_ns"], rtt);
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn losses_are_counted_and_named() {
        let mut lossy = good("increment", 100);
        lossy["responses"] = 97.into();
        lossy["matched"] = 97.into();
        lossy["lost"] = 3.into();
        lossy["lost_ids"] = json!([7, 41, 99]);
        lossy["verdict"] = "FAIL".into();
        lossy["reasons"] = json!(["lost 3"]);
        let report = report(vec![lossy, surface()]);
        assert!(!report.passed());
        assert_eq!(report.result_line(), "RESULT: FAIL (lost 3)");
        assert_eq!(report.json()["lost_ids"], json!({ "increment": [7, 41, 99], "surface-code": [] }));
        assert!(report.for_people().contains("late: 2 answers came"), "{}", report.for_people());
        assert!(report.for_people().contains("lost of increment: 7, 41, 99\n"), "{}", report.for_people());
    }

    #[test]
    fn a_loss_does_not_hide_what_caused_it() {
        let mut run = good("increment", 100);
        run["lost"] = 100.into();
        run["verdict"] = "FAIL".into();
        run["reasons"] = json!(["lost 100", "the control plane is silent"]);
        let report = report(vec![run, surface()]);
        assert_eq!(report.result_line(), "RESULT: FAIL (increment: the control plane is silent)");
    }

    #[test]
    fn a_verdict_beside_counts_that_do_not_add_up_is_not_believed() {
        for (key, value) in [
            ("responses", json!(99)),
            ("matched", json!(0)),
            ("matched", Value::Null),
            ("payload_errors", json!(1)),
            ("header_errors", json!(1)),
            ("lost", json!(1)),
            ("lost", Value::Null),
            ("messages", json!(0)),
        ] {
            let mut run = good("increment", 100);
            run[key] = value.clone();
            let report = report(vec![run, surface()]);
            assert!(!report.passed(), "{key} {value}");
        }
    }

    #[test]
    fn a_decoder_unlike_the_reference_is_not_believed() {
        for (agreement, passes) in
            [(json!(512), true), (json!(511), true), (json!(510), false), (Value::Null, false)]
        {
            let mut run = surface();
            run["reference_agreement"] = agreement.clone();
            let report = report(vec![good("increment", 100), run]);
            assert_eq!(report.passed(), passes, "{agreement}: {}", report.result_line());
        }
        let mut run = surface();
        run["reference_agreement"] = Value::Null;
        let runs = vec![good("increment", 100), run];
        for options in [
            Options { mode: Mode::Forward, ..Options::default() },
            Options { verify: false, ..Options::default() },
        ] {
            let evidence = Evidence { runs: runs.clone(), ..Evidence::default() };
            assert!(Report::new(&options, "soft", evidence).passed());
        }
    }

    #[test]
    fn a_failed_run_gives_its_reason() {
        let mut run = good("increment", 100);
        run["verdict"] = "FAIL".into();
        run["reasons"] = json!(["message 17: wrong payload"]);
        let with_reason = report(vec![run.clone(), surface()]);
        assert_eq!(with_reason.result_line(), "RESULT: FAIL (increment: message 17: wrong payload)");
        run["reasons"] = json!([]);
        assert!(!report(vec![run, surface()]).passed());
    }

    #[test]
    fn a_workload_without_report_fails() {
        let report = report(vec![good("increment", 100)]);
        assert_eq!(report.result_line(), "RESULT: FAIL (surface-code: no report)");
        assert!(!Report::new(&Options::default(), "soft", Evidence::default()).passed());
    }

    #[test]
    fn unverified_answers_need_not_match() {
        let options = Options { verify: false, workloads: vec![Workload::Increment], ..Options::default() };
        let mut run = good("increment", 100);
        run["matched"] = 0.into();
        let evidence = Evidence { runs: vec![run], ..Evidence::default() };
        assert!(Report::new(&options, "soft", evidence).passed());
    }

    #[test]
    fn a_report_of_another_run_is_read_and_can_fail() {
        let text = report(vec![good("increment", 100), surface()]).json().to_string();
        let mut read = Report::written_by_another(&text, "vm").unwrap();
        assert!(read.passed());
        assert_eq!(read.json()["backend"], "vm");
        read.fail("the machine ended with exit code 3".to_owned());
        assert_eq!(read.result_line(), "RESULT: FAIL (the machine ended with exit code 3)");
        assert!(Report::written_by_another("", "vm").is_err());
        assert!(Report::written_by_another("{}", "vm").is_err());
    }

    #[test]
    fn trouble_beside_the_answers_fails() {
        let runs = vec![good("increment", 100), surface()];
        let reasons = vec!["the bridge ended (signal 9) in mid-run\nits last lines".to_owned()];
        let report =
            Report::new(&Options::default(), "soft", Evidence { runs, reasons, ..Evidence::default() });
        assert_eq!(report.result_line(), "RESULT: FAIL (the bridge ended (signal 9) in mid-run)");
    }

    #[test]
    fn the_table_shows_microseconds_and_dashes() {
        let mut run = good("increment", 100);
        run["rtt_ns"] = json!({ "min": 1234, "p50": 56_789, "p99": 56_789, "max": null });
        let text = report(vec![run, surface()]).for_people();
        let line = text.lines().nth(2).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["increment", "100", "100", "100", "0", "0", "0", "-", "1.2", "56.7", "56.7", "-"]);
    }

    #[test]
    fn lost_ids_are_shown_as_ranges_and_cut() {
        assert_eq!(ranges(&[3, 7, 8, 9, 11], 5), "3, 7-9, 11");
        assert_eq!(ranges(&[0, 1], 1000), "0-1, and 998 more");
        let every_other: Vec<u64> = (0..100).map(|n| 2 * n).collect();
        assert!(ranges(&every_other, 100).ends_with("76, 78, and 60 more"));
        assert_eq!(ranges(&[], 0), "");
    }
}
