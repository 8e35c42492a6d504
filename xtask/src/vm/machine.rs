//! Machines: each boots the guest for one job and ends with it.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::console::{Piece, Said, Scanner};
use super::ending::Ending;
use super::guest;
use super::job::{self, Job, Share, Task};
use super::qemu::{self, Accel, Choice, Ports};
use super::scratch::Scratch;
use super::terminal::{self, Terminal};
use super::{Progress, need};
use crate::process::{Process, Stderr, Stream, how};
use crate::{cargo, interrupt};

/// How long from the first line until the command runs.
const SET_UP: Duration = Duration::from_secs(60);
/// How long QEMU may take to end once the guest has said how the command ended.
const SHUT_DOWN: Duration = Duration::from_secs(30);
/// How long between two looks at signals and deadlines.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Bytes taken from a port at once, and how many such pieces may wait.
const CHUNK: usize = 16 << 10;
const CHUNKS: usize = 256;
/// Bytes of the console that are kept to be shown when the guest is lost.
const TAIL: usize = 4 << 10;

/// Who gets the command's output. An error ends the machine.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(Stream, &[u8]) -> io::Result<()>;

/// What boots and boots again.
#[derive(Debug)]
pub(crate) struct Host {
    vm: PathBuf,
    scratch: Scratch,
    release: String,
    shares: Vec<Share>,
    /// Asked for; otherwise the best there is.
    accel: Option<Accel>,
    progress: Progress,
}

impl Host {
    /// Builds the guest where that is needed.
    pub(crate) fn new(accel: Option<Accel>, progress: Progress) -> Result<Self> {
        need::check()?;
        let target = cargo::target_dir()?;
        let vm = target.join("vm");
        let scratch = Scratch::new(&vm)?;
        let release = guest::lend(&vm, scratch.path(), progress)?;
        let shares = vec![
            Share { path: cargo::root(), writable: false },
            // Inside the root or not: mounted after it.
            Share { path: target, writable: true },
        ];
        Ok(Self { vm, scratch, release, shares, accel, progress })
    }

    /// Boots a machine, runs the job in it and returns its exit status. A machine that does not come up is tried again, with
    /// TCG when KVM was to blame; an error says that a machine was lost or stopped, which no exit status does.
    pub(crate) fn run(&self, job: &Job, sink: Sink<'_>) -> Result<u8> {
        let choice = Choice::new(&self.vm);
        let mut accel = self.accel.unwrap_or_else(|| choice.best());
        let mut tries = 0;
        loop {
            let patience = accel.patience();
            let why = match self.boot(job, accel, patience[tries], sink)? {
                Booted::Ended(status) => return Ok(status),
                Booted::NotUp(why) => why,
            };
            tries += 1;
            if accel == Accel::Kvm && self.accel.is_none() {
                let memory = choice.remember();
                self.progress.line(&format!(
                    "KVM does not work here ({why}); from now on TCG, until {} goes",
                    memory.display()
                ));
                (accel, tries) = (Accel::Tcg, 0);
            } else if tries == patience.len() {
                bail!("the guest did not come up in {tries} tries with {}; the last: {why}", accel.name());
            } else {
                self.progress.line(&format!("the guest did not come up ({why}); trying again"));
            }
        }
    }

    fn boot(&self, job: &Job, accel: Accel, patience: Duration, sink: Sink<'_>) -> Result<Booted> {
        self.progress.line(&format!(
            "booting Linux {} with {}, {} CPUs, {} MiB, for: {}",
            self.release,
            accel.name(),
            job.smp,
            job.mem,
            job::shown(&job.task)
        ));
        let token = token()?;
        self.write_initrd(job, &token)?;
        let mut machine = Machine::start(self, job, accel, &token)?;
        machine.watch(patience, sink)
    }

    /// The guest's file system, and behind it the job.
    fn write_initrd(&self, job: &Job, token: &str) -> Result<()> {
        let initramfs = self.scratch.path().join("initramfs");
        let mut bytes =
            fs::read(&initramfs).with_context(|| format!("cannot read {}", initramfs.display()))?;
        let window = (job.task == Task::Shell).then(terminal::window).flatten();
        bytes.extend(job.archive(token, &self.shares, window.as_deref()));
        let initrd = self.scratch.path().join("initrd");
        fs::write(&initrd, bytes).with_context(|| format!("cannot write {}", initrd.display()))
    }
}

