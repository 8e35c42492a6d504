//! The options of `cargo xtask bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser};

pub(crate) const USAGE: &str = "\
usage: cargo xtask bench [OPTIONS] [-- [CASES] [OPTIONS OF roce-perf]]
       cargo xtask bench --compare BEFORE.json AFTER.json

Measures the transport, each case in turns with the raw limit of what it stands on: a UDP ping-pong with the same
options and packet lengths, two threads on two flags, sendmmsg and recvmmsg in a loop, UC straight on libibverbs.
Exit code: 0 measured, 1 not, or messages were lost; 2 bad options. Measure on an idle machine.

  --quick                 the main cases, in half a minute; else all, with sweeps over frames and depths, in minutes
  --backend soft|vm|DEVICE
                          what carries the packets: RoCEv2 in userspace (soft), the kernel's soft-RoCE in a virtual
                          machine, or an RDMA device
  --peer-device DEVICE    the service's device (that of --backend)
  --json FILE|-           one JSON object a line for each result; with - nothing else goes to stdout
  --csv FILE              a row for each result
  --html FILE             a page with table and plots
  --svg DIR               each plot
  --compare BEFORE AFTER  says what changed beyond the noise of the runs in two --json files; exit code 1 when
                          something became worse
  --help
";

/// What is measured, and where results go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) quick: bool,
    /// `vm`, or what roce-perf knows.
    pub(super) backend: String,
    pub(super) peer_device: Option<String>,
    /// A file, or `-`.
    pub(super) json: Option<OsString>,
    pub(super) csv: Option<PathBuf>,
    pub(super) html: Option<PathBuf>,
    pub(super) svg: Option<PathBuf>,
    /// For roce-perf as they are.
    pub(super) more: Vec<OsString>,
}

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Help,
    Run(Options),
    Compare(PathBuf, PathBuf),
}

/// Reads the arguments; the error says which one is wrong, and how.
pub(super) fn parse(args: Vec<OsString>) -> Result<Request, String> {
    let mut options = Options::new();
    let (ours, theirs) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (args[..at].to_vec(), args[at + 1..].to_vec()),
        None => (args, Vec::new()),
    };
    options.more = theirs;
    let mut compared = None;
    let mut parser = Parser::from_args(ours);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Arg::Long(name) => name.to_owned(),
            Arg::Short('h') => return Ok(Request::Help),
            other => return Err(other.unexpected().to_string()),
        };
        let mut value = || match parser.value() {
            Ok(value) if !value.is_empty() => Ok(value),
            _ => Err(format!("--{name} needs a value")),
        };
        let text = |value: OsString| value.into_string().map_err(|_| format!("--{name}: not UTF-8"));
        match name.as_str() {
            "help" => return Ok(Request::Help),
            "quick" => options.quick = true,
            "backend" => options.backend = text(value()?)?,
            "peer-device" => options.peer_device = Some(text(value()?)?),
            "json" => options.json = Some(value()?),
            "csv" => options.csv = Some(value()?.into()),
            "html" => options.html = Some(value()?.into()),
            "svg" => options.svg = Some(value()?.into()),
            "compare" => compared = Some((value()?.into(), value()?.into())),
            _ => return Err(format!("no such option: --{name}")),
        }
    }
    match compared {
        Some((before, after)) if options == Options::new() => Ok(Request::Compare(before, after)),
        Some(_) => Err("--compare measures nothing: give it two files and no other options".to_owned()),
        None if options.quick && options.names_cases() => {
            Err("--quick is a suite of cases of its own: leave it out, or the cases after --".to_owned())
        }
        None if options.backend == "vm" && options.peer_device.is_some() => {
            Err("--peer-device is about this machine; --backend vm brings its own".to_owned())
        }
        None => Ok(Request::Run(options)),
    }
}

impl Options {
    fn new() -> Self {
        Self {
            quick: false,
            backend: "soft".to_owned(),
            peer_device: None,
            json: None,
            csv: None,
            html: None,
            svg: None,
            more: Vec::new(),
        }
    }

    /// Cases come first behind the dashes.
    fn names_cases(&self) -> bool {
        self.more.first().is_some_and(|first| !first.to_string_lossy().starts_with('-'))
    }

    /// What is measured.
    pub(super) fn suite_arguments(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        // A case among the further options takes the suite's place.
        if !self.names_cases() {
            args.extend(["--suite".into(), if self.quick { "quick" } else { "full" }.into()]);
        }
        if let Some(commit) = super::commit() {
            args.extend(["--commit".into(), commit.into()]);
        }
        args.extend(self.more.iter().cloned());
        args
    }

    /// Where reports go, the JSON apart.
    pub(super) fn report_arguments(&self) -> Vec<OsString> {
        let targets = [("--csv", &self.csv), ("--html", &self.html), ("--svg", &self.svg)];
        let given = targets.into_iter().filter_map(|(name, target)| Some((name, target.as_ref()?)));
        given.flat_map(|(name, target)| [OsString::from(name), target.clone().into()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    fn options(line: &str) -> Options {
        match parsed(line) {
            Ok(Request::Run(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_usual_calls() {
        let quick = options("--quick --json r.json --html r.html");
        assert!(quick.quick && quick.backend == "soft");
        assert_eq!(quick.suite_arguments()[..2], ["--suite", "quick"]);
        assert_eq!(quick.report_arguments(), ["--html", "r.html"]);
        assert_eq!(parsed("--compare a b"), Ok(Request::Compare("a".into(), "b".into())));
        assert_eq!(parsed("-h"), Ok(Request::Help));
    }

    #[test]
    fn what_follows_two_dashes_is_the_programs() {
        let options = options("-- rtt --frame 128");
        let args = options.suite_arguments();
        assert!(
            !args.contains(&"--suite".into())
                && args.ends_with(&["rtt".into(), "--frame".into(), "128".into()])
        );
    }

    #[test]
    fn bad_options_are_named() {
        for (line, named) in [
            ("--compare a", "--compare"),
            ("--compare a b --json c", "--compare"),
            ("--compare a b -- rtt", "--compare"),
            ("--quick -- rtt", "--quick"),
            ("--json", "--json"),
            ("--fast", "--fast"),
            ("rtt", "rtt"),
            ("--backend vm --peer-device x", "--peer-device"),
        ] {
            let problem = parsed(line).unwrap_err();
            assert!(problem.contains(named), "{line}: {problem}");
        }
    }
}
