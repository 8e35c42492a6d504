//! Bridges that do not do what they should: the playback must notice, and name the message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::harness::{Fpga, Reach, address, data, playback, report, surface_code};
use roce_core::{PeerEndpoint, Qpn};
use roce_dispatch::FunctionTable;
use roce_dispatch::rpc::{HEADER_LEN, Request, Response, Status};
use roce_tools::bridge::{Bridge, Dispatcher};
use roce_tools::decoder::MWPM_DECODE;
use roce_transport::{Config, RingEnds, Transceiver};
use serde_json::{Value, json};
use tempfile::tempdir;

const PAYLOAD: usize = 8;
const FRAME: u32 = 32;

fn config(fpga: &Fpga) -> Config {
    let peer = PeerEndpoint { qpn: Qpn::from_low_bits(fpga.qpn), rkey: None, ip: fpga.ip };
    let config = Config::builder(format!("soft:{}", address())).frame_size(FRAME).peer(peer);
    config.build().expect("valid")
}

fn increments(messages: u32) -> String {
    format!("--num-messages {messages} --payload-size {PAYLOAD} --spacing-us 0")
}

/// Plays against the bridge at `reach`, expecting a failure; gives the report and the last line.
fn failing(fpga: &Fpga, reach: Reach, options: &str) -> (Value, String) {
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("report.json");
    let ended = playback(fpga, reach, &file, options).ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let report = report(&file);
    assert_eq!(report["verdict"], "FAIL");
    (report, ended.stdout.lines().last().unwrap_or_default().to_owned())
}

/// The real bridge in this process, serving a table of the test's.
fn failing_with_table(table: FunctionTable, options: &str) -> (Value, String) {
    let fpga = Fpga::start("");
    let bridge = Bridge::connect(config(&fpga), Dispatcher::default()).expect("it connects");
    let end = bridge.endpoint();
    let stop = Arc::new(AtomicBool::new(false));
    let serving = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || bridge.run(table, &stop, Instant::now() + Duration::from_secs(80)))
    };
    let result = failing(&fpga, Reach { ip: end.ip, qpn: end.qpn.get(), rkey: end.rkey.get() }, options);
    stop.store(true, Ordering::Relaxed);
    let served = serving.join().expect("it ends");
    assert!(served.error.is_none(), "{:?}", served.error);
    result
}

fn increment(args: &[u8], result: &mut [u8]) -> usize {
    result.iter_mut().zip(args).for_each(|(out, byte)| *out = byte.wrapping_add(1));
    args.len()
}

#[test]
fn a_handler_that_answers_wrongly_once_is_found() {
    let mut calls = 0;
    let mut table = FunctionTable::new();
    let handler = move |args: &[u8], result: &mut [u8]| {
        let len = increment(args, result);
        calls += 1;
        result[7] ^= u8::from(calls == 43);
        Ok(len)
    };
    table.register("rpc_increment", handler).expect("the first");
    let (report, last) = failing_with_table(table, &increments(100));
    assert_eq!(last, "RESULT: FAIL (message 42: payload from byte 7 on is 33, expected 32)");
    assert_eq!((&report["payload_errors"], &report["matched"]), (&json!(1), &json!(99)));
    assert_eq!((&report["lost"], &report["header_errors"]), (&json!(0), &json!(0)));
}

#[test]
fn a_handler_that_panics_once_is_found() {
    let mut calls = 0;
    let mut table = FunctionTable::new();
    let handler = move |args: &[u8], result: &mut [u8]| {
        calls += 1;
        assert!(calls != 6, "on purpose");
        Ok(increment(args, result))
    };
    table.register("rpc_increment", handler).expect("the first");
    let (report, last) = failing_with_table(table, &increments(100));
    assert_eq!(last, "RESULT: FAIL (message 5: answered with handler panicked (-3))");
    assert_eq!(
        (&report["header_errors"], &report["matched"], &report["lost"]),
        (&json!(1), &json!(99), &json!(0))
    );
}

