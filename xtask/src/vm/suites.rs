//! `cargo xtask vm-test`: the tests that need an RDMA device, run in the machine on the kernel's soft-RoCE. No test may be
//! left out there, so that they cannot pass for want of a device.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::job::{Job, Net, Task};
use super::machine::Host;
use super::{Progress, quote, to_ours};
use crate::process::{Process, Stderr, Stream};
use crate::rdma::Sysfs;
use crate::{build, cargo, install, interrupt, table, test, usage_error};

pub(crate) const USAGE: &str = "\
usage: cargo xtask vm-test [--only TEXT] [--verbose]

Builds the tests that need an RDMA device and runs them in a virtual machine on soft-RoCE devices. Exit code: 0 all
passed, 1 not. See docs/vm.md.

  --only TEXT   only suites whose name has TEXT in it, such as lo or roce-verbs
  --verbose     show the messages of the guest's kernel too

ROCE_TEST_CALLS in the environment says how many device calls each test of them makes (2000; 100000 take minutes).
";

const DEVICE_USAGE: &str = "\
usage: ROCE_TEST_DEVICE=DEVICE cargo xtask test-device

Runs the tests of the libibverbs path on an RDMA device of this machine. Exit code: 0 all passed, 1 not. See
docs/hardware.md. The environment says on what:

  ROCE_TEST_DEVICE           the device (`rdma link` lists them)
  ROCE_TEST_PEER_DEVICE      another one, for the far ends; otherwise both ends share the port
  ROCE_TEST_SECOND_ADDRESS   IFACE=IP/LENGTH: added for the tests that want two on one port; needs root
  ROCE_TEST_INTERFACE        the device's interface: some tests run only with this. They give it addresses and take them
                             away, and take it down and up again; needs root
";

/// How many calls the tests of device calls make. The machine's processor is an emulated one.
const CALLS: &str = "ROCE_TEST_CALLS";
const FEW_CALLS: &str = "2000";

/// How long one machine's tests may take together.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Tests on some network of the guest.
struct Suite {
    package: &'static str,
    /// Its integration test, a file in `tests`, or [`UNIT`].
    test: &'static str,
    features: &'static str,
    net: Net,
    /// Bytes.
    mtu: u32,
    env: &'static [(&'static str, &'static str)],
    /// Only tests with one of these in their names: what differs on this network from others. Empty: all.
    only: &'static [&'static str],
}

const LO: &[(&str, &str)] = &[("ROCE_TEST_DEVICE", "rxe0")];
const PAIR: &[(&str, &str)] = &[("ROCE_TEST_DEVICE", "rxe_a"), ("ROCE_TEST_PEER_DEVICE", "rxe_b")];
const PAIR_FOR_C: &[(&str, &str)] =
    &[PAIR[0], PAIR[1], ("ROCE_TEST_IP", "10.0.0.1"), ("ROCE_TEST_PEER_IP", "10.0.0.2")];
const UNPLUGGED: &[(&str, &str)] = &[("ROCE_TEST_DEVICE", "rxe_a"), ("ROCE_TEST_INTERFACE", "va")];

const fn verbs(test: &'static str, net: Net, mtu: u32, env: &'static [(&str, &str)]) -> Suite {
    Suite { package: "roce-verbs", test, features: "", net, mtu, env, only: &[] }
}

const fn conformance(test: &'static str, net: Net, mtu: u32, env: &'static [(&str, &str)]) -> Suite {
    Suite { package: "roce-conformance", test, features: "verbs", net, mtu, env, only: &[] }
}

/// Tests of this program, on the programs that it builds.
const fn whole_path(test: &'static str, net: Net, env: &'static [(&str, &str)]) -> Suite {
    Suite { package: OURSELVES, test, features: "", net, mtu: 9000, env, only: &[] }
}

const OURSELVES: &str = "xtask";
/// Runs programs that the machine has no compiler for.
const C_PROGRAMS: &str = "device_c";
/// Those tests inside a library that need a device; the others run on the host.
const UNIT: &str = "unit";
/// Both ends on one port, made by the tests themselves: on lo an address must be there before the device.
const LO_TWICE: &[(&str, &str)] =
    &[("ROCE_TEST_DEVICE", "rxe0"), ("ROCE_TEST_SECOND_ADDRESS", "lo=127.0.0.2/8")];
