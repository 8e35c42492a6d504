//! Child processes that end when we do.
//!
//! Each child leads a process group, so that its own children are reached too; it is stopped by that id, and
//! reaped, when its [`Process`] is dropped. The kernel kills it should we be killed ourselves. Its pipes are always
//! drained: it never blocks on a full one.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpid, getppid};

use crate::interrupt;

/// How long between two looks at a child.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a child's last lines may take after its end; a grandchild may hold the pipe open for longer.
const LAST_LINES: Duration = Duration::from_secs(2);

/// How long a child may take to end once a signal to us was passed on.
const GRACE: Duration = Duration::from_secs(15);

/// Where a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What happens to a child's standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stderr {
    /// It is ours: cargo's progress bars work.
    Inherit,
    /// Its lines go to the sink.
    Lines,
}

/// A running child.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Pid,
    readers: Vec<mpsc::Receiver<()>>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`; `sink` gets its lines, on threads of their own.
    ///
    /// Call it from a thread that outlives the child: the kernel takes the end of that thread for ours.
    pub(crate) fn spawn<F>(command: &mut Command, stderr: Stderr, sink: F) -> Result<Self>
    where
        F: Fn(Stream, &str) + Send + Sync + 'static,
    {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        command.stderr(match stderr {
            Stderr::Inherit => Stdio::inherit(),
            Stderr::Lines => Stdio::piped(),
        });
        die_with_us(command);
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let group = Pid::from_raw(i32::try_from(child.id()).context("a process id beyond 31 bits")?);
        let sink = Arc::new(sink);
        let mut readers = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            readers.push(drain(pipe, Stream::Out, Arc::clone(&sink)));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.push(drain(pipe, Stream::Err, sink));
        }
        Ok(Self { child, group, readers, ended: None })
    }

    /// How it ended; `None` while it runs. Its last lines are in the sink when this says that it ended.
    pub(crate) fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().context("cannot wait for a child")?;
            if self.ended.is_some() {
                let deadline = Instant::now() + LAST_LINES;
                for reader in self.readers.drain(..) {
                    // Either answer is fine: the pipe was closed, or somebody else keeps it open.
                    let _ = reader.recv_timeout(deadline.saturating_duration_since(Instant::now()));
                }
            }
        }
        Ok(self.ended)
    }

    /// Waits for its end. A signal to us is passed on, and an error.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
            if let Err(signal) = interrupt::check() {
                self.stop(GRACE)?;
                return Err(signal);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Asks it to end, and kills it when it has not after `grace`.
    pub(crate) fn stop(&mut self, grace: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + grace;
        self.signal(Signal::SIGTERM);
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                self.signal(Signal::SIGKILL);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn signal(&self, signal: Signal) {
        // Only while unreaped: the id is then surely ours.
        if self.ended.is_none() {
            let sent = killpg(self.group, signal);
            debug_assert!(matches!(sent, Ok(()) | Err(Errno::ESRCH)), "{sent:?}");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if self.ended.is_none() {
            let _ = self.child.wait();
        }
    }
}

/// Runs `command` to its end, its output ours.
pub(crate) fn run(command: &mut Command) -> Result<ExitStatus> {
    Process::spawn(command, Stderr::Inherit, |_, line| println!("{line}"))?.wait()
}

/// "exit code 3", "signal 9".
pub(crate) fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// Hands each line of `pipe` to `sink`. The receiver hears of the end.
fn drain<R, F>(pipe: R, stream: Stream, sink: Arc<F>) -> mpsc::Receiver<()>
where
    R: Read + Send + 'static,
    F: Fn(Stream, &str) + Send + Sync + 'static,
{
    let (closed, at_end) = mpsc::channel();
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            sink(stream, String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
            line.clear();
        }
        drop(closed);
    });
    at_end
}

/// Lets the kernel kill the child when the thread that starts it is gone.
fn die_with_us(command: &mut Command) {
    let us = getpid();
    let in_the_child = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // We may have been killed before that took effect.
        if getppid() == us { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: between fork and exec only prctl(2) and getppid(2) are called, which are async-signal-safe, and
    // neither path allocates: an io::Error made from an errno is a plain value.
    unsafe { command.pre_exec(in_the_child) };
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    type Lines = Arc<Mutex<Vec<(Stream, String)>>>;

    fn collect() -> (Lines, impl Fn(Stream, &str) + Send + Sync + 'static) {
        let lines = Lines::default();
        let sink = Arc::clone(&lines);
        (lines, move |stream, line: &str| sink.lock().unwrap().push((stream, line.to_owned())))
    }

    fn alive(pid: Pid) -> bool {
        nix::sys::signal::kill(pid, None).is_ok()
    }

    #[test]
    fn lines_of_both_streams_reach_the_sink_before_the_end_is_told() {
        let (lines, sink) = collect();
        let mut child =
            Process::spawn(&mut shell("echo one; echo two >&2; exit 3"), Stderr::Lines, sink).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
        let mut lines = lines.lock().unwrap().clone();
        lines.sort_by_key(|(_, line)| line.clone());
        assert_eq!(lines, [(Stream::Out, "one".into()), (Stream::Err, "two".into())]);
    }

    #[test]
    fn a_chatty_child_is_never_blocked() {
        // Far more than a pipe holds, and nobody looks at it.
        let script =
            "i=0; while [ $i -lt 20000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done";
        let mut child = Process::spawn(&mut shell(script), Stderr::Lines, |_, _| {}).unwrap();
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn stop_asks_first_and_then_kills() {
        let (lines, sink) = collect();
        let polite = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.02; done";
        let mut child = Process::spawn(&mut shell(polite), Stderr::Lines, sink).unwrap();
        while lines.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        assert_eq!(how(child.stop(Duration::from_secs(20)).unwrap()), "exit code 7");
        assert!(lines.lock().unwrap().iter().any(|(_, line)| line == "bye"));

        let (lines, sink) = collect();
        let stubborn = "trap '' TERM; echo up; while :; do sleep 0.02; done";
        let mut child = Process::spawn(&mut shell(stubborn), Stderr::Lines, sink).unwrap();
        while lines.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        assert_eq!(how(child.stop(Duration::from_millis(50)).unwrap()), "signal 9");
    }

    #[test]
    fn dropping_ends_the_child_and_its_children() {
        let (lines, sink) = collect();
        let script = "sleep 600 & echo $!; wait";
        let child = Process::spawn(&mut shell(script), Stderr::Lines, sink).unwrap();
        while lines.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        let grandchild = Pid::from_raw(lines.lock().unwrap()[0].1.parse().unwrap());
        let leader = child.group;
        assert!(alive(grandchild) && alive(leader));
        drop(child);
        assert!(!alive(leader));
        // The grandchild is reaped by init, or stays a zombie where there is none.
        let gone = || {
            std::fs::read_to_string(format!("/proc/{grandchild}/stat"))
                .map_or(true, |stat| stat.contains(") Z"))
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !gone() {
            assert!(Instant::now() < deadline, "the grandchild lives on");
            thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error =
            Process::spawn(&mut Command::new("/no/such/program"), Stderr::Lines, |_, _| {}).unwrap_err();
        assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
    }
}
