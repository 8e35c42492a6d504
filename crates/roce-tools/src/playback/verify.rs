//! Whether what was captured is what had to come back: every answer, each right, each once.

use std::collections::VecDeque;

use roce_dispatch::rpc::{HEADER_LEN, Request, Response};
use roce_rendezvous::hsb::sample::Sample;

use super::fpga::LoopReport;
use super::report::{Report, Verdict};
use super::round_trips::{Histogram, RoundTrip, Rtt};
use crate::workload::Workload;

/// Complaints that are spelled out; the counters know of all.
const SPELLED_OUT: usize = 20;
/// Decoders may differ where two matchings weigh the same: in one shot of so many, rounded up.
const SHOTS_PER_DIFFERENCE: u32 = 512;
/// Bytes of a payload that a complaint shows.
const SHOWN: usize = 16;

/// What the bridge does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// It answers.
    Answers,
    /// It sends the request back.
    Echoes,
}

/// One captured message, from its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Captured {
    /// Its bytes, padded to whole beats.
    pub(super) bytes: Vec<u8>,
    pub(super) beats: usize,
    /// When its last beat arrived, nanoseconds since the FPGA's epoch.
    pub(super) time: u64,
    /// Its last beat was captured.
    pub(super) ended: bool,
}

impl Captured {
    fn new() -> Self {
        Self { bytes: Vec::new(), beats: 0, time: 0, ended: false }
    }

    fn push(&mut self, beat: &Sample) {
        self.bytes.extend_from_slice(&beat.data);
        self.beats += 1;
        self.time = nanoseconds(beat.seconds, beat.nanoseconds);
        self.ended = beat.last;
    }
}

/// Joins beats to messages, by the marks on their last beats.
pub(super) fn messages_by_end(samples: &[Sample]) -> Vec<Captured> {
    let mut messages: Vec<Captured> = Vec::new();
    for beat in samples.iter().filter(|s| s.valid) {
        match messages.last_mut() {
            Some(message) if !message.ended => message.push(beat),
            _ => {
                let mut message = Captured::new();
                message.push(beat);
                messages.push(message);
            }
        }
    }
    messages
}

/// Joins beats to messages, where every window has `beats` samples of its own: those of a longer answer are cut.
pub(super) fn messages_by_window(samples: &[Sample], beats: u32) -> Vec<Captured> {
    let windows = samples.chunks(beats as usize);
    let messages = windows.map(|window| {
        let mut message = Captured::new();
        window.iter().filter(|s| s.valid).for_each(|beat| message.push(beat));
        message
    });
    messages.filter(|message| message.beats > 0).collect()
}

fn nanoseconds(seconds: u32, nanoseconds: u32) -> u64 {
    u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds)
}

/// Counts what was captured, over all passes.
#[derive(Debug)]
pub(super) struct Tally<'a> {
    workload: &'a Workload,
    expect: Expect,
    verify: bool,
    /// The device captures whole answers, as far as they are as long as their requests.
    captures_all: bool,
    seen: Vec<bool>,
    most_beats: usize,
    complaints: VecDeque<String>,
    /// Shots that were decoded to something else than the reference predicts.
    unlike_reference: Vec<u32>,
    report: Report,
}

/// A header that is as it has to be.
struct Header {
    id: u32,
    payload_len: usize,
    sent: u64,
}

impl<'a> Tally<'a> {
    pub(super) fn new(workload: &'a Workload, expect: Expect, verify: bool, captures_all: bool) -> Self {
        let decodes = expect == Expect::Answers && workload.messages() > 0 && workload.truth(0).is_some();
        let zero_if = |yes: bool| yes.then_some(0);
        let report = Report {
            workload: workload.name(),
            messages: workload.messages(),
            logical_errors: zero_if(decodes),
            agreement: zero_if(decodes),
            reference_agreement: zero_if(decodes && verify && workload.reference(0).is_some()),
            ..Report::default()
        };
        Self {
            workload,
            expect,
            verify,
            captures_all,
            seen: vec![false; workload.messages() as usize],
            most_beats: 0,
            complaints: VecDeque::new(),
            unlike_reference: Vec::new(),
            report,
        }
    }

