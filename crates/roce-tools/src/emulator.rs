//! What the software FPGA's program reports when it ends.

use hsb_emulator::Summary;
use serde_json::{Map, Value, json};

use crate::output::table;

/// Failures and ids that a summary for people lists.
const LISTED: usize = 20;

/// The summary as JSON.
pub fn json(summary: &Summary) -> Value {
    let ids = |ids: &[u32]| ids.to_vec();
    let nanos =
        |time: Option<std::time::Duration>| time.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
    let failures: Vec<Value> = summary
        .failures
        .first()
        .iter()
        .map(|f| json!({ "id": f.request_id, "reason": f.kind.to_string() }))
        .collect();
    let wire: Map<_, _> =
        summary.wire.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    json!({
        "windows": summary.windows,
        "responses": summary.responses,
        "failures": summary.failures.total(),
        "failed": failures,
        "send_errors": summary.send_errors.total(),
        "send_error_ids": ids(summary.send_errors.first()),
        "timeouts": summary.timeouts.total(),
        "timeout_ids": ids(summary.timeouts.first()),
        "packets": summary.packets,
        "masked": summary.masked,
        "late": summary.late,
        "ignored": summary.ignored,
        "abandoned": summary.abandoned,
        "refused_passes": summary.refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "duration_ms": u64::try_from(summary.duration.as_millis()).unwrap_or(u64::MAX),
        "rtt_ns": {
            "min": nanos(summary.round_trips.min()),
            "mean": nanos(summary.round_trips.mean()),
            "max": nanos(summary.round_trips.max()),
        },
        "control": {
            "executed": summary.control.executed,
            "refused": summary.control.refused,
            "garbage": summary.control.garbage,
            "lost": summary.control.lost,
            "resets": summary.control.resets,
            "socket_errors": summary.control.socket_errors,
        },
        "enumeration": summary.enumeration.map(|counts| json!({
            "sent": counts.sent,
            "send_errors": counts.send_errors,
            "replies": counts.replies,
            "ignored": counts.ignored,
        })),
        "wire": wire,
        "success": summary.is_success(),
    })
}

/// The summary as a table, and the first of what went wrong.
pub fn for_people(summary: &Summary) -> String {
    let us = |time: Option<std::time::Duration>| {
        time.map_or_else(|| "-".to_owned(), |t| format!("{:.1}", t.as_secs_f64() * 1e6))
    };
    let times = &summary.round_trips;
    let rows = [
        ("windows", summary.windows.to_string()),
        ("responses", summary.responses.to_string()),
        ("failures", summary.failures.total().to_string()),
        ("send errors", summary.send_errors.total().to_string()),
        ("timeouts", summary.timeouts.total().to_string()),
        ("held back by the mask", summary.masked.to_string()),
        ("late", summary.late.to_string()),
        ("abandoned", summary.abandoned.to_string()),
        ("duration (s)", format!("{:.3}", summary.duration.as_secs_f64())),
        (
            "round trip (us)",
            format!("min {}  mean {}  max {}", us(times.min()), us(times.mean()), us(times.max())),
        ),
    ];
    let mut text = format!("emulator\n{}", table(&rows));
    for failure in summary.failures.first().iter().take(LISTED) {
        text += &format!("\nFAILED: message {}: {}", failure.request_id, failure.kind);
    }
    let unanswered = summary.timeouts.first().iter().take(LISTED).map(u32::to_string).collect::<Vec<_>>();
    if !unanswered.is_empty() {
        text += &format!("\nwithout an answer: {}", unanswered.join(" "));
    }
    for refused in &summary.refused {
        text += &format!("\nFAILED: {refused}");
    }
    text
}
