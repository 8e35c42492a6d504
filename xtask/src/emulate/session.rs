//! One run: the emulator, then the bridge that knows its queue pair, then the playback tool once per workload.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Say;
use super::handshake::{BridgeEnd, BridgeLines, qp_number};
use super::link::{End, Link, Peer};
use super::options::{Options, Workload};
use super::report::Evidence;
use super::tools::{self, Programs, SurfaceCode};
use crate::interrupt;
use crate::process::{Process, Stderr, Stream, how};

/// How long emulator and bridge may take to say how they are reached.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// How long a process may take to end by itself once asked.
const GRACE: Duration = Duration::from_secs(5);
/// How much longer than the run the playback tool may take to say that its time is over.
const OVERTIME: Duration = Duration::from_secs(3);
/// How long between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Lines of a failed process that are shown.
const TAIL: usize = 20;
/// Lines that may wait to be looked at; a process says far fewer before it is ready.
const HEARD: usize = 10_000;

/// A run in progress. Dropping it ends its processes and removes its files.
pub(super) struct Session<'a> {
    options: &'a Options,
    link: &'a Link,
    programs: &'a Programs,
    code: &'a SurfaceCode,
    say: Say,
    // Dropped in this order: the processes first.
    emulator: Option<Tool>,
    bridge: Option<Tool>,
    scratch: Scratch,
    deadline: Instant,
}

impl<'a> Session<'a> {
    /// Starts the clock of `--timeout`, and nothing else.
    pub(super) fn new(
        options: &'a Options,
        link: &'a Link,
        programs: &'a Programs,
        code: &'a SurfaceCode,
        say: Say,
    ) -> Result<Self> {
        let scratch = Scratch::new()?;
        let deadline = Instant::now() + options.timeout;
        Ok(Self { options, link, programs, code, say, emulator: None, bridge: None, scratch, deadline })
    }

    /// Starts the processes and plays every workload.
    pub(super) fn play(&mut self, evidence: &mut Evidence) -> Result<()> {
        let link = self.link;
        let remote_qp = match &link.peer {
            Peer::Emulator(end) => self.start_emulator(end)?,
            Peer::Fpga { ip, qp } => {
                let port = self.options.control_port;
                self.say.line(&format!("FPGA:     queue pair {qp:#x} on {ip}, registers on UDP port {port}"));
                *qp
            }
        };
        let args = tools::bridge(self.options, link, self.code, remote_qp, &self.scratch.file("bridge"));
        let command = link.bridge.command(&self.programs.bridge);
        let bridge = self.bridge.insert(Tool::start("bridge", command, &args, self.noise())?);
        let mut lines = BridgeLines::default();
        let end = bridge.await_line(self.deadline, |line| lines.take(line))?;
        self.say.line(&format!(
            "bridge:   queue pair {:#x} on {}, {}",
            end.qpn,
            link.bridge.ip,
            self.options.mode.name()
        ));

        for workload in &self.options.workloads {
            let run = self.play_one(*workload, &end)?;
            evidence.runs.push(run);
        }
        Ok(())
    }

    /// Its queue pair.
    fn start_emulator(&mut self, end: &End) -> Result<u32> {
        let args = tools::emulator(self.options, self.link, end, &self.scratch.file("emulator"));
        let command = end.command(&self.programs.emulator);
        let emulator = self.emulator.insert(Tool::start("emulator", command, &args, self.noise())?);
        let qp = emulator.await_line(self.deadline, qp_number)?;
        self.say.line(&format!(
            "emulator: queue pair {qp:#x} on {}, registers on UDP port {}",
            end.ip, self.options.control_port
        ));
        Ok(qp)
    }