const FAR: &[(&str, &str)] = &[
    ("ROCE_TEST_DEVICE", "rxe_a"),
    ("ROCE_TEST_IP", "10.0.0.1"),
    ("ROCE_TEST_FAR", "far"),
    ("ROCE_TEST_FAR_IP", "10.0.0.2"),
];
const CHANGES: &[(&str, &str)] = &[("ROCE_TEST_NET", "1")];

/// All share a machine, whose network changes between them; what takes a link down comes last on it.
const SUITES: &[Suite] = &[
    verbs(UNIT, Net::Lo, 9000, LO),
    verbs("device", Net::Lo, 9000, LO),
    conformance("device", Net::Lo, 9000, LO),
    conformance("quiet_device", Net::Lo, 9000, LO),
    conformance("device", Net::Veth, 9000, PAIR).only(&[
        "messages::",
        "torn::",
        "refusals::",
        "lifetimes::",
        "rings::",
        "frames::",
        "overruns::",
        "modes::",
        "endings::",
    ]),
    whole_path("device_emulation", Net::Veth, PAIR),
    whole_path("device_calls", Net::Veth, PAIR),
    whole_path(C_PROGRAMS, Net::Veth, PAIR_FOR_C),
    conformance("network", Net::Veth, 9000, UNPLUGGED),
    verbs("link_down", Net::Veth, 9000, UNPLUGGED),
    conformance("device", Net::Veth, 1500, PAIR).only(&[
        "messages::",
        "torn::",
        "refusals::",
        "rings::",
        "frames::",
    ]),
    whole_path("device_interop", Net::Netns, FAR),
    whole_path("device_emulation", Net::None, LO_TWICE).only(&["threads", "unified", "forward"]),
    whole_path("device_net", Net::None, CHANGES),
];

impl Suite {
    const fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }

    /// Whether a test that did not run is missed.
    fn wants_all(&self) -> bool {
        self.test != UNIT && self.only.is_empty()
    }

    fn name(&self) -> String {
        format!("{} {} on {}", self.package, self.test, self.network())
    }

    /// Where cargo would run it.
    fn folder(&self) -> PathBuf {
        let root = cargo::root();
        if self.package == OURSELVES {
            root.join(self.package)
        } else {
            root.join("crates").join(self.package)
        }
    }

    fn network(&self) -> String {
        match self.net {
            Net::Veth | Net::Netns => format!("{}, MTU {}", self.net.name(), self.mtu),
            Net::None if self.env == LO_TWICE => "lo, two addresses".to_owned(),
            Net::None | Net::Lo => self.net.name().to_owned(),
        }
    }
}

/// What libtest says at its end, and the exit status behind it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Outcome {
    summaries: u32,
    passed: u64,
    failed: u64,
    ignored: u64,
    filtered: u64,
    /// `None`: the test program was never seen to end.
    status: Option<u8>,
    took: Duration,
}

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let Some((only, progress)) = options(args)? else {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    interrupt::install()?;
    let started = Instant::now();
    let chosen: Vec<&Suite> = SUITES.iter().filter(|suite| suite.name().contains(&only)).collect();
    if chosen.is_empty() {
        let names: Vec<String> = SUITES.iter().map(Suite::name).collect();
        return Err(usage_error(format!("no suite has {only:?} in its name: {}", names.join("; ")), USAGE));
    }
    // The machine first: without one nothing needs to be built.
    let host = Host::new(None, progress)?;
    let together = with_programs(chosen)?;
    let mut rows = Rows::default();
    let (outcomes, lost) = run_together(&host, &together)?;
    for ((suite, _), outcome) in together.iter().zip(&outcomes) {
        rows.add(suite, outcome, lost.as_deref());
    }
    Ok(rows.conclude(started))
}

