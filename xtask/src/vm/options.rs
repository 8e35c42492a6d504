//! The options of `cargo xtask vm`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use super::Progress;
use super::job::{Net, Task};
use super::qemu::Accel;
use super::quote;

pub(crate) const USAGE: &str = "\
usage: cargo xtask vm [OPTIONS] -- COMMAND [ARGUMENTS]
       cargo xtask vm [OPTIONS] --shell

Boots Debian's kernel in a small virtual machine that has soft-RoCE (rxe) devices, runs the command in it as root and
ends with its exit code; 125: the machine failed, not the command. The guest has this repository (read only) and the
build directory at the same paths as here, so that programs built here run there. See docs/vm.md.

  --shell                    a shell to type into; Ctrl-] turns the machine off
  --net none|lo|veth|netns   its soft-RoCE devices (lo): rxe0 on lo, 127.0.0.1;
                             rxe_a, 10.0.0.1, and rxe_b, 10.0.0.2, on a veth pair;
                             rxe_a, 10.0.0.1, and 10.0.0.2 in the namespace \"far\" without a device
  --mtu BYTES                of the veth pair (9000)
  --env NAME=VALUE           for the command; may be repeated
  --timeout SECONDS          for the command (600)
  --smp N                    processors (2)
  --mem MIB                  memory (512)
  --accel auto|kvm|tcg       auto: KVM where it works, else TCG
  --verbose                  show the kernel's messages too
  --quiet                    show nothing but the command's output
  --help
";

/// Everything but the working folder, which depends on what the guest shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) task: Task,
    pub(super) env: Vec<(String, OsString)>,
    pub(super) net: Net,
    pub(super) mtu: u32,
    pub(super) smp: u32,
    pub(super) mem: u32,
    pub(super) timeout: Duration,
    pub(super) accel: Option<Accel>,
    pub(super) progress: Progress,
}

/// What the arguments ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Help,
    Run(Options),
}

/// Reads the arguments; the error says which one is wrong, and how.
pub(super) fn parse(args: Vec<OsString>) -> Result<Request, String> {
    let mut options = Options {
        task: Task::Command(Vec::new()),
        env: Vec::new(),
        net: Net::Lo,
        mtu: 9000,
        smp: 2,
        mem: 512,
        timeout: Duration::from_secs(600),
        accel: None,
        progress: Progress::Shown,
    };
    let mut command = Vec::new();
    let mut shell = false;
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Arg::Short('h') => return Ok(Request::Help),
            Arg::Short(_) => return Err(arg.unexpected().to_string()),
            Arg::Value(first) => {
                // From the first word on everything is the command's.
                command.push(first);
                command.extend(parser.raw_args().map_err(|error| error.to_string())?);
                break;
            }
            Arg::Long(name) => name.to_owned(),
        };
        let mut value = || parser.value().map_err(|error| error.to_string());
        match name.as_str() {
            "help" => return Ok(Request::Help),
            "shell" => shell = true,
            "net" => options.net = net(&value()?)?,
            "mtu" => options.mtu = number(&name, &value()?, 576..=65535)?,
            "env" => options.env.push(variable(value()?)?),
            "timeout" => options.timeout = Duration::from_secs(number(&name, &value()?, 1..=86_400)?),
            "smp" => options.smp = number(&name, &value()?, 1..=64)?,
            "mem" => options.mem = number(&name, &value()?, 256..=65_536)?,
            "accel" => options.accel = accel(&value()?)?,
            "verbose" => options.progress = Progress::Verbose,
            "quiet" => options.progress = Progress::Quiet,
            _ => return Err(format!("no such option: --{name}")),
        }
    }
    options.task = match (shell, command.is_empty()) {
        (true, true) => Task::Shell,
        (false, false) => Task::Command(command),
        (true, false) => return Err("--shell takes no command".to_owned()),
        (false, true) => return Err("say what to run, or --shell".to_owned()),
    };
    Ok(Request::Run(options))
}