    fn play_one(&mut self, workload: Workload, end: &BridgeEnd) -> Result<Value> {
        let name = workload.name();
        let report = self.scratch.file(name);
        let started = Instant::now();
        let seconds = self.deadline.saturating_duration_since(started).as_secs() + 1;
        let args = tools::playback(self.options, self.link, workload, self.code, end, seconds, &report);
        self.say.line(&format!("playback: {name} ..."));
        let command = Command::new(&self.programs.playback);
        let mut playback = Tool::start("playback tool", command, &args, self.noise())?;
        let status = loop {
            if let Some(status) = playback.process.poll()? {
                break status;
            }
            interrupt::check()?;
            for peer in [&mut self.emulator, &mut self.bridge].into_iter().flatten() {
                if let Some(status) = peer.process.poll()? {
                    peer.end_is_told = true;
                    bail!("the {} ended ({}) in mid-run{}", peer.name, how(status), peer.last_words());
                }
            }
            if Instant::now() >= self.deadline + OVERTIME {
                bail!(
                    "{name} was not finished after {} s; take fewer messages or a longer --timeout{}",
                    self.options.timeout.as_secs(),
                    playback.last_words()
                );
            }
            thread::sleep(LOOK_EVERY);
        };
        self.say.line(&format!("playback: {name} took {:.2} s", started.elapsed().as_secs_f64()));
        let Some(mut run) = read_report(&report)? else {
            bail!("the playback tool ended ({}) without a report{}", how(status), playback.last_words());
        };
        // Exit code and report must say the same.
        if !status.success() && run["verdict"] == "PASS" {
            bail!(
                "the playback tool ended ({}) beside a report that says PASS{}",
                how(status),
                playback.last_words()
            );
        }
        run["workload"] = name.into();
        Ok(run)
    }

    /// Asks emulator and bridge to end, takes their reports, and adds what was wrong with them to the reasons.
    pub(super) fn end(&mut self, evidence: &mut Evidence) {
        // What a peer complains of at its end follows from what broke the run off. The emulator also complains
        // of messages without an answer, which the runs report better.
        let broke_off = !evidence.reasons.is_empty();
        let runs_failed = evidence.runs.iter().any(|run| run["verdict"] != "PASS");
        let emulator = Ending::of(self.emulator.take(), &self.scratch.file("emulator"));
        let bridge = Ending::of(self.bridge.take(), &self.scratch.file("bridge"));
        evidence.emulator = emulator.settle(broke_off || runs_failed, &mut evidence.reasons);
        evidence.bridge = bridge.settle(broke_off, &mut evidence.reasons);
    }

    /// Whether and where the processes' lines are shown.
    fn noise(&self) -> Option<Say> {
        self.options.verbose.then_some(self.say)
    }
}

/// What a peer left behind.
#[derive(Default)]
struct Ending {
    report: Option<Value>,
    /// It ended unasked, or left no report: the run is not good, whatever its answers.
    fault: Option<String>,
    /// It ended badly once it was asked to.
    complaint: Option<String>,
}

impl Ending {
    fn of(tool: Option<Tool>, report: &Path) -> Self {
        let ending = tool.map(|tool| Self::of_tool(tool, report)).transpose();
        ending.map_or_else(|error| Self::fault(format!("{error:#}")), Option::unwrap_or_default)
    }

    fn of_tool(mut tool: Tool, report: &Path) -> Result<Self> {
        let early = tool.process.poll()?.is_some();
        let status = tool.process.stop(GRACE)?;
        if tool.end_is_told {
            return Ok(Self::default());
        }
        let (name, how, last_words) = (tool.name, how(status), tool.last_words());
        if early {
            return Ok(Self::fault(format!("the {name} ended ({how}) before it was asked to{last_words}")));
        }
        let report = read_report(report)?;
        if report.is_none() {
            return Ok(Self::fault(format!("the {name} ended ({how}) without a report{last_words}")));
        }
        let complaint = (!status.success()).then(|| format!("the {name} ended with {how}{last_words}"));
        Ok(Self { report, complaint, fault: None })
    }

    fn fault(what: String) -> Self {
        Self { fault: Some(what), ..Self::default() }
    }

    /// The report. What was wrong is a reason, but for a complaint that follows from another one.
    fn settle(self, explained: bool, reasons: &mut Vec<String>) -> Option<Value> {
        reasons.extend(self.fault);
        reasons.extend(self.complaint.filter(|_| !explained));
        self.report
    }
}