/// `cargo xtask test-device`: those suites that need nothing but a device, on the one that the environment names.
pub(crate) fn on_device(args: Vec<OsString>) -> Result<ExitCode> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{DEVICE_USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(arg) = args.first() {
        return Err(usage_error(format!("no such option: {}", arg.to_string_lossy()), DEVICE_USAGE));
    }
    let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let sysfs = Sysfs::of_the_machine();
    let Some(device) = given("ROCE_TEST_DEVICE") else {
        let problem = format!("ROCE_TEST_DEVICE is not set; of RDMA devices {}", sysfs.list_of_devices());
        return Err(usage_error(problem, DEVICE_USAGE));
    };
    for device in [Some(device), given("ROCE_TEST_PEER_DEVICE")].into_iter().flatten() {
        sysfs.port(&device, 1)?;
    }
    interrupt::install()?;
    let started = Instant::now();
    let together = with_programs(for_devices(given("ROCE_TEST_INTERFACE").is_some()))?;
    let mut command = Command::new("sh");
    command.arg("-c").arg(script(&together, Env::OfTheCaller));
    let report = Arc::new(Mutex::new(Report::of(together.len())));
    let heard = Arc::clone(&report);
    let sink = move |stream, line: &str| {
        println!("{line}");
        if stream == Stream::Out {
            heard.lock().unwrap_or_else(PoisonError::into_inner).hear(line);
        }
    };
    Process::spawn(&mut command, Stderr::Lines, sink)?.wait()?;
    let outcomes = std::mem::take(&mut report.lock().unwrap_or_else(PoisonError::into_inner).outcomes);
    let mut rows = Rows::default();
    for ((suite, _), outcome) in together.iter().zip(&outcomes) {
        rows.add(suite, outcome, None);
    }
    Ok(rows.conclude(started))
}

/// One suite of each kind that runs on any device; those that change its interface only where it was named.
fn for_devices(interface: bool) -> Vec<&'static Suite> {
    let mut suites: Vec<&Suite> = Vec::new();
    for suite in SUITES {
        let wanted = match suite.test {
            UNIT | "device" | "quiet_device" | "device_emulation" | "device_calls" => true,
            test => interface && changes_interface(test),
        };
        if wanted && !suites.iter().any(|other| (other.package, other.test) == (suite.package, suite.test)) {
            suites.push(suite);
        }
    }
    suites.sort_by_key(|suite| changes_interface(suite.test));
    suites
}

/// Those take a link down, and come last on it.
fn changes_interface(test: &str) -> bool {
    ["network", "link_down"].contains(&test)
}

/// The closing table.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Vec<String>>,
    failed: usize,
}

impl Rows {
    fn add(&mut self, suite: &Suite, outcome: &Outcome, lost: Option<&str>) {
        let verdict = outcome.verdict(suite.wants_all(), lost);
        self.failed += usize::from(verdict.is_err());
        self.rows.push(outcome.row(suite, verdict));
    }

    fn conclude(self, started: Instant) -> ExitCode {
        let headers = ["suite", "network", "state", "passed", "failed", "seconds", "note"];
        println!("\n{}", table::render(&headers, &self.rows));
        let all = self.rows.len();
        let seconds = started.elapsed().as_secs_f64();
        println!("{} of {all} suites passed, in {seconds:.0} s", all - self.failed);
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// `None`: help was asked for.
fn options(args: Vec<OsString>) -> Result<Option<(String, Progress)>> {
    let mut only = String::new();
    let mut progress = Progress::Shown;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--only") => {
                let value = args.next().and_then(|value| value.into_string().ok());
                only = value.ok_or_else(|| usage_error("--only needs a part of a suite's name", USAGE))?;
            }
            Some("--verbose") => progress = Progress::Verbose,
            Some("--help" | "-h") => return Ok(None),
            _ => return Err(usage_error(format!("no such option: {}", arg.to_string_lossy()), USAGE)),
        }
    }
    Ok(Some((only, progress)))
}

