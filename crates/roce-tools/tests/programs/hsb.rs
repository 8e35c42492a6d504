//! The program `hsb` against the software FPGA, in both of its personalities.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

use roce_rendezvous::hsb::ecb::{Command, Pair, Request, Response, Status};
use serde_json::Value;

use crate::harness::{EMULATOR, Ended, Fpga, HSB, Program, address, run, words};

/// A software FPGA that announces itself at an address of its own, twenty times a second.
fn fpga(personality: &str, options: &str) -> (Fpga, Ipv4Addr) {
    let listen = address();
    let announce = format!("--announce-to {listen} --announce-interval-ms 50");
    (Fpga::start(&format!("--personality {personality} {announce} {options}")), listen)
}

/// `hsb` with the address of the FPGA.
fn hsb(fpga: &Fpga, line: &str) -> Ended {
    run(HSB, &format!("--hsb-ip {} --control-port 8193 {line}", fpga.ip))
}

fn good(ended: Ended) -> String {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

/// What it says on standard error.
fn fails(ended: Ended, code: i32) -> String {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
    ended.stderr
}

#[test]
fn a_board_is_discovered() {
    let (board, listen) = fpga("fpga", "");
    let discover = format!("discover --listen {listen}:12267 --timeout 2 --interface lo");
    let json: Value = serde_json::from_str(&good(run(HSB, &format!("{discover} --json")))).expect("JSON");
    let boards = json["boards"].as_array().expect("a list");
    assert_eq!(boards.len(), 1, "{json}");
    assert_eq!(boards[0]["ip"], board.ip.to_string());
    assert_eq!(boards[0]["kind"]["name"], "hololink-lite");
    assert_eq!((&boards[0]["hsb_ip_version"], &boards[0]["interface"]), (&"0x2606".into(), &"lo".into()));
    assert_eq!(boards[0]["enumeration_version"], 2);
    let text = good(run(HSB, &discover));
    for part in [&board.ip.to_string(), "hololink-lite", "HSB IP 0x2606", "data plane 0"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn nobody_is_told_with_what_to_check() {
    let listen = address();
    let words = fails(run(HSB, &format!("discover --listen {listen}:12267 --timeout 1")), 1);
    assert!(words.contains("no such board made itself known") && words.contains("firewall"), "{words}");
    let json = run(HSB, &format!("discover --listen {listen}:12267 --timeout 1 --json"));
    assert_eq!(json.code, Some(1));
    assert!(json.stdout.contains("\"boards\": []"), "{}", json.stdout);
    let words = fails(run(HSB, &format!("read 0x80 --listen {listen}:12267 --timeout 1")), 1);
    assert!(words.contains("--hsb-ip"), "{words}");
}

#[test]
fn registers_are_read_and_written() {
    for (personality, version) in [("fpga", "0x00002606"), ("lenient", "0x00002602")] {
        let (board, _) = fpga(personality, "");
        assert_eq!(good(hsb(&board, "read 0x80")), format!("0x00000080: {version}\n"));
        assert_eq!(good(hsb(&board, "write 0x1004 0x11223344")), "");
        let block = good(hsb(&board, "read 0x1000 2"));
        assert_eq!(block, "0x00001000: 0x00000000\n0x00001004: 0x11223344\n");
        assert!(fails(hsb(&board, "write 0xdead0000 1"), 1).contains("0xdead0000"));
        assert!(fails(hsb(&board, "read 0x1002"), 2).contains("multiple of 4"));
    }
}

#[test]
fn a_stream_is_configured_and_forgotten() {
    for personality in ["fpga", "lenient"] {
        let (board, _) = fpga(personality, "");
        let ring = "configure --qp 0x123 --rkey 0xcafebabe --frame-size 256 --pages 128 --host-ip 127.0.0.1";
        assert!(good(hsb(&board, ring)).contains("streams to 127.0.0.1, queue pair 0x123"));
        let block = good(hsb(&board, "read 0x1000 6"));
        let values: Vec<_> = block.lines().filter_map(|line| line.split(": ").nth(1)).collect();
        let expected = ["0x00000123", "0xcafebabe", "0x00000000", "0x00000000", "0x00000003", "0x0000007f"];
        assert_eq!(values, expected, "{personality}");
        assert!(good(hsb(&board, "read 0x0200030c")).ends_with("0x00000001\n"));
        good(hsb(&board, "unconfigure"));
        assert!(good(hsb(&board, "read 0x1000 6")).lines().all(|line| line.ends_with(": 0x00000000")));
        assert!(good(hsb(&board, "read 0x0200030c")).ends_with("0x00000000\n"));
    }
}

#[test]
fn a_ring_that_cannot_be_is_refused_before_anything_is_written() {
    let (board, _) = fpga("fpga", "");
    let ring = "configure --qp 0x123 --rkey 1 --frame-size 256";
    for (options, code, part) in [
        ("--page-size 200", 2, "page_size"),
        ("--pages 4097", 2, "1 to 4096"),
        ("--metadata --page-size 256", 2, "384 bytes at least"),
        ("--sensor 1", 2, "--sifs-per-sensor"),
        ("--vp-address 0x1004", 2, "no virtual port"),
        ("--host-ip 192.0.2.1", 2, "--host-mac"),
        ("--qp 0x1000000", 2, "24 bits"),
        ("--host-mac 1:2:3", 2, "02:00:00:00:00:01"),
    ] {
        let words = fails(hsb(&board, &format!("{ring} {options}")), code);
        assert!(words.contains(part), "{options}: {words}");
    }
    assert!(good(hsb(&board, "read 0x1000")).ends_with("0x00000000\n"));
}

#[test]
fn an_old_board_has_four_pages() {
    let (board, _) = fpga("fpga", "--hsb-ip-version 0x2510");
    let ring = "configure --qp 0x123 --rkey 1 --frame-size 256 --host-ip 127.0.0.1";
    assert!(fails(hsb(&board, ring), 2).contains("1 to 4"));
    good(hsb(&board, &format!("{ring} --pages 2")));
    let block = good(hsb(&board, "read 0x1008 2"));
    assert_eq!(block, "0x00001008: 0x00000000\n0x0000100c: 0x00000003\n");
    assert!(good(hsb(&board, "read 0x101c")).ends_with("0x00000003\n"));
}

#[test]
fn a_board_is_started_and_restarted() {
    for personality in ["fpga", "lenient"] {
        let (board, listen) = fpga(personality, "");
        good(hsb(&board, "start"));
        assert!(good(hsb(&board, "read 0x110")).ends_with("0x00000002\n"));
        good(hsb(&board, "write 0x1004 7"));
        let back = good(hsb(&board, &format!("reset --no-ptp --listen {listen}:12267")));
        assert!(back.contains(&board.ip.to_string()), "{back}");
        let forgotten = good(hsb(&board, "read 0x1004")).ends_with("0x00000000\n");
        assert_eq!(forgotten, personality == "fpga", "the other emulator does not restart");
        good(run(HSB, &format!("read 0x80 --control-port 8193 --listen {listen}:12267 --timeout 2")));
    }
}

/// A board that takes one register at a time, until an empty datagram comes. Each register holds its own address.
fn board_without_blocks() -> (String, thread::JoinHandle<()>) {
    let socket = UdpSocket::bind((address(), 0)).expect("a port");
    let at = socket.local_addr().expect("its address");
    let serve = move || {
        let mut bytes = [0; 2048];
        loop {
            let (len, from) = socket.recv_from(&mut bytes).expect("a request");
            let Ok(request) = Request::parse(&bytes[..len]) else { return };
            let answer = match request.command {
                Command::ReadDword | Command::WriteDword => {
                    let Pair { address, .. } = request.pairs[0];
                    Response::to(
                        &request,
                        Status::Success,
                        vec![Pair::new(address, address)],
                        request.sequence,
                    )
                }
                _ => Response::refusal(request.head(), Status::InvalidCommand, 0),
            };
            socket.send_to(&answer.encode(), from).expect("the way back");
        }
    };
    (format!("--hsb-ip {} --control-port {}", at.ip(), at.port()), thread::spawn(serve))
}

#[test]
fn a_board_at_an_address_may_take_one_register_at_a_time() {
    let (board, serving) = board_without_blocks();
    let words = fails(run(HSB, &format!("{board} read 0x1000 2")), 1);
    assert!(words.contains("unknown command"), "{words}");
    let block = good(run(HSB, &format!("{board} --no-blocks read 0x1000 2")));
    assert_eq!(block, "0x00001000: 0x00001000\n0x00001004: 0x00001004\n");
    let mut at = board.split_whitespace().skip(1).step_by(2);
    let peer = format!("{}:{}", at.next().unwrap_or(""), at.next().unwrap_or(""));
    UdpSocket::bind((address(), 0)).expect("a port").send_to(&[], peer).expect("loopback");
    serving.join().expect("it served");
}

#[test]
fn of_two_boards_one_has_to_be_chosen() {
    let (first, listen) = fpga("fpga", "");
    let ip = address();
    let line = format!("--device soft:{ip} --announce-to {listen} --announce-interval-ms 50");
    let mut second = Program::start(EMULATOR, &words(&line));
    second.wait_for("Ready");
    let line = format!("read 0x80 --control-port 8193 --listen {listen}:12267 --timeout 2");
    let words = fails(run(HSB, &line), 2);
    for part in ["--hsb-ip", &first.ip.to_string(), &ip.to_string()] {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn a_board_that_does_not_answer_is_told_from_options_that_cannot_work() {
    let nobody = address();
    let words = fails(run(HSB, &format!("read 0x80 --hsb-ip {nobody} --timeout 1")), 1);
    assert!(words.contains("nobody listens on the port"), "{words}");
    for line in
        ["", "read", "read x", "read 0x80 0 --hsb-ip 127.0.0.1", "write 0x80", "configure --qp 1", "bogus"]
    {
        let words = fails(run(HSB, line), 2);
        assert!(words.contains("Usage:"), "{line}: {words}");
    }
    let help = good(run(HSB, "--help"));
    for part in ["discover", "read", "write", "start", "configure", "unconfigure", "reset", "--control-port"]
    {
        assert!(help.contains(part), "{help}");
    }
}