#[test]
fn a_decoder_that_always_answers_0_is_found_twice() {
    let mut table = FunctionTable::new();
    let handler = |_: &[u8], result: &mut [u8]| {
        result[0] = 0;
        Ok(1)
    };
    table.register(MWPM_DECODE, handler).expect("the first");
    let (report, last) = failing_with_table(table, &surface_code(&data("surface_d5_r5.dem")));
    assert!(last.starts_with("RESULT: FAIL (message ") && last.ends_with("is 00, expected 01)"), "{last}");
    let predictions = std::fs::read(data("surface_d5_r5.pred.b8")).expect("there");
    let zeros = predictions.iter().filter(|row| **row == 0).count() as u64;
    assert_eq!(report["reference_agreement"], zeros);
    // Our own decoder may differ from the reference in one shot.
    let matched = report["matched"].as_u64().expect("a count");
    assert!(matched.abs_diff(zeros) <= 1 && report["payload_errors"] == 512 - matched, "{report}");
    let reasons = report["reasons"].to_string();
    assert!(reasons.contains(&format!("{} shots were decoded to something else", 512 - zeros)), "{reasons}");
}

/// A dispatcher of the test's: `answer` makes of a request and its right answer what is sent, or nothing.
fn failing_with(
    messages: u32,
    answer: impl Fn(&Request, Vec<u8>) -> Option<Vec<u8>> + Send + 'static,
) -> (Value, String) {
    // Long enough for an answer on a busy machine.
    let fpga = Fpga::start("--response-timeout-ms 5000");
    let transceiver = Arc::new(Transceiver::new(config(&fpga)));
    let end = transceiver.start().expect("it connects");
    let ends = transceiver.take_ends().expect("once");
    let monitor = {
        let transceiver = Arc::clone(&transceiver);
        thread::spawn(move || transceiver.blocking_monitor())
    };
    let stop = Arc::new(AtomicBool::new(false));
    let dispatcher = dispatch(ends, Arc::clone(&stop), answer);
    let reach = Reach { ip: end.ip, qpn: end.qpn.get(), rkey: end.rkey.get() };
    let result = failing(&fpga, reach, &increments(messages));
    stop.store(true, Ordering::Relaxed);
    dispatcher.join().expect("it ends");
    transceiver.close();
    monitor.join().expect("it ends").expect("it was closed");
    result
}

fn dispatch(
    mut ends: RingEnds,
    stop: Arc<AtomicBool>,
    answer: impl Fn(&Request, Vec<u8>) -> Option<Vec<u8>> + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let Some(slot) = ends.rx.next_published() else {
                thread::yield_now();
                continue;
            };
            let mut frame = [0; FRAME as usize];
            ends.rx.peek(slot).expect("published").bytes().copy_to(0, &mut frame);
            ends.rx.claim(slot);
            let request = Request::parse(&frame).expect("a request");
            if let Some(response) = answer(&request, right_answer(&request, &frame)) {
                ends.tx.slot(slot).copy_from(0, &response);
                ends.tx.publish(slot);
            }
        }
    })
}

fn right_answer(request: &Request, frame: &[u8]) -> Vec<u8> {
    let mut response = vec![0; FRAME as usize];
    let header = Response {
        status: Status::SUCCESS,
        result_len: request.arg_len,
        request_id: request.request_id,
        ptp_timestamp: request.ptp_timestamp,
    };
    header.emit(&mut response);
    increment(&frame[HEADER_LEN..], &mut response[HEADER_LEN..]);
    response
}

#[test]
fn a_bridge_that_answers_half_is_found() {
    // Few messages: each that is not answered takes the FPGA its time.
    let (report, last) = failing_with(6, |request, answer| (request.request_id % 2 == 0).then_some(answer));
    assert_eq!(last, "RESULT: FAIL (lost 3)");
    assert_eq!((&report["matched"], &report["payload_errors"]), (&json!(3), &json!(0)));
    assert_eq!(report["lost_ids"], json!([1, 3, 5]));
}

#[test]
fn a_wrong_magic_is_found() {
    let (report, last) = failing_with(100, |request, mut answer| {
        answer[0] ^= u8::from(request.request_id == 17);
        Some(answer)
    });
    assert_eq!(last, "RESULT: FAIL (message 17: magic 0x43555152 where 0x43555153 was expected)");
    assert_eq!(
        (&report["header_errors"], &report["matched"], &report["lost"]),
        (&json!(1), &json!(99), &json!(0))
    );
}

#[test]
fn an_answer_under_another_id_is_paired_with_nothing() {
    // Message 30 is answered as if it were 29, which the FPGA has long been answered.
    let (report, last) = failing_with(100, |request, mut answer| {
        if request.request_id == 30 {
            answer[12] = 29;
        }
        Some(answer)
    });
    assert_eq!(last, "RESULT: FAIL (lost 1)");
    assert_eq!((&report["lost_ids"], &report["matched"]), (&json!([30]), &json!(99)));
}