/// The suites with their test programs, built, and with them what they run.
fn with_programs(suites: Vec<&Suite>) -> Result<Vec<(&Suite, PathBuf)>> {
    if suites.iter().any(|suite| suite.package == OURSELVES) {
        build::verbs_programs()?;
    }
    if suites.iter().any(|suite| suite.test == C_PROGRAMS) {
        install::with_c_programs()?;
    }
    suites.into_iter().map(|suite| Ok((suite, program(suite)?))).collect()
}

/// Builds the suite's test program.
fn program(suite: &Suite) -> Result<PathBuf> {
    let mut build = cargo::command(["test", "--no-run", "--package", suite.package]);
    if suite.test == UNIT {
        build.arg("--lib");
    } else {
        build.args(["--test", suite.test]);
    }
    if !suite.features.is_empty() {
        build.args(["--features", suite.features]);
    }
    cargo::find_libclang(&mut build);
    let built = cargo::build_programs(build).with_context(|| {
        format!(
            "cannot build the {} tests of {}; `cargo xtask setup` installs what they need",
            suite.test, suite.package
        )
    })?;
    let name = if suite.test == UNIT { suite.package.replace('-', "_") } else { suite.test.to_owned() };
    let named = |path: &&PathBuf| is_build_of(path, &name);
    built.iter().find(named).cloned().with_context(|| format!("the build made no test called {}", suite.test))
}

/// Cargo appends a hash to the names of test programs.
fn is_build_of(path: &Path, test: &str) -> bool {
    let stem = path.file_name().and_then(OsStr::to_str).and_then(|file| file.rsplit_once('-'));
    stem.is_some_and(|(name, _hash)| name == test)
}

/// Runs suites in one machine: what came of each, and what became of the machine where it failed.
fn run_together(host: &Host, suites: &[(&Suite, PathBuf)]) -> Result<(Vec<Outcome>, Option<String>)> {
    let first = suites[0].0;
    let job = Job {
        task: Task::Command(vec!["sh".into(), "-c".into(), script(suites, Env::OfTheSuite)]),
        env: vec![
            ("TERM".to_owned(), "dumb".into()),
            ("RUST_BACKTRACE".to_owned(), "1".into()),
            (CALLS.to_owned(), std::env::var_os(CALLS).unwrap_or_else(|| FEW_CALLS.into())),
        ],
        cwd: "/".into(),
        net: first.net,
        mtu: first.mtu,
        smp: 2,
        mem: 1024,
        timeout: Some(TIMEOUT),
    };
    let mut report = Report::of(suites.len());
    let ran = host.run(&job, &mut |stream, bytes| {
        if stream == Stream::Out {
            report.take(bytes);
        }
        to_ours(stream, bytes)
    });
    let lost = match ran {
        Ok(_) => None,
        Err(error) => {
            interrupt::check()?;
            eprintln!("error: {error:#}");
            Some(format!("{error:#}").lines().next().unwrap_or_default().to_owned())
        }
    };
    std::io::stdout().flush()?;
    Ok((report.outcomes, lost))
}

/// Runs each suite in its package's folder, as cargo would, with a line before and one behind.
fn script(suites: &[(&Suite, PathBuf)], env: Env) -> OsString {
    let mut script = Vec::new();
    for (index, (suite, program)) in suites.iter().enumerate() {
        let folder = suite.folder();
        let mut words: Vec<OsString> = vec!["env".into()];
        if env == Env::OfTheSuite {
            words.extend(suite.env.iter().map(|(name, value)| format!("{name}={value}").into()));
        }
        let which = if suite.test == UNIT { "--ignored" } else { "--include-ignored" };
        words.extend([program.clone().into(), which.into(), "--test-threads=1".into()]);
        words.extend(suite.only.iter().map(OsString::from));
        script.extend(quote::command(["echo".into(), format!("{BEGIN}{index}: {}", suite.name())]));
        if let Some((before, _)) = index.checked_sub(1).map(|before| &suites[before])
            && (before.net, before.mtu) != (suite.net, suite.mtu)
            && env == Env::OfTheSuite
        {
            script.extend(format!("; vm-net {} {}", suite.net.name(), suite.mtu).bytes());
        }
        script.extend(b"; cd ");
        script.extend(quote::word(folder.as_os_str()));
        script.extend(b" && ");
        script.extend(quote::command(words));
        script.extend(format!("; echo \"{END}{index}: $?\"\n").bytes());
    }
    std::os::unix::ffi::OsStringExt::from_vec(script)
}

