//! `cargo xtask test`: everything that can be tested on this machine, and a table of what came of it.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process::{Process, Stderr, how};
use crate::{cargo, interrupt, only_flag, outside, setup, table};

/// Something to test.
struct Step {
    name: &'static str,
    /// Left out by `--quick`.
    slow: bool,
    what: What,
}

enum What {
    /// Commands that must all succeed.
    Commands(Vec<Command>),
    /// A test harness: it must succeed, and have run something.
    Tests(Command),
    /// A command that must fail, and say this.
    Fails(Command, &'static str),
    /// Needs something that is not here.
    Missing(&'static str),
}

/// Tests that ran, as their harness counts them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    failed: u64,
}

/// What came of a step.
struct Outcome {
    name: &'static str,
    state: State,
    tests: Tests,
    took: Duration,
}

enum State {
    Passed,
    Failed(String),
    Skipped(&'static str),
}

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let quick = only_flag(args, Some("--quick"))?;
    interrupt::install()?;
    let mut outcomes = Vec::new();
    if !quick && !setup::complete(false)? {
        eprintln!("What needs those will fail.");
    }
    for step in steps()?.into_iter().filter(|step| !(quick && step.slow)) {
        outcomes.push(step.run()?);
    }
    let rows: Vec<Vec<String>> = outcomes.iter().map(Outcome::row).collect();
    println!("\n{}", table::render(&["step", "state", "tests", "seconds", "note"], &rows));
    if quick {
        println!("--quick left out what takes minutes.");
    }
    let total = Total::of(&outcomes);
    println!("{total}");
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// In the order in which a mistake shows soonest.
fn steps() -> Result<Vec<Step>> {
    let quick = |name, what| Step { name, slow: false, what };
    let slow = |name, what| Step { name, slow: true, what };
    let one = |command| What::Commands(vec![command]);
    let mut steps = vec![
        quick("formatting", formatting()),
        quick("tidy", one(ourselves(&["tidy"])?)),
        quick("lints", lints()),
        quick("unit and integration tests", What::Tests(tests())),
        quick("doc tests", What::Tests(cargo::command(["test", "--doc", "--quiet"]))),
        slow("documentation", one(documentation())),
        slow("loom models", What::Tests(loom()?)),
        slow("fifty set-ups and closes under valgrind", What::Tests(ignored("roce-conformance", "soft"))),
        slow("the same from C", What::Tests(ignored("roce-capi", "valgrind"))),
        slow("instructions per message", one(instructions())),
        slow("crates used from outside", one(ourselves(&["outside"])?)),
    ];
    for (name, flags) in EMULATIONS {
        steps.push(slow(name, one(emulate(flags)?)));
    }
    let lossy = ["--workload", "increment", "--drop-rate", "0.02", "--seed", "7"];
    steps.push(slow("emulate with losses: must fail", What::Fails(emulate(&lossy)?, "RESULT: FAIL (lost ")));
    steps.push(slow("libibverbs, without a device", for_devices(verbs())));
    steps.push(slow("an installed tree", What::Tests(ignored("xtask", "install"))));
    steps.push(slow("RDMA devices, in a virtual machine", for_devices(ourselves(&["vm-test"])?)));
    Ok(steps)
}

const EMULATIONS: [(&str, &[&str]); 5] = [
    ("emulate", &[]),
    ("emulate --unified", &["--unified"]),
    ("emulate --forward", &["--forward"]),
    ("emulate --personality lenient", &["--personality", "lenient"]),
    ("emulate --immediate hsb-2510", &["--immediate", "hsb-2510"]),
];

fn formatting() -> What {
    if !has("fmt") {
        return What::Missing("no rustfmt; `cargo xtask setup` installs it");
    }
    let mut commands = vec![cargo::command(["fmt", "--all", "--check"])];
    commands.extend(outside::manifests().into_iter().map(|manifest| {
        let mut command = cargo::command(["fmt", "--check", "--manifest-path"]);
        command.arg(manifest);
        command
    }));
    What::Commands(commands)
}

fn lints() -> What {
    if !has("clippy") {
        return What::Missing("no clippy; `cargo xtask setup` installs it");
    }
    What::Commands(vec![cargo::command(["clippy", "--all-targets", "--quiet", "--", "-D", "warnings"])])
}

fn tests() -> Command {
    if has("nextest") {
        return cargo::command(["nextest", "run", "--no-fail-fast"]);
    }
    cargo::command(["test", "--lib", "--bins", "--tests", "--no-fail-fast", "--quiet"])
}

/// Against the counts that are kept.
fn instructions() -> Command {
    cargo::command(["bench", "--package", "roce-conformance", "--bench", "instructions", "--quiet"])
}

/// Tests that need what some machines cannot have.
fn for_devices(tests: Command) -> What {
    match setup::lacking_for_verbs().as_slice() {
        [] => What::Tests(tests),
        _ => What::Missing("what builds for RDMA devices is not here; `cargo xtask setup` says what"),
    }
}

/// The unit tests of what speaks to libibverbs; those that need a device are for `vm-test`.
fn verbs() -> Command {
    let mut tests = cargo::command(["test", "--package", "roce-verbs", "--lib", "--quiet"]);
    cargo::find_libclang(&mut tests);
    tests
}

/// The tests of a file that take too long for every day.
fn ignored(package: &str, test: &str) -> Command {
    cargo::command(["test", "--package", package, "--test", test, "--quiet", "--", "--ignored"])
}

fn documentation() -> Command {
    let mut doc = cargo::command(["doc", "--no-deps", "--quiet"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    doc
}

/// In a folder of its own: the flag would rebuild everything else.
fn loom() -> Result<Command> {
    let mut loom = cargo::command(["test", "--package", "roce-ring", "--release", "--test", "loom"]);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    loom.env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", format!("{flags} --cfg roce_loom").trim_start())
        .env("CARGO_TARGET_DIR", cargo::target_dir()?.join("loom"));
    Ok(loom)
}

/// On addresses of this process's own, so that runs side by side do not meet.
fn emulate(flags: &[&str]) -> Result<Command> {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let ip = |side: u8| Ipv4Addr::new(127, 0x40 | side << 4 | (a & 0xF), b, c).to_string();
    let mut command = ourselves(&["emulate", "--bridge-ip", &ip(1), "--emulator-ip", &ip(2)])?;
    command.args(flags);
    Ok(command)
}

fn ourselves(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.current_dir(cargo::root()).args(args);
    Ok(command)
}

/// Does cargo have this command?
fn has(subcommand: &str) -> bool {
    let mut version = cargo::command([subcommand, "--version"]);
    version.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

impl Step {
    fn run(self) -> Result<Outcome> {
        println!("\n=== {} ===", self.name);
        let started = Instant::now();
        let mut tests = Tests::default();
        let state = match self.what {
            What::Missing(why) => State::Skipped(why),
            What::Commands(commands) => run_all(commands)?,
            What::Tests(mut harness) => {
                let (status, ran) = run_counting(&mut harness)?;
                tests = ran;
                match ran {
                    _ if !status.success() => State::Failed(how(status)),
                    Tests { passed: 0, .. } => State::Failed("ran no test".to_owned()),
                    Tests { .. } => State::Passed,
                }
            }
            What::Fails(mut command, wanted) => {
                let (status, said) = run_looking(&mut command, move |line| line.starts_with(wanted))?;
                if status.code() == Some(1) && said {
                    State::Passed
                } else {
                    State::Failed(format!("{}; wanted exit code 1 and {wanted:?}", how(status)))
                }
            }
        };
        Ok(Outcome { name: self.name, state, tests, took: started.elapsed() })
    }
}

fn run_all(commands: Vec<Command>) -> Result<State> {
    for mut command in commands {
        let (status, _) = run_looking(&mut command, |_| false)?;
        if !status.success() {
            return Ok(State::Failed(how(status)));
        }
    }
    Ok(State::Passed)
}

/// Counts the tests that the command speaks of.
pub(crate) fn run_counting(command: &mut Command) -> Result<(ExitStatus, Tests)> {
    let counted = Arc::new(Mutex::new(Tests::default()));
    let count = Arc::clone(&counted);
    let look = move |line: &str| {
        count.lock().unwrap_or_else(PoisonError::into_inner).add(line);
        false
    };
    let (status, _) = run_looking(command, look)?;
    let tests = *counted.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((status, tests))
}

/// Shows what the command says. Did `look` find its line?
fn run_looking<F>(command: &mut Command, look: F) -> Result<(ExitStatus, bool)>
where
    F: Fn(&str) -> bool + Send + Sync + 'static,
{
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let found = Arc::new(AtomicBool::new(false));
    let saw = Arc::clone(&found);
    let sink = move |_, line: &str| {
        println!("{line}");
        saw.fetch_or(look(line), Ordering::Relaxed);
    };
    let status = Process::spawn(command, Stderr::Lines, sink)?.wait()?;
    Ok((status, found.load(Ordering::Relaxed)))
}

impl Tests {
    /// Takes the summaries of libtest ("test result: ok. 3 passed; 0 failed; ...") and of nextest
    /// ("Summary [0.1s] 3 tests run: 2 passed (1 slow), 1 failed, 0 skipped").
    fn add(&mut self, line: &str) {
        let summary = without_colours(line);
        // Where nextest shows what a failed test said, libtest's own summary stands indented.
        if !summary.starts_with("test result: ") && !summary.trim_start().starts_with("Summary [") {
            return;
        }
        let count = |word| before(&summary, word).unwrap_or(0);
        self.passed += count("passed");
        self.failed += ["failed", "timed out", "exec failed"].map(count).iter().sum::<u64>();
    }
}

/// The number right before `word`.
pub(crate) fn before(text: &str, word: &str) -> Option<u64> {
    let at = text.find(&format!(" {word}"))?;
    text[..at].rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Without the escape sequences that colour a terminal.
fn without_colours(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('\u{1b}') {
        plain.push_str(&rest[..at]);
        let sequence = &rest[at..];
        rest = sequence.find(|c: char| c.is_ascii_alphabetic()).map_or("", |end| &sequence[end + 1..]);
    }
    plain + rest
}

impl Outcome {
    fn row(&self) -> Vec<String> {
        let (state, note) = match &self.state {
            State::Passed => ("passed", ""),
            State::Failed(how) => ("FAILED", how.as_str()),
            State::Skipped(why) => ("skipped", *why),
        };
        let tests = match self.tests {
            Tests { passed: 0, failed: 0 } => String::new(),
            Tests { passed, failed } => (passed + failed).to_string(),
        };
        let seconds = format!("{:.1}", self.took.as_secs_f64());
        vec![self.name.to_owned(), state.to_owned(), tests, seconds, note.to_owned()]
    }
}

/// The closing count: a step with tests counts as its tests, any other as one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Total {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Total {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut total = Self::default();
        for Outcome { state, tests, .. } in outcomes {
            match state {
                State::Skipped(_) => total.skipped += 1,
                State::Passed => total.passed += tests.passed.max(1),
                State::Failed(_) => {
                    total.passed += tests.passed;
                    // It failed without a failed test where something did not build.
                    total.failed += tests.failed.max(1);
                }
            }
        }
        total
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 { write!(f, ", {} skipped", self.skipped) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lines: &[&str]) -> Tests {
        let mut tests = Tests::default();
        lines.iter().for_each(|line| tests.add(line));
        tests
    }

    #[test]
    fn libtest_summaries_are_added() {
        let lines = [
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "running 5 tests",
            "test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "the word passed: 9 passed",
            "    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 10 filtered out; finished in 0.5s",
        ];
        assert_eq!(counted(&lines), Tests { passed: 7, failed: 1 });
    }

    #[test]
    fn nextest_summaries_are_added_through_colours() {
        let plain = "     Summary [   5.123s] 34 tests run: 33 passed (1 slow), 1 failed, 2 skipped";
        assert_eq!(counted(&[plain]), Tests { passed: 33, failed: 1 });
        let coloured = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.1s] \u{1b}[1m2\u{1b}[0m tests run: \
                        \u{1b}[1m2\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m skipped";
        assert_eq!(counted(&[coloured]), Tests { passed: 2, failed: 0 });
    }

    fn outcome(state: State, passed: u64, failed: u64) -> Outcome {
        Outcome { name: "x", state, tests: Tests { passed, failed }, took: Duration::ZERO }
    }

    #[test]
    fn the_closing_count_is_honest() {
        let all = [
            outcome(State::Passed, 0, 0),
            outcome(State::Passed, 10, 0),
            outcome(State::Failed("exit code 101".into()), 7, 2),
            outcome(State::Failed("exit code 101".into()), 0, 0),
            outcome(State::Skipped("not here"), 0, 0),
        ];
        let total = Total::of(&all);
        assert_eq!(total, Total { passed: 18, failed: 3, skipped: 1 });
        assert_eq!(total.to_string(), "18 passed, 3 failed, 1 skipped");
        assert_eq!(Total::of(&all[..2]).to_string(), "11 passed, 0 failed");
    }

    #[test]
    fn a_step_fails_with_its_command() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let step = |what| Step { name: "x", slow: false, what };
        let passed = step(What::Commands(vec![shell("true"), shell("true")])).run().unwrap();
        assert!(matches!(passed.state, State::Passed));
        let failed = step(What::Commands(vec![shell("exit 3"), shell("true")])).run().unwrap();
        assert!(matches!(failed.state, State::Failed(how) if how == "exit code 3"));
        let fails = |script| step(What::Fails(shell(script), "RESULT")).run().unwrap().state;
        assert!(matches!(fails("echo RESULT; exit 1"), State::Passed));
        assert!(matches!(fails("echo RESULT"), State::Failed(_)));
        assert!(matches!(fails("exit 1"), State::Failed(_)));
        let tests = |script| step(What::Tests(shell(script))).run().unwrap();
        let two = tests("echo 'test result: ok. 2 passed; 0 failed; 0 ignored'");
        assert!(matches!(two.state, State::Passed) && two.tests.passed == 2);
        let none = tests("echo 'test result: ok. 0 passed; 0 failed; 0 ignored'");
        assert!(matches!(none.state, State::Failed(why) if why == "ran no test"));
        assert!(matches!(tests("exit 101").state, State::Failed(why) if why == "exit code 101"));
    }
}