    /// Judges one message.
    pub(super) fn take(&mut self, captured: &Captured) {
        self.most_beats = self.most_beats.max(captured.beats);
        let header = match self.header(captured) {
            Ok(header) => header,
            Err(problem) => {
                self.report.header_errors += 1;
                return self.complain(problem);
            }
        };
        let id = header.id;
        match self.seen.get_mut(id as usize) {
            None => {
                self.report.foreign += 1;
                return self.complain(format!("message {id} was answered and never sent"));
            }
            Some(true) => {
                self.report.duplicates += 1;
                return self.complain(format!("message {id} was answered more than once"));
            }
            Some(seen) => *seen = true,
        }
        self.report.responses += 1;
        self.note_round_trip(captured, &header);
        if self.verify {
            self.check_payload(captured, &header);
        }
    }

    /// What else stands in the way of a pass.
    pub(super) fn reason(&mut self, reason: String) {
        self.report.reasons.push(reason);
    }

    /// Another filling of the playback memory begins.
    pub(super) fn begin_pass(&mut self) {
        self.report.passes += 1;
    }

    /// Passes begun.
    pub(super) fn passes(&self) -> u32 {
        self.report.passes
    }

    /// Judges what a software FPGA counted in its loop.
    pub(super) fn take_loop(&mut self, looped: Option<LoopReport>) {
        self.report.looped = looped;
        match looped {
            None => self.reason("the FPGA published no loop statistics".to_owned()),
            Some(l) if l.send_errors + l.timeouts + l.response_failures > 0 || l.responses != l.windows => {
                self.reason(format!(
                    "in the loop {} of {} windows were answered ({} failures, {} send errors, {} timeouts)",
                    l.responses, l.windows, l.response_failures, l.send_errors, l.timeouts
                ));
            }
            Some(_) => {}
        }
    }

    /// The header, or what is wrong with it. A refused request counts as seen: it is not lost.
    fn header(&mut self, captured: &Captured) -> Result<Header, String> {
        let id = u32::from_le_bytes([12, 13, 14, 15].map(|at| captured.bytes[at]));
        let found = match self.expect {
            Expect::Answers => self.response(captured, id),
            Expect::Echoes => self.echo(captured, id),
        };
        if found.is_err()
            && let Some(seen) = self.seen.get_mut(id as usize)
        {
            *seen = true;
        }
        found
    }

    fn response(&self, captured: &Captured, id: u32) -> Result<Header, String> {
        let response = Response::parse(&captured.bytes).map_err(|e| format!("message {id}: {e}"))?;
        if !response.status.is_success() {
            return Err(format!(
                "message {id}: answered with {} ({})",
                response.status,
                response.status.code()
            ));
        }
        Ok(Header { id, payload_len: response.result_len as usize, sent: response.ptp_timestamp })
    }

    fn echo(&self, captured: &Captured, id: u32) -> Result<Header, String> {
        let request = Request::parse(&captured.bytes).map_err(|e| format!("message {id}: {e}"))?;
        if id < self.workload.messages() {
            let sent = Request::parse(&self.workload.request(id)).map_err(|e| e.to_string())?;
            let echoed = Request { ptp_timestamp: sent.ptp_timestamp, ..request };
            if echoed != sent {
                return Err(format!("message {id}: echoed with another header: {echoed:?} for {sent:?}"));
            }
        }
        Ok(Header { id, payload_len: request.arg_len as usize, sent: request.ptp_timestamp })
    }

    /// A device that stamps no send time leaves 0 there.
    fn note_round_trip(&mut self, captured: &Captured, header: &Header) {
        let [s0, s1, s2, s3, n0, n1, n2, n3] = header.sent.to_be_bytes();
        let sent = nanoseconds(u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([n0, n1, n2, n3]));
        if header.sent != 0 && sent <= captured.time {
            let trip = RoundTrip { message: header.id, sent, captured: captured.time };
            self.report.round_trips.push(trip);
        }
    }

