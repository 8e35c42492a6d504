//! `cargo xtask vm`: a small virtual machine whose kernel has soft-RoCE, for tests of the libibverbs path on machines
//! whose own kernel has none.

mod console;
mod cpio;
mod ending;
mod guest;
mod initramfs;
mod job;
mod kernel;
mod machine;
mod need;
mod options;
mod packages;
mod qemu;
mod quote;
mod scratch;
mod suites;
mod terminal;
mod tool;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;

pub(crate) use self::job::Job;
use self::job::Task;
pub(crate) use self::machine::Host;
use self::options::{Options, Request, USAGE};
pub(crate) use self::suites::{on_device as test_device, run as test};
use crate::process::Stream;
use crate::{interrupt, usage_error};

/// The machine failed, and not what ran in it.
const MACHINE_FAILED: u8 = 125;

/// What people are shown, on stderr, besides the command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing.
    Quiet,
    /// What happens.
    Shown,
    /// And the messages of the guest's kernel.
    Verbose,
}

impl Progress {
    fn line(self, text: &str) {
        if self != Self::Quiet {
            eprintln!("vm: {text}");
        }
    }

    fn detail(self, text: &str) {
        if self.verbose() {
            self.line(text);
        }
    }

    fn verbose(self) -> bool {
        self == Self::Verbose
    }
}

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let options = match options::parse(args) {
        Ok(Request::Run(options)) => options,
        Ok(Request::Help) => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(problem) => return Err(usage_error(problem, USAGE)),
    };
    interrupt::install()?;
    match run_one(options) {
        Ok(status) => Ok(ExitCode::from(status)),
        Err(error) if interrupt::exit_code().is_none() => {
            eprintln!("error: {error:#}");
            Ok(ExitCode::from(MACHINE_FAILED))
        }
        Err(error) => Err(error),
    }
}

fn run_one(options: Options) -> Result<u8> {
    let host = Host::new(options.accel, options.progress)?;
    let mut env = vec![("TERM".to_owned(), std::env::var_os("TERM").unwrap_or_else(|| "dumb".into()))];
    env.extend(options.env);
    let timeout = (options.task != Task::Shell).then_some(options.timeout);
    let job = Job {
        task: options.task,
        env,
        cwd: machine::working_folder(&host),
        net: options.net,
        mtu: options.mtu,
        smp: options.smp,
        mem: options.mem,
        timeout,
    };
    host.run(&job, &mut to_ours)
}

/// The command's output becomes ours.
fn to_ours(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        Stream::Err => io::stderr().lock().write_all(bytes),
    }
}

/// A fresh folder for one test.
#[cfg(test)]
fn scratch_for_tests(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("xtask-vm-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}
