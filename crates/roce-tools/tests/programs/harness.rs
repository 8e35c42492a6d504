//! Starts the real programs as processes and talks to them as a script would.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than anything here takes, even where other tests keep the machine busy.
const CEILING: Duration = Duration::from_secs(300);

pub(crate) const BRIDGE: &str = env!("CARGO_BIN_EXE_hsb-bridge-cpu");
pub(crate) const EMULATOR: &str = env!("CARGO_BIN_EXE_hsb-fpga-emulator");
pub(crate) const HSB: &str = env!("CARGO_BIN_EXE_hsb");
pub(crate) const PLAYBACK: &str = env!("CARGO_BIN_EXE_hsb-fpga-playback");

/// Addresses that no other test uses: those of this process, counted.
pub(crate) fn address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, 128 | high, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The playback's options for the shots of distance 5, decoded there with this model.
pub(crate) fn surface_code(dem: &Path) -> String {
    let file = |extension: &str| data(&format!("surface_d5_r5.{extension}")).display().to_string();
    let [dets, obs, pred] = ["dets.b8", "obs.b8", "pred.b8"].map(file);
    format!("--dem {} --dets {dets} --obs {obs} --pred {pred} --spacing-us 0", dem.display())
}

/// The words of a command line.
pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A running program. Killed when dropped.
pub(crate) struct Program {
    name: String,
    child: Child,
    lines: Receiver<Line>,
    stdout: String,
    stderr: String,
}

enum Line {
    Out(String),
    Err(String),
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    pub(crate) fn start(program: &str, args: &[String]) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{program}: {e}"));
        let (sender, lines) = channel();
        forward_lines(child.stdout.take().expect("piped"), sender.clone(), Line::Out);
        forward_lines(child.stderr.take().expect("piped"), sender, Line::Err);
        let name = format!("{program} {}", args.join(" "));
        Self { name, child, lines, stdout: String::new(), stderr: String::new() }
    }

    /// The rest of the first line, on either stream, that has `mark` in it, from the mark on.
    pub(crate) fn wait_for(&mut self, mark: &str) -> String {
        let deadline = Instant::now() + CEILING;
        loop {
            match self.next_line(deadline) {
                Some(line) => {
                    if let Some((_, rest)) = line.split_once(mark) {
                        return rest.to_owned();
                    }
                }
                None => panic!("no line with {mark:?} from {}\n{}\n{}", self.name, self.stdout, self.stderr),
            }
        }
    }

    fn next_line(&mut self, deadline: Instant) -> Option<String> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Line::Out(line)) => {
                self.stdout += &line;
                Some(line)
            }
            Ok(Line::Err(line)) => {
                self.stderr += &line;
                Some(line)
            }
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} neither ends nor speaks\n{}\n{}", self.name, self.stdout, self.stderr)
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a pid"));
        kill(pid, signal).expect("it runs");
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> Ended {
        let deadline = Instant::now() + CEILING;
        while self.next_line(deadline).is_some() {}
        let code = self.child.wait().expect("it was started").code();
        Ended { code, stdout: std::mem::take(&mut self.stdout), stderr: std::mem::take(&mut self.stderr) }
    }

    /// Asks it to end, as a terminal or a service manager does.
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::SIGTERM);
        self.ended()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward_lines(stream: impl Read + Send + 'static, to: Sender<Line>, wrap: fn(String) -> Line) {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).is_ok_and(|n| n > 0) {
            if to.send(wrap(std::mem::take(&mut line))).is_err() {
                return;
            }
        }
    });
}

pub(crate) fn run(program: &str, line: &str) -> Ended {
    Program::start(program, &words(line)).ended()
}

/// A software FPGA, and where to find it.
pub(crate) struct Fpga {
    pub(crate) ip: Ipv4Addr,
    pub(crate) qpn: u32,
    pub(crate) program: Program,
}

impl Fpga {
    pub(crate) fn start(options: &str) -> Self {
        let ip = address();
        let mut args = words(&format!("--device soft:{ip}"));
        args.extend(words(options));
        let mut program = Program::start(EMULATOR, &args);
        let qpn = hex(&program.wait_for("  QP Number: "));
        program.wait_for("Ready");
        Self { ip, qpn, program }
    }
}

/// How a bridge is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub(crate) ip: Ipv4Addr,
    pub(crate) qpn: u32,
    pub(crate) rkey: u32,
}

/// Starts a bridge for the FPGA.
pub(crate) fn bridge(fpga: &Fpga, options: &str) -> (Program, Reach) {
    bridge_for(fpga.ip, fpga.qpn, options)
}

/// Starts a bridge for the queue pair of a peer.
pub(crate) fn bridge_for(peer: Ipv4Addr, qpn: u32, options: &str) -> (Program, Reach) {
    let ip = address();
    let mut args = words(&format!("--device soft:{ip} --peer-ip {peer} --remote-qp {qpn:#x} --timeout 600"));
    args.extend(words(options));
    let mut program = Program::start(BRIDGE, &args);
    program.wait_for("=== Bridge Ready ===");
    let qpn = hex(&program.wait_for("  QP Number: "));
    let rkey = program.wait_for("  RKey: ").trim_end().parse().expect("decimal");
    assert_eq!(hex(&program.wait_for("  Buffer Addr: ")), 0);
    (program, Reach { ip, qpn, rkey })
}

fn hex(text: &str) -> u32 {
    let digits = text.trim_end().strip_prefix("0x").unwrap_or_else(|| panic!("{text:?} is not 0x hex"));
    u32::from_str_radix(digits, 16).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

/// Starts the playback; its report goes to `json`.
pub(crate) fn playback(fpga: &Fpga, reach: Reach, json: &Path, options: &str) -> Program {
    let mut args = words(&format!(
        "--emulator --hsb-ip {} --bridge-ip {} --bridge-qp {:#x} --bridge-rkey {} --bridge-buffer 0x0 --timeout 60",
        fpga.ip, reach.ip, reach.qpn, reach.rkey
    ));
    args.extend(["--json".to_owned(), json.display().to_string()]);
    args.extend(words(options));
    Program::start(PLAYBACK, &args)
}

pub(crate) fn report(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
}