    fn check_payload(&mut self, captured: &Captured, header: &Header) {
        let id = header.id;
        let expected = match self.expect {
            Expect::Answers => self.workload.answer(id),
            Expect::Echoes => self.workload.arguments(id),
        };
        let payload = &captured.bytes[HEADER_LEN..];
        let got = &payload[..header.payload_len.min(payload.len())];
        let comparable = &expected[..expected.len().min(got.len())];
        self.note_truth(id, got);
        self.note_reference(id, got);
        let problem = if header.payload_len != expected.len() {
            format!("{} payload bytes, expected {}", header.payload_len, expected.len())
        } else if got != comparable {
            difference(&expected, got)
        } else if got.len() < expected.len() && (self.captures_all || !captured.ended) {
            format!("only {} of {} payload bytes arrived", got.len(), expected.len())
        } else {
            return self.matched(got.len() < expected.len());
        };
        self.report.payload_errors += 1;
        self.complain(format!("message {id}: {problem}"));
    }

    fn matched(&mut self, in_part: bool) {
        self.report.truncated += u32::from(in_part);
        self.report.matched += 1;
    }

    /// Counts whether a decoder came to the truth, also where it came to something else than ours.
    fn note_truth(&mut self, id: u32, got: &[u8]) {
        let Some(truth) = self.workload.truth(id) else { return };
        let agrees = u32::from(got == [truth]);
        if let (Some(agreement), Some(errors)) = (&mut self.report.agreement, &mut self.report.logical_errors)
        {
            *agreement += agrees;
            *errors += 1 - agrees;
        }
    }

    /// Ours may be as wrong as the bridge's: they are one decoder.
    fn note_reference(&mut self, id: u32, got: &[u8]) {
        let (Some(agreement), Some(reference)) =
            (&mut self.report.reference_agreement, self.workload.reference(id))
        else {
            return;
        };
        if got == [reference] {
            *agreement += 1;
        } else {
            self.unlike_reference.push(id);
        }
    }

    fn check_reference(&mut self) {
        let may = self.report.messages.div_ceil(SHOTS_PER_DIFFERENCE);
        let differ = self.unlike_reference.len();
        if let Some(first) = self.unlike_reference.first().filter(|_| differ > may as usize) {
            self.reason(format!(
                "{differ} shots were decoded to something else than predicted, message {first} first; {may} may"
            ));
        }
    }

    fn complain(&mut self, problem: String) {
        if self.complaints.len() < SPELLED_OUT {
            self.complaints.push_back(problem);
        }
    }

    /// The verdict.
    pub(super) fn finish(mut self) -> Report {
        self.check_truncation();
        self.check_reference();
        let mut report = self.report;
        report.lost_ids = (0..).zip(&self.seen).filter(|(_, seen)| !**seen).map(|(id, _)| id).collect();
        report.lost = u32::try_from(report.lost_ids.len()).unwrap_or(u32::MAX);
        let mut took: Vec<u64> = report.round_trips.iter().map(RoundTrip::took).collect();
        took.sort_unstable();
        (report.rtt_ns, report.rtt_histogram) = (Rtt::of(&took), Histogram::of(&took));
        let wrong = report.header_errors + report.payload_errors + report.foreign + report.duplicates;
        let mut reasons: Vec<String> = self.complaints.into();
        if wrong as usize > reasons.len() {
            reasons.push(format!("{} more wrong answers", wrong as usize - reasons.len()));
        }
        reasons.append(&mut report.reasons);
        if report.lost > 0 {
            reasons.push(format!("lost {}", report.lost));
        }
        if report.messages == 0 {
            reasons.push("no message was sent".to_owned());
        }
        report.verdict = if reasons.is_empty() { Verdict::Pass } else { Verdict::Fail };
        report.reasons = reasons;
        report
    }

    /// A device may capture the first beat of every answer and no more. One that captured more of another
    /// answer does not: then a short one was sent short.
    fn check_truncation(&mut self) {
        if self.report.truncated > 0 && self.most_beats > 1 {
            self.reason(format!("answers shorter than their headers say: {}", self.report.truncated));
        }
    }
}