/// Who says which device a suite takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Env {
    OfTheSuite,
    OfTheCaller,
}

const BEGIN: &str = "=== suite ";
const END: &str = "=== end of suite ";

/// Reads what the script prints.
#[derive(Debug, Default)]
struct Report {
    outcomes: Vec<Outcome>,
    line: Vec<u8>,
    /// The suite that runs, since when.
    now: Option<(usize, Instant)>,
}

impl Report {
    fn of(suites: usize) -> Self {
        Self { outcomes: vec![Outcome::default(); suites], ..Self::default() }
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.hear(&String::from_utf8_lossy(&line));
            } else {
                self.line.push(*byte);
            }
        }
    }

    fn hear(&mut self, line: &str) {
        let numbered = |prefix: &str| {
            let (index, rest) = line.strip_prefix(prefix)?.split_once(": ")?;
            Some((index.parse::<usize>().ok().filter(|index| *index < self.outcomes.len())?, rest))
        };
        if let Some((index, _name)) = numbered(BEGIN) {
            self.now = Some((index, Instant::now()));
        } else if let Some((index, status)) = numbered(END) {
            let outcome = &mut self.outcomes[index];
            outcome.status = status.parse().ok();
            outcome.took = self.now.take().map(|(_, since)| since.elapsed()).unwrap_or_default();
        } else if let Some((index, _)) = self.now {
            self.outcomes[index].add(line);
        }
    }
}

impl Outcome {
    /// Takes libtest's closing line.
    fn add(&mut self, line: &str) {
        if !line.starts_with("test result: ") {
            return;
        }
        let count = |word| test::before(line, word).unwrap_or(0);
        // What a failed test printed may look like a closing line too: the last one counts.
        self.summaries += 1;
        self.passed = count("passed");
        self.failed = count("failed");
        self.ignored = count("ignored");
        self.filtered = count("filtered out");
    }

    /// Passed only if the program said so in both ways and left nothing out; but for what was filtered, where not
    /// all is wanted.
    fn verdict(&self, wants_all: bool, lost: Option<&str>) -> Result<(), String> {
        match self {
            Self { status: None, .. } => Err(lost.unwrap_or("it was never seen to end").to_owned()),
            Self { failed: 1.., .. } => Err(String::new()),
            Self { status: Some(status), .. } if *status != 0 => Err(format!("exit code {status}")),
            Self { summaries, .. } if *summaries != 1 => {
                Err(format!("{summaries} closing lines instead of one"))
            }
            Self { ignored: 0, filtered, passed: 1.., .. } if *filtered == 0 || !wants_all => Ok(()),
            Self { passed: 0, .. } => Err("no test ran".to_owned()),
            Self { ignored, filtered, .. } => Err(format!("{} tests were left out", ignored + filtered)),
        }
    }