/// What came of a boot.
enum Booted {
    Ended(u8),
    /// Why the job never ran.
    NotUp(String),
}

/// Sixteen hex digits that nobody guesses.
fn token() -> Result<String> {
    let mut bytes = [0; 8];
    let source = "/dev/urandom";
    fs::File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .with_context(|| format!("cannot read {source}"))?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

/// A QEMU at work. Dropping it ends it.
struct Machine<'a> {
    job: &'a Job,
    accel: Accel,
    progress: Progress,
    qemu: Process,
    /// What QEMU itself says.
    complaints: Arc<Mutex<Vec<String>>>,
    events: Receiver<Event>,
    events_in: SyncSender<Event>,
    console: UnixStream,
    started: Instant,
    seen: Seen,
}

/// What is known of the guest.
#[derive(Debug)]
struct Seen {
    console: Scanner,
    output: Scanner,
    open: usize,
    phase: Phase,
    /// All of the command's stdout has come.
    ended: bool,
    ending: Option<Ending>,
    broken: Option<String>,
    /// The last that the console showed.
    tail: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing has come from the guest's first process.
    Dark,
    SettingUp,
    /// The command runs.
    Running,
}

impl Phase {
    /// On a busy host one may be over before it is seen.
    fn begun_since(self, before: Self) -> Option<Self> {
        (self != before).then_some(self)
    }
}

/// A port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    /// The kernel's messages, the first process's lines, the command's stderr; a shell's everything.
    Console,
    /// The command's stdout.
    Output,
}

enum Event {
    Bytes(Port, Vec<u8>),
    Closed,
    /// The person at the terminal wants to leave.
    Escape,
}