fn difference(expected: &[u8], got: &[u8]) -> String {
    let at = expected.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
    let shown = |bytes: &[u8]| bytes[at..].iter().take(SHOWN).map(|b| format!("{b:02x}")).collect::<String>();
    format!("payload from byte {at} on is {}, expected {}", shown(got), shown(expected))
}

#[cfg(test)]
mod tests {
    use roce_dispatch::rpc::Status;
    use roce_rendezvous::hsb::sample::BEAT_BYTES;

    use super::*;
    use crate::workload::Increment;

    const SENT: u64 = 7 << 32 | 999_999_000;

    fn workload(messages: u32, payload_len: usize) -> Workload {
        Workload::Increment(Increment { messages, payload_len })
    }

    fn answer(workload: &Workload, id: u32) -> Vec<u8> {
        let payload = workload.answer(id);
        let header = Response {
            status: Status::SUCCESS,
            result_len: u32::try_from(payload.len()).unwrap(),
            request_id: id,
            ptp_timestamp: SENT,
        };
        let mut frame = vec![0; HEADER_LEN];
        header.emit(&mut frame);
        frame.extend(payload);
        frame
    }

    /// The samples of a frame that arrived 1000 ns + `late` after it was sent.
    fn samples(frame: &[u8], late: u32) -> Vec<Sample> {
        let beats = frame.len().div_ceil(BEAT_BYTES);
        let beat = |(at, bytes): (usize, &[u8])| {
            let mut data = [0; BEAT_BYTES];
            data[..bytes.len()].copy_from_slice(bytes);
            let last = at + 1 == beats;
            Sample { data, valid: true, last, write_count: 0, seconds: 8, nanoseconds: late }
        };
        frame.chunks(BEAT_BYTES).enumerate().map(beat).collect()
    }

    fn judge(workload: &Workload, expect: Expect, frames: &[Vec<u8>]) -> Report {
        let all: Vec<Sample> = (0..).zip(frames).flat_map(|(late, frame)| samples(frame, late)).collect();
        judge_samples(workload, expect, &all)
    }

    fn judge_samples(workload: &Workload, expect: Expect, samples: &[Sample]) -> Report {
        let mut tally = Tally::new(workload, expect, true, false);
        for message in messages_by_end(samples) {
            tally.take(&message);
        }
        tally.finish()
    }

    fn answers(workload: &Workload) -> Vec<Vec<u8>> {
        (0..workload.messages()).map(|id| answer(workload, id)).collect()
    }

    #[test]
    fn all_right_passes_in_any_order() {
        for payload_len in [0, 8, 40, 41, 200] {
            let workload = workload(300, payload_len);
            let mut frames = answers(&workload);
            frames.reverse();
            let report = judge(&workload, Expect::Answers, &frames);
            assert_eq!(report.verdict, Verdict::Pass, "{:?}", report.reasons);
            assert_eq!((report.responses, report.matched, report.lost, report.truncated), (300, 300, 0, 0));
            let rtt = report.rtt_ns;
            assert_eq!(
                (rtt.min, rtt.p50, rtt.p99, rtt.max),
                (Some(1000), Some(1149), Some(1296), Some(1299))
            );
        }
    }

    #[test]
    fn one_wrong_byte_fails_with_the_id() {
        let workload = workload(100, 200);
        let mut frames = answers(&workload);
        frames[17][24 + 199] ^= 1;
        let report = judge(&workload, Expect::Answers, &frames);
        assert_eq!((report.payload_errors, report.matched, report.lost), (1, 99, 0));
        assert_eq!(report.reasons, ["message 17: payload from byte 199 on is d8, expected d9"]);
        assert_eq!(report.result_line(), format!("RESULT: FAIL ({})", report.reasons[0]));
    }

    #[test]
    fn an_answer_of_another_length_fails() {
        let workload = workload(3, 8);
        let mut frames = answers(&workload);
        frames[1][8] = 7;
        let report = judge(&workload, Expect::Answers, &frames);
        assert_eq!(report.reasons, ["message 1: 7 payload bytes, expected 8"]);
        assert_eq!(report.payload_errors, 1);
    }

