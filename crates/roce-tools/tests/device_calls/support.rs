//! A service as a process, and sessions with it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use roce_dispatch::caller::{CallError, Caller, Function};
use roce_rendezvous::socket::Form;
use roce_tools::call::{Session, SessionConfig};
use roce_transport::{Config, ConfigBuilder, Mode, TxMode, Unified};
use tempfile::TempDir;

use crate::harness::{Program, address, words};

pub(crate) const SERVICE: &str = env!("CARGO_BIN_EXE_roce-service");
pub(crate) const CALL: &str = env!("CARGO_BIN_EXE_roce-call");

/// Longer than anything here takes, even where other tests keep the machine busy.
pub(crate) const CEILING: Duration = Duration::from_secs(60);

pub(crate) const INCREMENT: Function<'_> = Function::new("rpc_increment");

/// The functions of `plugin.c`, as a shared library.
pub(crate) static PLUGIN: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let library = dir.path().join("libplugin.so");
    build_plugin(&package().join("tests/device_calls/plugin.c"), &library);
    (dir, library)
});

/// This package's folder.
pub(crate) fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn build_plugin(source: &Path, library: &Path) {
    let output = Command::new("cc")
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"])
        .args(["-Wno-unused-parameter", "-shared", "-fPIC", "-I"])
        .arg(package().join("include"))
        .arg("-o")
        .args([library, source])
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A running `roce-service`.
pub(crate) struct Service {
    pub(crate) program: Program,
    pub(crate) ip: Ipv4Addr,
    pub(crate) addr: SocketAddr,
    metrics: Option<SocketAddr>,
}

impl Service {
    pub(crate) fn start(options: &str) -> Self {
        Self::start_at(address(), 0, options)
    }

    pub(crate) fn start_at(ip: Ipv4Addr, port: u16, options: &str) -> Self {
        let mut args = words(&format!("--device soft:{ip} --listen {ip} --port {port}"));
        args.extend(words(options));
        let mut program = Program::start(SERVICE, &args);
        let metrics = options.contains("--metrics").then(|| {
            let url = program.wait_for("metrics on http://");
            url.trim_end().trim_end_matches("/metrics").parse().expect("an address")
        });
        let ready = program.wait_for("CUDAQ_REALTIME_SERVER_READY transport=cpu_roce port=");
        let (port, rest) = ready.split_once(' ').expect("more fields");
        assert!(rest.starts_with(&format!("roce_ip={ip} dispatch=")), "{ready}");
        let addr = SocketAddr::from((ip, port.parse().expect("a port")));
        Self { program, ip, addr, metrics }
    }

    /// With metrics, and functions in C.
    pub(crate) fn with_plugin(options: &str) -> Self {
        let plugin = PLUGIN.1.display();
        Self::start(&format!("--metrics 127.0.0.1:0 --plugin {plugin} {options}"))
    }

    pub(crate) fn session(&self, transceiver: ConfigBuilder) -> Session {
        Session::connect(self.session_config(transceiver)).expect("the service takes callers")
    }

    pub(crate) fn session_config(&self, transceiver: ConfigBuilder) -> SessionConfig {
        session_config(self.addr, transceiver)
    }

    pub(crate) fn metrics_addr(&self) -> SocketAddr {
        self.metrics.expect("started with --metrics")
    }

    /// All metrics as text.
    pub(crate) fn metrics(&self) -> String {
        let answer = http(self.metrics_addr(), "GET /metrics HTTP/1.1\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        body.to_owned()
    }

    /// The value of one metric, its label included.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.metrics();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }

    pub(crate) fn wait_for_metric(&self, name: &str, value: u64) {
        wait_until(&format!("{name} is {value}"), || self.metric(name) == value);
    }
}

pub(crate) fn session_config(service: SocketAddr, transceiver: ConfigBuilder) -> SessionConfig {
    SessionConfig {
        service,
        form: Form::Json,
        timeout: CEILING,
        transceiver: transceiver.build().expect("a valid configuration"),
    }
}

pub(crate) fn http(addr: SocketAddr, question: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.write_all(question.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and closes");
    answer
}

/// What a process has of what it must give back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl Holdings {
    pub(crate) fn of(program: &Program) -> Self {
        let count = |what| fs::read_dir(format!("/proc/{}/{what}", program.pid())).expect("it runs").count();
        Self { descriptors: count("fd"), threads: count("task") }
    }
}

/// A caller's transceiver on an address of its own: 64 slots of 256 bytes, requests written.
pub(crate) fn transceiver() -> ConfigBuilder {
    Config::builder(format!("soft:{}", address()))
        .num_pages(64)
        .page_size(256)
        .mode(Mode::Unified)
        .tx_mode(TxMode::WriteWithImm)
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + CEILING;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What one call of `function` gives.
pub(crate) fn call(caller: &Caller<Unified>, function: &str, args: &[u8]) -> Result<Vec<u8>, CallError> {
    call_within(caller, function, args, CEILING)
}

pub(crate) fn call_within(
    caller: &Caller<Unified>,
    function: &str,
    args: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, CallError> {
    let mut frame = caller.acquire(&Function::new(function))?;
    frame.put(args)?;
    Ok(frame.dispatch(timeout)?.wait()?.to_vec())
}

/// What came of many calls.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) answered: u32,
    pub(crate) timeouts: u32,
}

/// Keeps `depth` calls in flight, each with arguments and results of its own, and fails where an answer is wrong.
pub(crate) fn call_many(caller: &Caller<Unified>, calls: u32, depth: usize, timeout: Duration) -> Tally {
    let mut tally = Tally::default();
    let mut made = 0;
    let mut pending = Vec::with_capacity(depth);
    let mut args_by_slot = [0; 64];
    let mut slots = std::collections::HashMap::new();
    loop {
        while made < calls && pending.len() < depth {
            let mut frame = caller.acquire(&INCREMENT).expect("a slot");
            frame.put(&made.to_le_bytes()).expect("room");
            args_by_slot[frame.slot() as usize] = made;
            slots.insert(frame.request_id(), frame.slot());
            pending.push(frame.dispatch(timeout).expect("open"));
            made += 1;
        }
        let Some((id, outcome)) = caller.wait_any(&mut pending) else { return tally };
        let slot = slots.remove(&id).expect("it was called");
        match outcome {
            Ok(mut answer) => {
                let mut results = [0; 4];
                answer.take_array::<u8>(&mut results).expect("4 bytes");
                let expected = args_by_slot[slot as usize].to_le_bytes().map(|b| b.wrapping_add(1));
                assert_eq!(results, expected, "call {id} has another's answer");
                tally.answered += 1;
            }
            Err(CallError::Timeout { request_id, .. }) => {
                assert_eq!(request_id, id);
                tally.timeouts += 1;
            }
            Err(error) => panic!("call {id}: {error}"),
        }
    }
}