impl<'a> Machine<'a> {
    fn start(host: &Host, job: &'a Job, accel: Accel, token: &str) -> Result<Self> {
        let (console, their_console) = port()?;
        let (output, their_output) = port()?;
        let ports = Ports { console: their_console.as_raw_fd(), output: their_output.as_raw_fd() };
        let dir = host.scratch.path();
        let args = qemu::arguments(job, accel, dir, &host.shares, ports, host.progress.verbose());
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&complaints);
        let sink =
            move |_, line: &str| keep.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        let qemu = Process::spawn(Command::new(qemu::PROGRAM).args(args), Stderr::Lines, sink)?;
        // QEMU has its own by now; ours would keep the ports open after its end.
        drop((their_console, their_output));
        let (events_in, events) = mpsc::sync_channel(CHUNKS);
        read_port(Port::Console, console.try_clone().context("cannot share a socket")?, events_in.clone());
        read_port(Port::Output, output, events_in.clone());
        Ok(Self {
            job,
            accel,
            progress: host.progress,
            qemu,
            complaints,
            events,
            events_in,
            console,
            started: Instant::now(),
            seen: Seen::new(token),
        })
    }

    /// Sees it through to its end.
    fn watch(&mut self, patience: Duration, sink: Sink<'_>) -> Result<Booted> {
        let mut deadline = self.started + patience;
        let mut terminal = None;
        let mut status = None;
        while status.is_none() || self.seen.open > 0 {
            let before = self.seen.phase;
            if self.take_event(sink)? {
                bail!("left the machine, which is off now");
            }
            interrupt::check()?;
            match self.seen.phase.begun_since(before) {
                Some(Phase::SettingUp) => deadline = Instant::now() + SET_UP,
                Some(Phase::Running) => {
                    terminal = self.running()?;
                    deadline = Instant::now() + self.job.timeout.unwrap_or(FOR_EVER);
                }
                Some(Phase::Dark) | None => {}
            }
            if let Some(reason) = &self.seen.broken {
                bail!("the guest could not set itself up: {reason}");
            }
            if status.is_none() {
                status = self.qemu.poll()?;
                let ended = status.is_some() || self.seen.ending.is_some();
                if ended && deadline > Instant::now() + SHUT_DOWN {
                    deadline = Instant::now() + SHUT_DOWN;
                }
            }
            if Instant::now() >= deadline {
                return self.too_late(patience);
            }
        }
        drop(terminal);
        self.seen.flush(sink)?;
        self.verdict(status)
    }

    /// Takes what the guest sent next, for a moment. True: the person wants to leave.
    fn take_event(&mut self, sink: Sink<'_>) -> Result<bool> {
        match self.events.recv_timeout(LOOK_EVERY) {
            Ok(Event::Bytes(port, bytes)) => self.seen.take(port, &bytes, self.progress, sink)?,
            Ok(Event::Closed) => self.seen.open -= 1,
            Ok(Event::Escape) => return Ok(true),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        Ok(false)
    }

    /// The command runs from here on; the terminal is the shell's if that is what runs.
    fn running(&mut self) -> Result<Option<Terminal>> {
        let seconds = self.started.elapsed().as_secs_f64();
        self.progress.line(&format!("up after {seconds:.1} s"));
        if self.job.task != Task::Shell {
            return Ok(None);
        }
        self.progress.line("the shell's `exit` ends the machine; so does Ctrl-]");
        let console = self.console.try_clone().context("cannot share a socket")?;
        let leave = self.events_in.clone();
        terminal::connect(console, move || drop(leave.send(Event::Escape))).map(Some)
    }

    fn too_late(&self, patience: Duration) -> Result<Booted> {
        let seconds = patience.as_secs();
        match (self.seen.phase, self.job.timeout) {
            (Phase::Dark, _) => Ok(Booted::NotUp(format!("no sign of life within {seconds} s"))),
            (Phase::SettingUp, _) => Ok(Booted::NotUp(format!("not set up within {} s", SET_UP.as_secs()))),
            (Phase::Running, _) if self.seen.ending.is_some() => {
                bail!("the guest said how the command ended, but did not go{}", self.seen.last_words())
            }
            (Phase::Running, Some(timeout)) => {
                bail!(
                    "the command did not end within {} s; --timeout gives it longer{}",
                    timeout.as_secs(),
                    self.seen.last_words()
                )
            }
            (Phase::Running, None) => bail!("QEMU ended, but its ports did not close"),
        }
    }

    /// QEMU has ended, and everything that it had to say is here.
    fn verdict(&self, status: Option<ExitStatus>) -> Result<Booted> {
        let status = status.context("QEMU still runs")?;
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner).join("; ");
        let qemu = format!(
            "QEMU ended with {}{}{complaints}",
            how(status),
            if complaints.is_empty() { "" } else { ": " }
        );
        if self.seen.phase != Phase::Running {
            let refused = self.accel == Accel::Tcg && status.code() == Some(1) && self.seen.tail.is_empty();
            if refused && self.seen.phase == Phase::Dark {
                bail!("QEMU does not start: {complaints}");
            }
            return Ok(Booted::NotUp(format!("{qemu}{}", self.seen.last_words())));
        }
        let Some(ending) = self.seen.ending else {
            bail!("the guest was lost while the command ran; {qemu}{}", self.seen.last_words());
        };
        if !ending.agrees_with(status.code()) {
            bail!("the guest said exit status {}, but {qemu}{}", ending.0, self.seen.last_words());
        }
        if !self.seen.ended {
            bail!("the last of the command's output was lost (its exit status: {})", ending.0);
        }
        Ok(Booted::Ended(ending.0))
    }
}

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(3600 * 24 * 365);

impl Seen {
    fn new(token: &str) -> Self {
        Self {
            console: Scanner::new(token),
            output: Scanner::new(token),
            open: 2,
            phase: Phase::Dark,
            ended: false,
            ending: None,
            broken: None,
            tail: Vec::new(),
        }
    }