fn net(value: &OsStr) -> Result<Net, String> {
    let found = Net::ALL.into_iter().find(|net| value == net.name());
    found.ok_or_else(|| format!("--net {}: take none, lo, veth or netns", value.to_string_lossy()))
}

fn accel(value: &OsStr) -> Result<Option<Accel>, String> {
    match value.to_str() {
        Some("auto") => Ok(None),
        Some("kvm") => Ok(Some(Accel::Kvm)),
        Some("tcg") => Ok(Some(Accel::Tcg)),
        _ => Err(format!("--accel {}: take auto, kvm or tcg", value.to_string_lossy())),
    }
}

fn number<T: FromStr + PartialOrd + std::fmt::Display>(
    name: &str,
    value: &OsStr,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, String>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let parsed: Option<T> = value.to_owned().parse().ok();
    parsed.filter(|number| range.contains(number)).ok_or_else(|| {
        format!(
            "--{name} {}: take a number from {} to {}",
            value.to_string_lossy(),
            range.start(),
            range.end()
        )
    })
}

fn variable(value: OsString) -> Result<(String, OsString), String> {
    let bytes = value.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=');
    let split = at.and_then(|at| Some((std::str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..])));
    match split {
        Some((name, rest)) if quote::is_name(name) => {
            Ok((name.to_owned(), OsString::from_vec(rest.to_vec())))
        }
        _ => Err(format!("--env {}: take NAME=VALUE", value.to_string_lossy())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Request, String> {
        parse(args.iter().map(OsString::from).collect())
    }

    fn options(args: &[&str]) -> Options {
        match parsed(args) {
            Ok(Request::Run(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    fn command(words: &[&str]) -> Task {
        Task::Command(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        let all = options(&["--net", "veth", "--", "ls", "--net", "-l", "--", "x"]);
        assert_eq!((all.task, all.net), (command(&["ls", "--net", "-l", "--", "x"]), Net::Veth));
        assert_eq!(options(&["ls", "--help"]).task, command(&["ls", "--help"]));
        assert_eq!(options(&["--", "--odd"]).task, command(&["--odd"]));
        assert_eq!(options(&["--shell"]).task, Task::Shell);
    }

    #[test]
    fn values_are_read() {
        let all = options(&[
            "--env",
            "A=b=c",
            "--env=D=",
            "--mtu",
            "1500",
            "--smp",
            "1",
            "--mem",
            "1024",
            "--timeout",
            "5",
            "--accel",
            "tcg",
            "--quiet",
            "true",
        ]);
        assert_eq!(all.env, [("A".to_owned(), "b=c".into()), ("D".to_owned(), "".into())]);
        assert_eq!((all.mtu, all.smp, all.mem), (1500, 1, 1024));
        assert_eq!(
            (all.timeout, all.accel, all.progress),
            (Duration::from_secs(5), Some(Accel::Tcg), Progress::Quiet)
        );
    }

    #[test]
    fn what_cannot_be_is_said() {
        let wrong: [(&[&str], &str); 9] = [
            (&[], "say what to run, or --shell"),
            (&["--shell", "ls"], "--shell takes no command"),
            (&["--nte", "lo", "ls"], "no such option: --nte"),
            (&["--net", "eth", "ls"], "--net eth: take none, lo, veth or netns"),
            (&["--mtu", "9", "ls"], "--mtu 9: take a number from 576 to 65535"),
            (&["--smp", "0", "ls"], "--smp 0: take a number from 1 to 64"),
            (&["--env", "A-B=1", "ls"], "--env A-B=1: take NAME=VALUE"),
            (&["--env", "A", "ls"], "--env A: take NAME=VALUE"),
            (&["--accel", "hvf", "ls"], "--accel hvf: take auto, kvm or tcg"),
        ];
        for (args, problem) in wrong {
            assert_eq!(parsed(args), Err(problem.to_owned()));
        }
        assert_eq!(parsed(&["--help"]), Ok(Request::Help));
    }
}
