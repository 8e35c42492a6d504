//! Runs, good and bad, of the three programs together.

use std::fs;
use std::thread;

use crate::harness::{
    Fpga, HSB, PLAYBACK, Reach, address, bridge, data, playback, report, run, surface_code,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::tempdir;

/// Plays once and checks that all is well.
fn passes(fpga: &Fpga, reach: Reach, options: &str) -> Value {
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("report.json");
    let ended = playback(fpga, reach, &file, options).ended();
    assert_eq!(ended.code, Some(0), "{options}: {ended:?}");
    assert_eq!(ended.stdout.lines().last(), Some("RESULT: PASS"));
    let report = report(&file);
    assert_eq!((&report["verdict"], &report["reasons"]), (&json!("PASS"), &json!([])));
    for count in ["lost", "payload_errors", "header_errors", "foreign", "duplicates", "truncated"] {
        assert_eq!(report[count], 0, "{count}");
    }
    assert_eq!(report["responses"], report["messages"]);
    assert_eq!(report["matched"], report["messages"]);
    assert!(report["rtt_ns"]["min"].as_u64() > Some(0));
    report
}

/// Plays once, expecting a failure; gives the report and the last line.
fn fails(fpga: &Fpga, reach: Reach, options: &str) -> (Value, String) {
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("report.json");
    let ended = playback(fpga, reach, &file, options).ended();
    assert_eq!(ended.code, Some(1), "{options}: {ended:?}");
    let report = report(&file);
    assert_eq!(report["verdict"], "FAIL");
    (report, ended.stdout.lines().last().unwrap_or_default().to_owned())
}

fn every_shape_passes_in(mode: &str, fpga_options: &str) {
    let fpga_shapes = [(8, 64), (8, 128), (200, 64), (200, 128)].map(|shape| ("fpga", shape));
    let lenient_shapes = [(8, 128), (200, 64)].map(|shape| ("lenient", shape));
    for (personality, (payload, pages)) in fpga_shapes.into_iter().chain(lenient_shapes) {
        let fpga = Fpga::start(&format!("{fpga_options} --personality {personality}"));
        let (bridge, reach) = bridge(&fpga, &format!("{mode} --payload-size {payload} --num-pages {pages}"));
        let options = format!(
            "{fpga_options} --num-messages 512 --payload-size {payload} --num-pages {pages} --spacing-us 0"
        );
        let report = passes(&fpga, reach, &options);
        assert_eq!((&report["messages"], &report["workload"]), (&json!(512), &json!("increment")));
        assert_eq!(report["passes"], if payload == 8 { 1 } else { 4 });

        let ended = bridge.stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("received 512, sent 512"), "{}", ended.stdout);
        let ended = fpga.program.stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn threads_answer_every_message() {
    every_shape_passes_in("", "");
}

#[test]
fn unified_answers_every_message() {
    every_shape_passes_in("--unified", "");
}

#[test]
fn forward_echoes_every_message() {
    every_shape_passes_in("--forward", "--forward");
}

#[test]
fn boards_before_and_after_the_immediate_changed() {
    for (version, format) in [("0x2510", "hsb-2510"), ("0x2602", "hsb-2510"), ("0x2603", "hsb")] {
        let fpga = Fpga::start(&format!("--hsb-ip-version {version}"));
        let (bridge, reach) = bridge(&fpga, &format!("--num-pages 4 --immediate {format}"));
        passes(&fpga, reach, "--num-messages 40 --num-pages 4 --spacing-us 0");
        let ended = bridge.stop();
        assert!(ended.stdout.contains("received 40, sent 40"), "{version}: {}", ended.stdout);
    }
}

#[test]
fn a_decoder_that_is_wrong_on_both_sides_is_found() {
    // No error flips the observable: bridge and playback agree that it never does.
    let model = fs::read_to_string(data("surface_d5_r5.dem")).expect("there");
    let dir = tempdir().expect("a directory");
    let dem = dir.path().join("blind.dem");
    let blind = format!("{}\nlogical_observable L0\n", model.replace(" L0", ""));
    fs::write(&dem, blind).expect("written");
    let fpga = Fpga::start("");
    let (_bridge, reach) = bridge(&fpga, &format!("--payload-size 15 --dem {}", dem.display()));
    let (report, last) = fails(&fpga, reach, &surface_code(&dem));
    assert_eq!((&report["matched"], &report["payload_errors"]), (&json!(512), &json!(0)));
    let predictions = fs::read(data("surface_d5_r5.pred.b8")).expect("there");
    let flips = predictions.iter().filter(|row| **row != 0).count();
    assert_eq!(report["reference_agreement"], 512 - flips);
    let first = predictions.iter().position(|row| *row != 0).expect("some flip");
    let expected = format!(
        "RESULT: FAIL ({flips} shots were decoded to something else than predicted, message {first} first; 1 may)"
    );
    assert_eq!(last, expected);
}

#[test]
fn the_decoder_answers_every_shot_in_both_modes() {
    let mut reports = ["", "--unified"].map(|mode| {
        let fpga = Fpga::start("");
        let dem = data("surface_d5_r5.dem");
        let (_bridge, reach) = bridge(&fpga, &format!("{mode} --payload-size 15 --dem {}", dem.display()));
        // A run before it on the same bridge: the second workload finds everything in use.
        passes(&fpga, reach, "--num-messages 100 --spacing-us 0");
        let report = passes(&fpga, reach, &surface_code(&dem));
        assert_eq!((&report["messages"], &report["workload"]), (&json!(512), &json!("surface-code")));
        let errors = report["logical_errors"].as_u64().expect("a count");
        assert!((33..=35).contains(&errors), "{errors} logical errors");
        assert_eq!(report["agreement"], 512 - errors);
        assert!(report["reference_agreement"].as_u64() >= Some(511), "{report}");
        report
    });
    for report in &mut reports {
        report["rtt_ns"] = Value::Null;
        report["rtt_histogram"] = Value::Null;
    }
    assert_eq!(reports[0], reports[1]);
}

#[test]
fn answers_are_as_long_as_their_bridge_sends_them() {
    // The bridge's frames are longer than the windows: the capture cuts them, and nothing is missing.
    let fpga = Fpga::start("");
    let (_bridge, reach) = bridge(&fpga, "--payload-size 300");
    passes(&fpga, reach, "--num-messages 600 --payload-size 40 --spacing-us 0");
    // Now they are shorter than the answers.
    let fpga = Fpga::start("");
    let (_bridge, reach) = bridge(&fpga, "--payload-size 20");
    let (report, last) = fails(&fpga, reach, "--num-messages 5 --payload-size 40 --spacing-us 0");
    assert_eq!((&report["header_errors"], &report["lost"]), (&json!(5), &json!(0)));
    assert!(last.starts_with("RESULT: FAIL (message 0: answered with result too large"), "{last}");
}

/// Plays over a link that loses packets each way; gives the lost ids. The counters of all three programs must agree.
fn lost_over_a_lossy_link(mode: &str) -> Value {
    let dir = tempdir().expect("a directory");
    let [fpga_file, bridge_file] = ["fpga.json", "bridge.json"].map(|name| dir.path().join(name));
    let fpga = Fpga::start(&format!(
        "--drop-rate 0.03 --seed 7 --response-timeout-ms 2000 --json {}",
        fpga_file.display()
    ));
    let (bridge, reach) =
        bridge(&fpga, &format!("{mode} --drop-rate 0.03 --seed 8 --json {}", bridge_file.display()));
    let (played, last) = fails(&fpga, reach, "--num-messages 120 --spacing-us 0");
    assert_eq!(bridge.stop().code, Some(0));
    assert_eq!(fpga.program.stop().code, Some(1));

    let (fpga, bridge) = (report(&fpga_file), report(&bridge_file));
    let count = |value: &Value| value.as_u64().expect("a count");
    let lost = count(&played["lost"]);
    let dropped = [&fpga["wire"]["fault_dropped"], &bridge["wire"]["fault_dropped"]].map(count);
    assert!(dropped.iter().all(|dropped| *dropped > 0), "{dropped:?}");
    // A packet is a request or an answer. What merely came late is counted apart.
    assert_eq!(lost, dropped[0] + dropped[1] + count(&fpga["late"]));
    assert_eq!(last, format!("RESULT: FAIL (lost {lost})"));
    assert_eq!((&played["payload_errors"], &played["duplicates"]), (&json!(0), &json!(0)));
    assert_eq!(played["matched"], 120 - lost);
    assert_eq!(fpga["timeout_ids"], played["lost_ids"]);
    assert_eq!(bridge["stats"]["received"], 120 - dropped[0]);
    played["lost_ids"].clone()
}

#[test]
fn lost_messages_are_named_exactly_and_the_same_seed_loses_the_same() {
    let modes = ["", "", "--unified"];
    let runs = modes.map(|mode| thread::spawn(move || lost_over_a_lossy_link(mode)));
    let [first, again, unified] = runs.map(|run| run.join().expect("it ends well"));
    assert_eq!(first, again);
    assert_eq!(first, unified);
}

#[test]
fn a_function_that_the_bridge_has_not_fails_at_once() {
    let fpga = Fpga::start("");
    let (_bridge, reach) = bridge(&fpga, "--payload-size 15");
    let (report, last) = fails(&fpga, reach, &surface_code(&data("surface_d5_r5.dem")));
    assert_eq!((&report["header_errors"], &report["lost"]), (&json!(512), &json!(0)));
    assert_eq!(last, "RESULT: FAIL (message 0: answered with unknown function (-1))");
}

#[test]
fn unverified_answers_are_counted() {
    let fpga = Fpga::start("");
    let (_bridge, reach) = bridge(&fpga, "");
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("report.json");
    let ended = playback(&fpga, reach, &file, "--no-verify --num-messages 20").ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = report(&file);
    assert_eq!((&report["responses"], &report["matched"]), (&json!(20), &json!(0)));
}

#[test]
fn a_loop_ends_with_its_time_and_tells_what_it_did() {
    let fpga = Fpga::start("");
    let (_bridge, reach) = bridge(&fpga, "");
    let report = passes(&fpga, reach, "--num-messages 10 --spacing-us 0 --loop --timeout 5");
    let looped = &report["loop"];
    assert!(looped["windows"].as_u64() > Some(0), "{looped}");
    assert_eq!(looped["windows"], looped["responses"]);

    let mut program =
        playback(&fpga, reach, &tempdir().expect("a directory").path().join("gone"), "--loop --json -");
    program.wait_for("the player plays over and over");
    let ended = program.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("nothing but JSON");
    assert_eq!(report["verdict"], "PASS");
    assert!(ended.stderr.contains("RESULT: PASS"), "{}", ended.stderr);
}

#[test]
fn an_interrupted_playback_reports_and_leaves_the_fpga_standing() {
    let fpga = Fpga::start("");
    let (_bridge, reach) = bridge(&fpga, "");
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("report.json");
    let mut program = playback(&fpga, reach, &file, "--num-messages 500 --spacing-us 100000");
    program.wait_for("the player plays a pass");
    program.signal(Signal::SIGINT);
    let ended = program.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stdout.lines().last(), Some("RESULT: FAIL (interrupted by a signal)"));
    assert!(report(&file)["lost"].as_u64() > Some(0));
    passes(&fpga, reach, "--num-messages 50 --spacing-us 0");
}

#[test]
fn a_bridge_killed_in_mid_run_fails_the_playback() {
    let mut fpga = Fpga::start("--response-timeout-ms 200");
    let (bridge, reach) = bridge(&fpga, "");
    let dir = tempdir().expect("a directory");
    let program = playback(
        &fpga,
        reach,
        &dir.path().join("report.json"),
        "--num-messages 500 --spacing-us 20000 --timeout 5",
    );
    fpga.program.wait_for("queue pair connected");
    bridge.signal(Signal::SIGKILL);
    assert_eq!(bridge.ended().code, None);
    let ended = program.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let last = ended.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("RESULT: FAIL (pass 1 did not end in time; is the bridge running"), "{last}");
}