    #[test]
    fn lost_answers_are_named_exactly() {
        let workload = workload(500, 8);
        let frames: Vec<_> = answers(&workload).into_iter().enumerate().filter(|(i, _)| i % 2 == 0).collect();
        let frames: Vec<_> = frames.into_iter().map(|(_, frame)| frame).collect();
        let report = judge(&workload, Expect::Answers, &frames);
        assert_eq!((report.lost, report.responses), (250, 250));
        assert_eq!(report.lost_ids, (0..250).map(|i| 2 * i + 1).collect::<Vec<_>>());
        let text = report.for_people();
        assert!(text.contains("lost ids: 1 3 5 ") && text.contains(" 197 199 and 150 more\n"), "{text}");
        assert_eq!(report.result_line(), "RESULT: FAIL (lost 250)");
    }

    #[test]
    fn a_wrong_magic_or_status_fails_with_the_id_and_is_not_lost() {
        let workload = workload(10, 8);
        let mut frames = answers(&workload);
        frames[3][0] ^= 0x10;
        frames[4][4..8].copy_from_slice(&(-3_i32).to_le_bytes());
        let report = judge(&workload, Expect::Answers, &frames);
        assert_eq!((report.header_errors, report.lost, report.matched), (2, 0, 8));
        assert_eq!(report.reasons[0], "message 3: magic 0x43555143 where 0x43555153 was expected");
        assert_eq!(report.reasons[1], "message 4: answered with handler panicked (-3)");
    }

    #[test]
    fn duplicates_and_foreign_ids_fail() {
        let workload = workload(10, 8);
        let mut frames = answers(&workload);
        frames.push(frames[2].clone());
        frames[9] = answer(&Workload::Increment(Increment { messages: 11, payload_len: 8 }), 10);
        let report = judge(&workload, Expect::Answers, &frames);
        assert_eq!((report.duplicates, report.foreign, report.lost), (1, 1, 1));
        assert_eq!(report.lost_ids, [9]);
        let expected =
            ["message 10 was answered and never sent", "message 2 was answered more than once", "lost 1"];
        assert_eq!(report.reasons, expected);
    }

    #[test]
    fn an_answer_in_the_place_of_anothers_is_no_match() {
        let workload = workload(10, 8);
        let mut frames = answers(&workload);
        frames[5][12] = 6;
        frames[6][12] = 5;
        let report = judge(&workload, Expect::Answers, &frames);
        assert_eq!((report.payload_errors, report.matched, report.lost), (2, 8, 0));
    }

    #[test]
    fn echoes_are_requests_but_for_the_send_time() {
        let workload = workload(50, 100);
        let mut frames: Vec<_> = (0..50).map(|id| workload.request(id)).collect();
        for frame in &mut frames {
            frame[16..24].copy_from_slice(&SENT.to_le_bytes());
        }
        let report = judge(&workload, Expect::Echoes, &frames);
        assert_eq!((report.verdict, report.matched), (Verdict::Pass, 50));
        frames[7][4] ^= 1;
        frames[8][30] ^= 1;
        frames[9] = answer(&workload, 9);
        let report = judge(&workload, Expect::Echoes, &frames);
        assert_eq!((report.header_errors, report.payload_errors, report.matched), (2, 1, 47));
        assert!(report.reasons[0].starts_with("message 7: echoed with another header"));
        assert!(report.reasons[1].starts_with("message 8: payload from byte 6"));
    }

    #[test]
    fn first_beats_alone_are_verified_as_far_as_they_go() {
        let workload = workload(20, 200);
        let first_beat = |frame: &Vec<u8>| Sample { last: true, ..samples(frame, 0)[0] };
        let frames = answers(&workload);
        let mut beats: Vec<_> = frames.iter().map(first_beat).collect();
        let report = judge_samples(&workload, Expect::Answers, &beats);
        assert_eq!((report.verdict, report.matched, report.truncated), (Verdict::Pass, 20, 20));
        beats[3].data[63] ^= 1;
        let report = judge_samples(&workload, Expect::Answers, &beats);
        assert_eq!((report.payload_errors, report.matched), (1, 19));
    }

