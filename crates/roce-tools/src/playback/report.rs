//! What a run of the playback found out.

use serde::Serialize;

use super::fpga::LoopReport;
use super::round_trips::{Histogram, RoundTrip, Rtt};
use crate::output::table;

/// Lost ids that are listed for people.
const LISTED: usize = 100;

/// Whether a run was good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Every message was answered once, and right.
    Pass,
    /// Something was not.
    #[default]
    Fail,
}

/// What a run of the playback found out. Counts are of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The workload's name.
    pub workload: &'static str,
    /// Messages to send.
    pub messages: u32,
    /// Messages answered under a right header.
    pub responses: u32,
    /// Messages whose answer is right in every byte that was captured.
    pub matched: u32,
    /// Answers with a wrong payload.
    pub payload_errors: u32,
    /// Captured messages that are no answer, or an answer with an error status.
    pub header_errors: u32,
    /// Answers to messages that were never sent.
    pub foreign: u32,
    /// Answers beyond the first.
    pub duplicates: u32,
    /// Messages without any answer.
    pub lost: u32,
    /// Their ids, all of them.
    pub lost_ids: Vec<u32>,
    /// Matched answers that the device captured in part: they are verified as far as that goes.
    pub truncated: u32,
    /// How often the playback memory was filled.
    pub passes: u32,
    /// Answers that differ from the observables' true flips; `None` where nothing is decoded.
    pub logical_errors: Option<u32>,
    /// Answers that agree with the observables' true flips; `None` where nothing is decoded.
    pub agreement: Option<u32>,
    /// Answers that agree with another decoder's predictions; `None` where there is nothing to compare.
    pub reference_agreement: Option<u32>,
    /// How long the answers took.
    pub rtt_ns: Rtt,
    /// How they spread.
    pub rtt_histogram: Histogram,
    /// Each of them, in the order of their capture.
    #[serde(skip)]
    pub round_trips: Vec<RoundTrip>,
    /// What a software FPGA counted while it looped.
    #[serde(rename = "loop")]
    pub looped: Option<LoopReport>,
    /// Whether the run was good: there is no reason against it.
    pub verdict: Verdict,
    /// Why the verdict is no pass; empty when it is.
    pub reasons: Vec<String>,
}

impl Report {
    /// The line that scripts look for.
    pub fn result_line(&self) -> String {
        match &self.reasons[..] {
            [] => "RESULT: PASS".to_owned(),
            [first, ..] => format!("RESULT: FAIL ({first})"),
        }
    }

    /// A table, what is wrong, and the line that scripts look for.
    pub fn for_people(&self) -> String {
        let decoded = self.agreement.zip(self.logical_errors);
        let (messages, responses) =
            if decoded.is_some() { ("shots", "answered") } else { ("messages", "responses") };
        let mut rows = vec![(messages, self.messages.to_string()), (responses, self.responses.to_string())];
        let mut row = |name, value: String| rows.push((name, value));
        if let Some((agreement, errors)) = decoded {
            row("logical errors", errors.to_string());
            row("agreement", format!("{agreement} of {} with the true observables", agreement + errors));
        }
        if let Some(agreement) = self.reference_agreement {
            row("reference", format!("{agreement} of {} agree with the predictions", self.messages));
        }
        row("passes", self.passes.to_string());
        row("matched", self.matched.to_string());
        row("payload errors", self.payload_errors.to_string());
        row("header errors", self.header_errors.to_string());
        row("foreign", self.foreign.to_string());
        row("duplicates", self.duplicates.to_string());
        row("lost", self.lost.to_string());
        row("round trip (us)", self.round_trip());
        let mut text = format!("{}\n{}\n", self.workload, table(&rows));
        if self.truncated > 0 {
            text += &format!(
                "{} answers were captured in their first 64 bytes only, and verified so far\n",
                self.truncated
            );
        }
        if let Some(looped) = &self.looped {
            text += &format!(
                "loop: {} windows, {} responses, {} failures, {} send errors, {} timeouts\n",
                looped.windows,
                looped.responses,
                looped.response_failures,
                looped.send_errors,
                looped.timeouts
            );
        }
        if !self.lost_ids.is_empty() {
            let ids: Vec<_> = self.lost_ids.iter().take(LISTED).map(u32::to_string).collect();
            let more = self.lost_ids.len() - ids.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            text += &format!("lost ids: {}{more}\n", ids.join(" "));
        }
        for reason in &self.reasons {
            text += &format!("FAILED: {reason}\n");
        }
        text + &self.result_line()
    }

    fn round_trip(&self) -> String {
        #[allow(clippy::cast_precision_loss)] // for people, to one digit
        let us =
            |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1000.0));
        let Rtt { min, p50, p99, max, .. } = self.rtt_ns;
        format!("min {}  p50 {}  p99 {}  max {}", us(min), us(p50), us(p99), us(max))
    }
}
