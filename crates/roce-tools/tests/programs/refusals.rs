//! What the programs refuse, and how they say so.

use std::net::UdpSocket;

use crate::harness::{BRIDGE, EMULATOR, Fpga, PLAYBACK, address, data, run};

/// The program ends with `code`, and says `part` on standard error.
fn refuses(program: &str, line: &str, code: i32, part: &str) {
    let ended = run(program, line);
    assert_eq!(ended.code, Some(code), "{line}: {ended:?}");
    assert!(ended.stderr.contains(part), "{line}: {}", ended.stderr);
    assert_eq!(ended.stderr.contains("Usage:"), code == 2, "{line}: {}", ended.stderr);
}

#[test]
fn bad_options_of_the_bridge() {
    let common = format!("--device soft:{} --peer-ip 127.0.0.2 --remote-qp 1", address());
    for (options, part) in [
        ("--bogus", "--bogus"),
        ("--num-pages 100", "power of two"),
        ("--num-pages ten", "ten"),
        ("--page-size 31", "31"),
        ("--payload-size 0xFFFFFFFF", "page"),
        ("--unified --forward", "--forward"),
        ("--drop-rate 2", "0 to 1"),
        ("--seed 7", "--drop-rate"),
        ("--faults drop=2", "drop"),
        ("--rt-priority 100", "priority"),
    ] {
        refuses(BRIDGE, &format!("{common} {options}"), 2, part);
    }
    refuses(BRIDGE, "--peer-ip 127.0.0.2 --remote-qp 0x1000000", 2, "--remote-qp");
    refuses(BRIDGE, "--peer-ip nowhere --remote-qp 1", 2, "nowhere");
    refuses(BRIDGE, "--remote-qp 1", 2, "--peer-ip");
}

#[test]
fn what_a_bridge_cannot_have() {
    let peer = "--peer-ip 127.0.0.2 --remote-qp 1";
    refuses(
        BRIDGE,
        &format!("--device soft:192.0.2.1 {peer}"),
        1,
        "192.0.2.1 is not an address of this machine",
    );
    refuses(BRIDGE, &format!("--device mlx9 {peer}"), 1, "mlx9: ");
    refuses(BRIDGE, &format!("--dem /no/such.dem {peer}"), 1, "/no/such.dem");
    let ip = address();
    let _holder = UdpSocket::bind((ip, 4791)).expect("ours");
    refuses(BRIDGE, &format!("--device soft:{ip} {peer}"), 1, "take another address");
    refuses(BRIDGE, &format!("--device soft:{} --cpu 9999 --timeout 5 {peer}", address()), 1, "CPU 9999");
}

#[test]
fn a_bridge_that_nobody_calls_says_so() {
    let ip = address();
    let line = format!("--device soft:{ip} --peer-ip 127.0.0.2 --remote-qp 0x12 --timeout 1");
    refuses(BRIDGE, &line, 1, "no request came within 1 s");
}

#[test]
fn what_an_emulator_cannot_have() {
    refuses(EMULATOR, "--device mlx9", 1, "mlx9: ");
    refuses(EMULATOR, "--ib-port 2", 1, "port 1 only");
    refuses(EMULATOR, "--page-size 8 --device soft:127.0.0.1", 1, "8 bytes is too small");
    refuses(EMULATOR, "--device soft:192.0.2.1", 1, "192.0.2.1");
    let ip = address();
    let holder = UdpSocket::bind((ip, 0)).expect("ours");
    let port = holder.local_addr().expect("bound").port();
    refuses(EMULATOR, &format!("--device soft:{ip} --port {port}"), 1, "in use");
}

#[test]
fn an_emulator_that_nobody_drives_says_so() {
    let ended = Fpga::start("").program.stop();
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("no window was played: start the bridge with --remote-qp"),
        "{}",
        ended.stderr
    );
    refuses(EMULATOR, &format!("--device soft:{} --timeout 1", address()), 1, "no window was played");
}

#[test]
fn bad_options_of_the_playback() {
    let common = "--emulator --hsb-ip 127.0.0.2 --bridge-ip 127.0.0.1 --bridge-qp 1 --bridge-rkey 1";
    for (options, part) in [
        ("--num-pages 100", "power of two"),
        ("--page-size 200", "multiple of 128"),
        ("--payload-size 361", "does not fit --page-size 384"),
        ("--payload-size 40000 --page-size 65536", "exceeds the playback memory and the capture"),
        ("--num-messages 0", "send 1 at least"),
        ("--dem x", "--dets"),
        ("--dets x", "--dem"),
        ("--json=", "--json"),
    ] {
        refuses(PLAYBACK, &format!("{common} {options}"), 2, part);
    }
    refuses(PLAYBACK, "--hsb-ip 127.0.0.2", 2, "--bridge-ip");
    let stranger = "--hsb-ip 127.0.0.2 --bridge-ip 192.0.2.1 --bridge-qp 1 --bridge-rkey 1";
    refuses(PLAYBACK, stranger, 2, "--bridge-mac");
}

#[test]
fn data_files_that_are_missing_or_do_not_fit() {
    let common = "--emulator --hsb-ip 127.0.0.2 --bridge-ip 127.0.0.1 --bridge-qp 1 --bridge-rkey 1";
    let file = |name: &str| data(name).display().to_string();
    let (dem, dets, obs) =
        (file("surface_d5_r5.dem"), file("surface_d5_r5.dets.b8"), file("surface_d5_r5.obs.b8"));
    let line = |dem: &str, dets: &str, obs: &str| format!("{common} --dem {dem} --dets {dets} --obs {obs}");
    refuses(PLAYBACK, &line("/no/such.dem", &dets, &obs), 1, "/no/such.dem");
    refuses(PLAYBACK, &line(&dem, "/no/such.b8", &obs), 1, "/no/such.b8");
    refuses(
        PLAYBACK,
        &line(&dem, &file("surface_d3_r3.dets.b8"), &obs),
        1,
        "120 detectors take 15 bytes a shot",
    );
    refuses(PLAYBACK, &line(&dem, &dets, &file("surface_d3_r3.dem")), 1, "512");
    refuses(PLAYBACK, &format!("{} --pred /no/such.b8", line(&dem, &dets, &obs)), 1, "/no/such.b8");
    refuses(PLAYBACK, &format!("{common} --pred {obs}"), 2, "--dem");
}

#[test]
fn a_playback_without_fpga_says_so() {
    let line =
        format!("--emulator --hsb-ip {} --bridge-ip 127.0.0.1 --bridge-qp 1 --bridge-rkey 1", address());
    refuses(PLAYBACK, &line, 1, "nobody listens on the port");
}