/// `None` where the file was never written.
fn read_report(path: &Path) -> Result<Option<Value>> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(None) };
    if text.is_empty() {
        return Ok(None);
    }
    let report = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    Ok(Some(report))
}

/// One of the three programs, running.
struct Tool {
    name: &'static str,
    process: Process,
    /// Its stdout, for the handshake.
    lines: Receiver<String>,
    tail: Arc<Mutex<Tail>>,
    /// That it has ended is a reason already.
    end_is_told: bool,
}

/// The last lines of a process.
#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<String>,
    /// The last one of stderr that begins with "error", or the last one at all.
    error: String,
}

impl Tool {
    fn start(
        name: &'static str,
        mut command: Command,
        args: &[OsString],
        noise: Option<Say>,
    ) -> Result<Self> {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (heard, lines) = mpsc::sync_channel(HEARD);
        let keep = Arc::clone(&tail);
        let sink = move |stream, line: &str| {
            if let Some(say) = noise {
                say.line(&format!("  {name} | {line}"));
            }
            keep.lock().unwrap_or_else(PoisonError::into_inner).push(stream, line);
            if stream == Stream::Out {
                // Full only after the handshake, when nobody listens any more.
                let _ = heard.try_send(line.to_owned());
            }
        };
        let process = Process::spawn(command.args(args), Stderr::Lines, sink)?;
        Ok(Self { name, process, lines, tail, end_is_told: false })
    }

    /// Waits for the line from which `find` makes something.
    fn await_line<T>(&mut self, deadline: Instant, mut find: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let deadline = deadline.min(Instant::now() + HANDSHAKE);
        loop {
            match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => match find(&line) {
                    Some(found) => return Ok(found),
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            interrupt::check()?;
            if let Some(status) = self.process.poll()? {
                // It may have said it and ended at once.
                if let Some(found) = self.lines.try_iter().find_map(|line| find(&line)) {
                    return Ok(found);
                }
                self.end_is_told = true;
                bail!("the {} ended ({}) before it was ready{}", self.name, how(status), self.last_words());
            }
            if Instant::now() >= deadline {
                bail!("the {} did not say how it is reached{}", self.name, self.last_words());
            }
        }
    }

    /// ": the last error line", and below it the last lines of all.
    fn last_words(&self) -> String {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).to_string()
    }
}

impl Tail {
    fn push(&mut self, stream: Stream, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        if stream == Stream::Err && (line.starts_with("error") || !self.error.starts_with("error")) {
            self.error = line.trim().to_owned();
        }
        if self.lines.len() == TAIL {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }
}

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.error.is_empty() {
            write!(f, ": {}", self.error)?;
        }
        if !self.lines.is_empty() {
            write!(f, "\n  its last lines:")?;
        }
        self.lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// A folder of this run's own, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("roce-emulate-{}-{n}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.json"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing better can be done about files that do not go away.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::emulate::options::Workload;
    use crate::emulate::play;

