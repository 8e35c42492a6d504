//! The provider, loaded by a C program, serves callers: over both forms of the rendezvous, in both shapes, and for a
//! peer that plays the FPGA.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{PeerEndpoint, Qpn, Rkey};
use roce_rendezvous::socket::{Client, Form};
use roce_rendezvous::{Blocking, Offer};
use roce_transport::{Config, ConfigBuilder, Mode, Transceiver, TxMode, Unified};
use tempfile::TempDir;

const COUNT: u32 = 100;

/// The library that Cargo built for this test.
fn library() -> PathBuf {
    let file = "libcudaq_realtime_bridge_cpu_roce.so";
    let deps = env::current_exe().expect("our own path").parent().expect("in a folder").to_owned();
    let found = [deps.join(file), deps.join("..").join(file)].into_iter().find(|path| path.exists());
    found.expect("cargo builds the cdylib with the tests")
}

/// A loopback address that no other test of this machine uses at the same time.
fn unused_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [.., high, low] = (std::process::id() << 2).to_be_bytes();
    let [.., n] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 192 | (low >> 2), high, n.max(1))
}

static PROGRAM: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let program = dir.path().join("host");
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1", "-pthread"])
        .args(env::var("ROCE_TEST_CFLAGS").unwrap_or_default().split_whitespace())
        .arg("-o")
        .arg(&program)
        .arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/c/host.c"))
        .arg("-ldl")
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (dir, program)
});

/// The C program, serving.
struct Host {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Host {
    fn start(shape: &str, arguments: &[String]) -> Self {
        Self::start_as(Command::new(&PROGRAM.1), shape, arguments)
    }