#[test]
fn an_fpga_killed_in_mid_run_fails_the_playback() {
    let fpga = Fpga::start("");
    let (bridge, reach) = bridge(&fpga, "");
    let dir = tempdir().expect("a directory");
    let file = dir.path().join("report.json");
    let mut program = playback(&fpga, reach, &file, "--num-messages 500 --spacing-us 20000");
    program.wait_for("the player plays a pass");
    fpga.program.signal(Signal::SIGKILL);
    let ended = program.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let reasons = report(&file)["reasons"].to_string();
    assert!(reasons.contains("did not answer") && reasons.contains("emulator runs"), "{reasons}");
    assert_eq!(bridge.stop().code, Some(0));
}

/// From a board that was just switched on to one that is as it was: found by its announcement, started, configured,
/// played, and left without a stream.
#[test]
fn a_board_is_found_started_and_left_as_it_was() {
    for personality in ["fpga", "lenient"] {
        let listen = address();
        let announce = format!("--announce-to {listen} --announce-interval-ms 50");
        let fpga = Fpga::start(&format!("--personality {personality} {announce}"));
        let (_bridge, reach) = bridge(&fpga, "");
        let line = format!(
            "--emulator --start --listen {listen}:12267 --bridge-ip {} --bridge-qp {:#x} --bridge-rkey {} --timeout 60",
            reach.ip, reach.qpn, reach.rkey
        );
        let ended = run(PLAYBACK, &line);
        assert_eq!(ended.code, Some(0), "{personality}: {ended:?}");
        let reach = format!("--hsb-ip {} --control-port 8193", fpga.ip);
        // The mask of the host interface, and the queue pair of the virtual port.
        for register in ["0x80c", "0x1000"] {
            let read = run(HSB, &format!("{reach} read {register}"));
            assert!(read.stdout.trim_end().ends_with("0x00000000"), "{register}: {read:?}");
        }
    }
}