    /// An emulator and a bridge that say what they must, and when asked to end leave a report and do.
    const EMULATOR: &str = r#"while [ "$1" != --json ]; do shift; done
        trap 'echo {} > "$2"; exit 0' TERM
        echo '  QP Number: 0x11'; while :; do sleep 0.02; done"#;
    const BRIDGE: &str = r#"while [ "$1" != --json ]; do shift; done
        trap 'echo {} > "$2"; exit 0' TERM
        echo '=== Bridge Ready ==='; echo '  QP Number: 0x22'; echo '  RKey: 5'; echo '  Buffer Addr: 0x0'
        while :; do sleep 0.02; done"#;
    /// Writes a good report where `--json` says.
    const PLAYBACK: &str = r#"while [ "$1" != --json ]; do shift; done
        echo '{"messages": 4, "responses": 4, "matched": 4, "payload_errors": 0, "header_errors": 0, "lost": 0,
               "lost_ids": [], "verdict": "PASS", "reasons": []}' > "$2""#;

    struct Stage {
        dir: Scratch,
        options: Options,
    }

    impl Stage {
        fn new() -> Self {
            let options = Options { workloads: vec![Workload::Increment], ..Options::default() };
            Self { dir: Scratch::new().unwrap(), options }
        }

        fn script(&self, name: &str, text: &str) -> PathBuf {
            let path = self.dir.0.join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            path
        }

        fn run(&self, emulator: &str, bridge: &str, playback: &str) -> Evidence {
            let programs = Programs {
                emulator: self.script("emulator.sh", emulator),
                bridge: self.script("bridge.sh", bridge),
                playback: self.script("playback.sh", playback),
            };
            let code = SurfaceCode::below(&crate::cargo::root()).unwrap();
            let link = Link::soft([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
            play(&self.options, &link, &programs, &code, Say { to_stderr: true })
        }

        fn fails(&self, emulator: &str, bridge: &str, playback: &str, wanted: &[&str]) {
            let evidence = self.run(emulator, bridge, playback);
            let reasons = evidence.reasons.join("\n");
            for part in wanted {
                assert!(reasons.contains(part), "{part:?} is not in: {reasons}");
            }
        }
    }

    #[test]
    fn a_good_run_has_its_reports_and_no_complaint() {
        let evidence = Stage::new().run(EMULATOR, BRIDGE, PLAYBACK);
        assert_eq!(evidence.reasons, [""; 0]);
        assert_eq!(evidence.runs.len(), 1);
        assert_eq!(
            (&evidence.runs[0]["workload"], &evidence.runs[0]["matched"]),
            (&"increment".into(), &4.into())
        );
    }

    #[test]
    fn the_bridge_is_told_the_emulators_queue_pair_and_the_tool_the_bridges() {
        let stage = Stage::new();
        let dir = stage.dir.0.display();
        let bridge = format!("echo \"$@\" > {dir}/bridge.args\n{BRIDGE}");
        let playback = format!("echo \"$@\" > {dir}/playback.args\n{PLAYBACK}");
        assert_eq!(stage.run(EMULATOR, &bridge, &playback).reasons, [""; 0]);
        let said = |name: &str| fs::read_to_string(stage.dir.0.join(name)).unwrap();
        assert!(said("bridge.args").contains("--remote-qp 0x11 "), "{}", said("bridge.args"));
        let ends = "--bridge-qp 0x22 --bridge-rkey 5 --bridge-buffer 0x0 ";
        assert!(said("playback.args").contains(ends), "{}", said("playback.args"));
    }

    #[test]
    fn a_process_that_dies_before_it_is_ready_is_quoted() {
        let dies = "echo 'error: port 4791 is taken' >&2; exit 1";
        let stage = Stage::new();
        stage.fails(
            dies,
            BRIDGE,
            PLAYBACK,
            &["the emulator ended (exit code 1) before it was ready: error: port 4791"],
        );
        stage.fails(
            EMULATOR,
            dies,
            PLAYBACK,
            &["the bridge ended (exit code 1) before it was ready: error: port 4791"],
        );
    }

    #[test]
    fn a_silent_process_is_not_waited_for_beyond_the_timeout() {
        let mut stage = Stage::new();
        let silent = "echo 'QP Number: 0x11'; while :; do sleep 0.02; done";
        stage.options.timeout = Duration::from_millis(300);
        stage.fails(silent, BRIDGE, PLAYBACK, &["the emulator did not say how it is reached"]);
        // Emulator and bridge must be up by then, on a busy machine too.
        stage.options.timeout = Duration::from_secs(10);
        stage.fails(EMULATOR, BRIDGE, silent, &["increment was not finished after 10 s"]);
    }

    #[test]
    fn a_peer_killed_in_mid_run_is_named() {
        let stage = Stage::new();
        let pid = stage.dir.0.join("pid").display().to_string();
        let bridge = format!("echo $$ > {pid}\n{BRIDGE}");
        let playback = format!("kill -9 $(cat {pid}); while :; do sleep 0.02; done");
        stage.fails(EMULATOR, &bridge, &playback, &["the bridge ended (signal 9) in mid-run"]);
        let emulator = format!("echo $$ > {pid}\n{EMULATOR}");
        stage.fails(&emulator, BRIDGE, &playback, &["the emulator ended (signal 9) in mid-run"]);
    }

    #[test]
    fn a_tool_without_report_or_against_it_fails() {
        let stage = Stage::new();
        stage.fails(EMULATOR, BRIDGE, "exit 0", &["ended (exit code 0) without a report"]);
        stage.fails(EMULATOR, BRIDGE, "kill -9 $$", &["ended (signal 9) without a report"]);
        let liar = format!("{PLAYBACK}\nexit 1");
        stage.fails(EMULATOR, BRIDGE, &liar, &["ended (exit code 1) beside a report that says PASS"]);
    }

    #[test]
    fn peers_that_end_badly_fail_the_run() {
        let stage = Stage::new();
        let bad = BRIDGE.replace("exit 0", "echo error: lost count >&2; exit 3");
        stage.fails(EMULATOR, &bad, PLAYBACK, &["the bridge ended with exit code 3: error: lost count"]);
        let bad = EMULATOR.replace("exit 0", "exit 1");
        stage.fails(&bad, BRIDGE, PLAYBACK, &["the emulator ended with exit code 1"]);
    }

    /// A playback that kills the process whose id is in `pid` once its own report is written.
    fn kills_at_the_end(pid: &str) -> String {
        format!("{PLAYBACK}\nkill -9 $(cat {pid})")
    }

    #[test]
    fn a_peer_that_dies_at_the_end_of_a_good_playback_fails_the_run() {
        let stage = Stage::new();
        let pid = stage.dir.0.join("pid").display().to_string();
        let bridge = format!("echo $$ > {pid}\n{BRIDGE}");
        let emulator = format!("echo $$ > {pid}\n{EMULATOR}");
        stage.fails(EMULATOR, &bridge, &kills_at_the_end(&pid), &["the bridge ended (signal 9) "]);
        stage.fails(&emulator, BRIDGE, &kills_at_the_end(&pid), &["the emulator ended (signal 9) "]);
    }

    #[test]
    fn a_peer_that_ended_well_and_unasked_is_a_fault() {
        let stage = Stage::new();
        let script = stage.script("bridge.sh", "exit 0");
        let mut tool = Tool::start("bridge", Command::new(&script), &[], None).unwrap();
        while tool.process.poll().unwrap().is_none() {
            thread::sleep(LOOK_EVERY);
        }
        let ending = Ending::of(Some(tool), Path::new("/no/such/report"));
        let mut reasons = Vec::new();
        assert_eq!(ending.settle(true, &mut reasons), None);
        assert_eq!(reasons, ["the bridge ended (exit code 0) before it was asked to"]);
    }

    #[test]
    fn an_early_end_is_told_beside_what_broke_the_run_off_and_once() {
        let stage = Stage::new();
        let pid = stage.dir.0.join("pid").display().to_string();
        let bridge = format!("echo $$ > {pid}\n{BRIDGE}");
        let playback = format!("kill -9 $(cat {pid}); exit 1");
        let evidence = stage.run(EMULATOR, &bridge, &playback);
        let told = |part: &str| evidence.reasons.iter().filter(|reason| reason.contains(part)).count();
        assert_eq!(told("the bridge ended (signal 9)"), 1, "{:?}", evidence.reasons);
    }

    #[test]
    fn a_peer_without_report_fails_the_run() {
        let stage = Stage::new();
        let quiet = |script: &str| script.replace("echo {} > \"$2\";", "");
        let reason = |name: &str| format!("the {name} ended (exit code 0) without a report");
        stage.fails(EMULATOR, &quiet(BRIDGE), PLAYBACK, &[&reason("bridge")]);
        stage.fails(&quiet(EMULATOR), BRIDGE, PLAYBACK, &[&reason("emulator")]);
    }

    #[test]
    fn the_files_of_a_run_go_with_it() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.0.clone();
        fs::write(scratch.file("bridge"), "{}").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        drop(scratch);
        assert!(!path.exists());
    }
}