    fn take(&mut self, port: Port, bytes: &[u8], progress: Progress, sink: Sink<'_>) -> Result<()> {
        let pieces = match port {
            Port::Console => self.console.feed(bytes),
            Port::Output => self.output.feed(bytes),
        };
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => self.pass_on(port, &bytes, progress, sink)?,
                Piece::Said(said) => self.hear(said, progress),
            }
        }
        Ok(())
    }

    fn hear(&mut self, said: Said, progress: Progress) {
        match said {
            Said::Hello(seconds) => {
                self.phase = Phase::SettingUp;
                progress.detail(&format!("the kernel is up after {seconds} s of its own time"));
            }
            Said::Note(text) => progress.line(&text),
            Said::Broken(reason) => self.broken = Some(reason),
            Said::Ready(_) => {
                self.phase = Phase::Running;
                // What the kernel said of its boot explains nothing from here on.
                self.tail.clear();
            }
            Said::End => self.ended = true,
            Said::Exit(ending) => self.ending = Some(ending),
            Said::Unknown(text) => progress.line(&format!("the guest says what nobody understands: {text}")),
        }
    }

    fn pass_on(&mut self, port: Port, bytes: &[u8], progress: Progress, sink: Sink<'_>) -> Result<()> {
        if port == Port::Console {
            self.tail.extend_from_slice(bytes);
            let surplus = self.tail.len().saturating_sub(TAIL);
            self.tail.drain(..surplus);
        }
        // Before the command runs the kernel alone speaks.
        if self.phase != Phase::Running && !progress.verbose() {
            return Ok(());
        }
        let stream = if port == Port::Console { Stream::Err } else { Stream::Out };
        sink(stream, bytes).context("cannot pass on the command's output")
    }

    fn flush(&mut self, sink: Sink<'_>) -> Result<()> {
        for (port, rest) in [(Port::Console, self.console.rest()), (Port::Output, self.output.rest())] {
            if let Some(Piece::Bytes(bytes)) = rest {
                self.pass_on(port, &bytes, Progress::Quiet, sink)?;
            }
        }
        Ok(())
    }

    /// ": kernel panic", and below it the console's last lines.
    fn last_words(&self) -> String {
        LastWords(&self.tail).to_string()
    }
}

struct LastWords<'a>(&'a [u8]);

impl fmt::Display for LastWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LINES: usize = 20;
        let text = String::from_utf8_lossy(self.0);
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        if let Some(panic) = lines.iter().find_map(|line| line.split_once("Kernel panic")) {
            write!(f, "; kernel panic{}", panic.1)?;
        }
        if !lines.is_empty() {
            write!(f, "\n  the console's last lines:")?;
        }
        lines[lines.len().saturating_sub(LINES)..].iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Our end of a port, and QEMU's, which outlives exec.
fn port() -> Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair().context("cannot make a pair of sockets")?;
    fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot hand on a socket")?;
    Ok((ours, theirs.into()))
}

fn read_port(port: Port, mut socket: UnixStream, events: SyncSender<Event>) {
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        loop {
            match socket.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    // Nobody listens any more when the machine was given up.
                    if events.send(Event::Bytes(port, chunk[..n].to_vec())).is_err() {
                        return;
                    }
                }
            }
        }
        let _ = events.send(Event::Closed);
    });
}

/// Where a job runs when nobody says where: here, if the guest has it too.
pub(crate) fn working_folder(host: &Host) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let shared = host.shares.iter().any(|share| here.starts_with(&share.path));
    if shared { here } else { Path::to_path_buf(&host.shares[0].path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(seen: &mut Seen, text: &str) -> (Phase, Vec<u8>) {
        let mut said = Vec::new();
        let mut sink = |_, bytes: &[u8]| {
            said.extend_from_slice(bytes);
            Ok(())
        };
        seen.take(Port::Console, text.as_bytes(), Progress::Quiet, &mut sink).unwrap();
        (seen.phase, said)
    }

    /// The command's time begins, and a shell gets its terminal, in however few pieces the guest's lines come.
    #[test]
    fn the_command_runs_though_its_set_up_was_never_seen() {
        let mut seen = Seen::new("7f");
        let (phase, said) = hear(&mut seen, "boot\n[vm 7f] hello 1\ndmesg\n[vm 7f] ready 2\nout");
        assert_eq!(phase.begun_since(Phase::Dark), Some(Phase::Running));
        assert_eq!(said, b"out", "before the command runs the kernel alone speaks");
        assert_eq!(hear(&mut seen, "more").0.begun_since(Phase::Running), None);
    }
}