    #[test]
    fn a_short_answer_among_whole_ones_fails() {
        let workload = workload(20, 200);
        let mut frames = answers(&workload);
        frames[4].truncate(64);
        let report = judge(&workload, Expect::Answers, &frames);
        assert_eq!(report.truncated, 1);
        assert_eq!(report.reasons, ["answers shorter than their headers say: 1"]);
    }

    #[test]
    fn an_answer_without_end_fails() {
        let workload = workload(2, 100);
        let mut all: Vec<_> = answers(&workload).iter().flat_map(|frame| samples(frame, 0)).collect();
        all.pop();
        let report = judge_samples(&workload, Expect::Answers, &all);
        assert_eq!(report.reasons, ["message 1: only 40 of 100 payload bytes arrived"]);
    }

    #[test]
    fn samples_by_window_do_not_run_together() {
        // What is longer than a window is cut, without a mark of its end; what was not answered is invalid.
        let workload = workload(4, 40);
        let beats: Vec<_> = answers(&workload).iter().map(|frame| samples(frame, 0)[0]).collect();
        let cut: Vec<_> = beats.iter().map(|beat| Sample { last: false, ..*beat }).collect();
        let mut tally = Tally::new(&workload, Expect::Answers, true, true);
        messages_by_window(&cut, 1).iter().for_each(|m| tally.take(m));
        assert_eq!(tally.finish().verdict, Verdict::Pass);

        let mut holes: Vec<_> = beats.iter().flat_map(|b| [*b, Sample { valid: false, ..*b }]).collect();
        holes[2].valid = false;
        let found = messages_by_window(&holes, 2);
        assert_eq!(found.iter().map(|m| m.bytes[12]).collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn a_device_that_captures_all_excuses_nothing() {
        let workload = workload(20, 200);
        let mut tally = Tally::new(&workload, Expect::Answers, true, true);
        for frame in answers(&workload) {
            let beat = Sample { last: true, ..samples(&frame, 0)[0] };
            messages_by_window(&[beat, Sample { valid: false, ..beat }], 4)
                .iter()
                .for_each(|m| tally.take(m));
        }
        let report = tally.finish();
        assert_eq!((report.payload_errors, report.matched, report.truncated), (20, 0, 0));
        assert_eq!(report.reasons[0], "message 0: only 40 of 200 payload bytes arrived");
    }

    #[test]
    fn invalid_samples_are_no_answers_and_many_complaints_are_counted() {
        let workload = workload(60, 8);
        let empty =
            Sample { data: [0; 64], valid: false, last: false, write_count: 0, seconds: 0, nanoseconds: 0 };
        let report = judge_samples(&workload, Expect::Answers, &[empty; 60]);
        assert_eq!((report.lost, report.header_errors), (60, 0));
        let report =
            judge_samples(&workload, Expect::Answers, &[Sample { valid: true, last: true, ..empty }; 60]);
        assert_eq!(report.header_errors, 60);
        assert_eq!(report.reasons.len(), SPELLED_OUT + 2);
        assert_eq!(report.reasons[SPELLED_OUT], "40 more wrong answers");
    }

    #[test]
    fn nothing_sent_is_no_pass() {
        let report = judge(&workload(0, 8), Expect::Answers, &[]);
        assert_eq!(report.verdict, Verdict::Fail);
    }

    #[test]
    fn unverified_answers_are_counted_only() {
        let workload = workload(4, 8);
        let mut frames = answers(&workload);
        frames[1][30] ^= 1;
        let mut tally = Tally::new(&workload, Expect::Answers, false, false);
        for frame in &frames[..3] {
            messages_by_end(&samples(frame, 0)).iter().for_each(|m| tally.take(m));
        }
        let report = tally.finish();
        assert_eq!((report.responses, report.matched, report.payload_errors, report.lost), (3, 0, 0, 1));
    }
}