#[test]
fn reports_and_captures_land_in_files() {
    let dir = tempdir().expect("a directory");
    let [report_file, pcap] = ["bridge.json", "bridge.pcap"].map(|name| dir.path().join(name));
    let fpga = Fpga::start("");
    let (bridge, reach) =
        bridge(&fpga, &format!("--json {} --pcap {}", report_file.display(), pcap.display()));
    let csv = dir.path().join("rtt.csv");
    let played = passes(&fpga, reach, &format!("--num-messages 10 --rtt-csv {} --histogram", csv.display()));
    assert_eq!(bridge.stop().code, Some(0));
    let lines: Vec<String> = fs::read_to_string(&csv).expect("written").lines().map(str::to_owned).collect();
    assert_eq!((lines.len(), lines[0].as_str()), (11, "message,sent_ns,captured_ns,rtt_ns"));
    let longest = lines[1..].iter().filter_map(|line| line.rsplit(',').next()?.parse::<u64>().ok()).max();
    assert_eq!(longest, played["rtt_ns"]["max"].as_u64());
    let histogram = &played["rtt_histogram"];
    let counts = histogram["counts"].as_array().expect("counts").iter().filter_map(Value::as_u64);
    assert_eq!(counts.sum::<u64>() + histogram["beyond"].as_u64().expect("a count"), 10);
    let report = report(&report_file);
    assert_eq!((&report["mode"], &report["error"]), (&json!("threads"), &Value::Null));
    assert_eq!((&report["stats"]["received"], &report["stats"]["overruns"]), (&json!(10), &json!(0)));
    assert_eq!(report["dispatch"]["responses"], 10);
    let packets = fs::read(&pcap).expect("written");
    // 20 packets of 64 bytes and more behind a file header of 24.
    assert!(packets.len() > 24 + 20 * 64, "{}", packets.len());
}

/// Every answer is held back for an hour, until the injector and the send queue are full and the bridge waits for room.
#[test]
fn a_bridge_that_waits_for_room_to_send_ends_when_asked() {
    for mode in ["", "--unified", "--forward"] {
        let dir = tempdir().expect("a directory");
        let file = dir.path().join("bridge.json");
        let fpga_mode = if mode == "--forward" { mode } else { "" };
        let fpga = Fpga::start(&format!("{fpga_mode} --response-timeout-ms 10"));
        let options = format!("{mode} --num-pages 4 --faults delay=1:3600000ms --json {}", file.display());
        let (bridge, reach) = bridge(&fpga, &options);
        let messages = format!("{fpga_mode} --num-messages 80 --num-pages 4 --spacing-us 0");
        assert_eq!(fails(&fpga, reach, &messages).0["lost"], 80);
        assert_eq!(bridge.stop().code, Some(0), "{mode}");
        let stats = &report(&file)["stats"];
        assert!(stats["tx_stalls"].as_u64() > Some(0), "{mode}: {stats}");
    }
}