    fn row(&self, suite: &Suite, verdict: Result<(), String>) -> Vec<String> {
        let (state, note) = match verdict {
            Ok(()) => ("passed", String::new()),
            Err(note) => ("FAILED", note),
        };
        vec![
            format!("{} {}", suite.package, suite.test),
            suite.network(),
            state.to_owned(),
            self.passed.to_string(),
            self.failed.to_string(),
            format!("{:.1}", self.took.as_secs_f64()),
            note,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of(lines: &str) -> Outcome {
        let mut report = Report::of(2);
        // In pieces as small as they may come.
        lines.bytes().for_each(|byte| report.take(&[byte]));
        report.outcomes.swap_remove(1)
    }

    fn verdict(result: &str, status: &str) -> Result<(), String> {
        let lines = format!("=== suite 1: x\nrunning 2 tests\n{result}\n=== end of suite 1: {status}\n");
        outcome_of(&lines).verdict(true, None)
    }

    #[test]
    fn all_tests_must_run_and_pass() {
        let good =
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(verdict(good, "0"), Ok(()));
        assert_eq!(verdict(good, "101"), Err("exit code 101".to_owned()));
        assert_eq!(
            verdict(&format!("{good}\n{good}"), "0"),
            Err("2 closing lines instead of one".to_owned())
        );
        assert_eq!(verdict("", "0"), Err("0 closing lines instead of one".to_owned()));
        let with = |from, to| verdict(&good.replace(from, to), "0");
        assert_eq!(with("0 ignored", "1 ignored"), Err("1 tests were left out".to_owned()));
        assert_eq!(with("0 filtered", "3 filtered"), Err("3 tests were left out".to_owned()));
        assert_eq!(with("2 passed", "0 passed"), Err("no test ran".to_owned()));
        assert!(with("0 failed", "1 failed").is_err());
    }

    #[test]
    fn a_suite_without_an_end_failed_with_its_machine() {
        let cut = outcome_of("=== suite 1: x\ntest result: ok. 2 passed; 0 failed\n");
        assert_eq!(cut.verdict(true, Some("kernel panic")), Err("kernel panic".to_owned()));
        assert!(cut.verdict(true, None).is_err());
        assert!(outcome_of("").verdict(true, None).is_err());
    }

    #[test]
    fn the_script_runs_every_suite_and_tells_of_each() {
        // Stands for a test program: says what it was given, and ends as the first of two would when tests fail.
        let fake = PathBuf::from("/usr/bin/printenv");
        let suites = [(&SUITES[0], fake.clone()), (&SUITES[1], fake)];
        let output = Command::new("sh").arg("-c").arg(script(&suites, Env::OfTheSuite)).output().unwrap();
        let mut report = Report::of(2);
        report.take(&output.stdout);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("=== suite 0: roce-verbs unit on lo\n"), "{text}");
        let statuses: Vec<Option<u8>> = report.outcomes.iter().map(|outcome| outcome.status).collect();
        // printenv takes no such options.
        assert_eq!(statuses, [Some(2), Some(2)], "{text}");
    }

    #[test]
    fn the_network_changes_between_suites() {
        let fake = PathBuf::from("/bin/true");
        let suites: Vec<(&Suite, PathBuf)> = SUITES.iter().map(|suite| (suite, fake.clone())).collect();
        let lines = |env| script(&suites, env).into_string().unwrap();
        let ours = lines(Env::OfTheSuite);
        for change in ["; vm-net veth 9000; cd", "; vm-net veth 1500; cd", "; vm-net none 9000; cd"] {
            assert_eq!(ours.matches(change).count(), 1, "{change}: {ours}");
        }
        assert!(!lines(Env::OfTheCaller).contains("vm-net"));
    }

    #[test]
    fn test_programs_are_known_by_name() {
        assert!(is_build_of(Path::new("/t/deps/link_down-0a1b"), "link_down"));
        assert!(!is_build_of(Path::new("/t/deps/down-0a1b"), "link_down"));
        assert!(!is_build_of(Path::new("/t/debug/device"), "device"));
    }

    #[test]
    fn a_device_gets_each_kind_of_suite_once() {
        let names = |interface| {
            let suites = for_devices(interface);
            suites.iter().map(|suite| format!("{} {}", suite.package, suite.test)).collect::<Vec<_>>()
        };
        assert_eq!(
            names(false),
            [
                "roce-verbs unit",
                "roce-verbs device",
                "roce-conformance device",
                "roce-conformance quiet_device",
                "xtask device_emulation",
                "xtask device_calls"
            ]
        );
        assert_eq!(names(true)[6..], ["roce-conformance network", "roce-verbs link_down"]);
    }

    #[test]
    fn suites_of_one_network_are_neighbours() {
        let networks: Vec<String> = SUITES.iter().map(Suite::network).collect();
        let mut machines = networks.clone();
        machines.dedup();
        let mut different = networks;
        different.sort();
        different.dedup();
        assert_eq!(machines.len(), different.len());
    }
}