    /// The command is the program, or ends with its name.
    fn start_as(mut command: Command, shape: &str, arguments: &[String]) -> Self {
        let mut child = command
            .arg(library())
            .args([shape, &COUNT.to_string()])
            .args(arguments)
            .args((shape == "unified").then_some("--unified"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes");
        line.trim_end_matches('\n').to_owned()
    }

    fn end(mut self) {
        self.input.write_all(b"\n").expect("it reads");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let find = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
    line.split(' ').find_map(find).unwrap_or_else(|| panic!("no {name} in {line}"))
}

fn caller(addr: Ipv4Addr, shape: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Transceiver {
    let config = Config::builder(format!("soft:{addr}")).mode(Mode::Unified).tx_mode(TxMode::WriteWithImm);
    let transceiver = Transceiver::new(shape(config).build().expect("valid"));
    transceiver.setup().expect("set-up");
    transceiver
}

/// One call after the other; every answer is right.
fn call(mut link: Unified) {
    let (pages, frame) = (link.geometry().num_pages(), link.geometry().frame_size() as usize);
    for n in 0..COUNT {
        let request: Vec<u8> = (0..frame).map(|i| (n as usize + i).to_le_bytes()[0]).collect();
        link.tx_slot(n % pages).copy_from(0, &request);
        link.tx_publish(n % pages).expect("sent");
        let deadline = Instant::now() + Duration::from_secs(30);
        let slot = loop {
            if let Some(slot) = link.rx_poll().expect("open") {
                break slot;
            }
            assert!(Instant::now() < deadline, "no answer to call {n}");
            thread::yield_now();
        };
        let mut answer = vec![0; frame];
        link.rx_slot(slot).copy_to(0, &mut answer);
        assert!(answer.iter().zip(&request).all(|(a, r)| *a == r.wrapping_add(1)), "call {n}: {answer:?}");
    }
}

fn over_rendezvous(shape: &str, form: Form) {
    over_rendezvous_as(Command::new(&PROGRAM.1), shape, form);
}

fn over_rendezvous_as(command: Command, shape: &str, form: Form) {
    let (ours, theirs) = (unused_addr(), unused_addr());
    let device = format!("--device=soft:{theirs}");
    let arguments = [device, "--num-slots=4".into(), "--slot-size".into(), "128".into()];
    let mut host = Host::start_as(command, shape, &arguments);
    let line = host.line();
    assert!(line.starts_with("transport=cpu_roce port="), "{line}");
    assert_eq!((field(&line, "slots"), field(&line, "slot_size")), ("4", "128"));
    assert_eq!(field(&line, "roce_ip"), theirs.to_string());
    let transceiver = caller(ours, |c| c.num_pages(4).page_size(128));
    let port: u16 = field(&line, "port").parse().expect("a port");
    let client = Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), form);
    let offer = Offer::from(transceiver.endpoint().expect("set up"));
    let mut client = Blocking::client(client).expect("a client");
    let peer = client.exchange(&offer, |peer| transceiver.connect(&peer.endpoint)).expect("connected");
    assert_eq!(format!("{}", peer.endpoint.qpn), field(&line, "qp"));
    assert_eq!(peer.endpoint.rkey.expect("told").get().to_string(), field(&line, "rkey"));
    assert_eq!(peer.geometry.map(|g| (g.slots, g.slot_size)), (form == Form::Json).then_some((4, 128)));
    call(transceiver.take_unified().expect("connected"));
    host.end();
}

#[test]
fn rings_over_the_json_rendezvous() {
    over_rendezvous("ring", Form::Json);
}

#[test]
fn rings_over_the_plain_rendezvous() {
    over_rendezvous("ring", Form::Plain);
}

#[test]
fn unified_over_the_json_rendezvous() {
    over_rendezvous("unified", Form::Json);
}

#[test]
fn unified_over_the_plain_rendezvous() {
    over_rendezvous("unified", Form::Plain);
}

#[test]
#[ignore = "needs valgrind and a minute; `cargo xtask memcheck` runs it"]
fn both_shapes_under_valgrind() {
    for shape in ["ring", "unified"] {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"]);
        command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]).arg(&PROGRAM.1);
        over_rendezvous_as(command, shape, Form::Json);
    }
}

/// The peer is told our end by the lines that scripts parse, and is known from the arguments.
fn with_an_fpga(shape: &str) {
    let (ours, theirs) = (unused_addr(), unused_addr());
    let transceiver = caller(ours, |c| c.num_pages(64).page_size(256).frame_size(40));
    let qp = transceiver.endpoint().expect("set up").qpn;
    let arguments = [
        format!("--device=soft:{theirs}"),
        "--qp_config=hsb_fpga".to_owned(),
        format!("--peer-ip={ours}"),
        format!("--remote-qp={qp}"),
        "--num-slots=128".to_owned(),
        "--frame-size=40".to_owned(),
    ];
    let mut host = Host::start(shape, &arguments);
    assert_eq!(host.line(), "=== Bridge Ready ===");
    let qp = host.line().strip_prefix("  QP Number: 0x").map(|hex| u32::from_str_radix(hex, 16));
    let rkey = host.line().strip_prefix("  RKey: ").map(str::parse);
    assert_eq!(host.line(), "  Buffer Addr: 0x0");
    let info = host.line();
    assert_eq!((field(&info, "slots"), field(&info, "port")), ("64", "0"), "an FPGA's queue has 64");
    let qpn = Qpn::new(qp.expect("a QP number").expect("hex")).expect("24 bits");
    let rkey = Rkey::new(rkey.expect("an rkey").expect("decimal"));
    transceiver.connect(&PeerEndpoint { qpn, rkey: Some(rkey), ip: theirs }).expect("connected");
    call(transceiver.take_unified().expect("connected"));
    host.end();
}

#[test]
fn rings_with_an_fpga() {
    with_an_fpga("ring");
}

#[test]
fn unified_with_an_fpga() {
    with_an_fpga("unified");
}

/// A caller that breaks off is reported, and the next one is served.
#[test]
fn a_bad_caller_leaves_the_service_up() {
    let mut host = Host::start("ring", &[format!("--device=soft:{}", unused_addr())]);
    let line = host.line();
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, field(&line, "port").parse().expect("a port")));
    let mut bad = std::net::TcpStream::connect(addr).expect("it listens");
    bad.write_all(b"nonsense").expect("sent");
    drop(bad);
    let transceiver = caller(unused_addr(), |c| c.num_pages(8).page_size(256));
    let offer = Offer::from(transceiver.endpoint().expect("set up"));
    let mut client = Blocking::client(Client::new(addr, Form::Json)).expect("a client");
    client.exchange(&offer, |peer| transceiver.connect(&peer.endpoint)).expect("connected");
    call(transceiver.take_unified().expect("connected"));
    host.end();
}

#[test]
fn one_symbol_is_exported_under_the_known_name() {
    let run = |program: &str, option: &str, more: &[&str]| {
        let output = Command::new(program).arg(option).args(more).arg(library()).output();
        String::from_utf8_lossy(&output.expect("binutils").stdout).into_owned()
    };
    let symbols = run("nm", "--dynamic", &["--defined-only"]);
    let names: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(names, ["cudaq_realtime_get_bridge_interface"]);
    assert!(run("readelf", "--dynamic", &[]).contains("[libcudaq-realtime-bridge-cpu-roce.so]"));
}
