//! `cargo xtask bench`: runs the measurements of `roce-perf`, here or in the virtual machine, and compares results.

mod compare;
mod machine;
mod options;

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use self::options::{Request, USAGE};
use crate::process::how;
use crate::{build, cargo, interrupt, process, usage_error};

/// The program that measures.
const PROGRAM: &str = "roce-perf";

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let options = match options::parse(args) {
        Ok(Request::Run(options)) => options,
        Ok(Request::Compare(before, after)) => return compare::run(&before, &after),
        Ok(Request::Help) => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(problem) => return Err(usage_error(problem, USAGE)),
    };
    interrupt::install()?;
    if options.backend == "vm" {
        return machine::run(&options);
    }
    let program = if options.backend.starts_with("soft") {
        cargo::named(&build::programs(true)?, PROGRAM)?
    } else {
        build::verbs_programs()?.join(PROGRAM)
    };
    let mut command = Command::new(&program);
    command.args(options.suite_arguments()).args(["--backend", &options.backend]);
    if let Some(peer) = &options.peer_device {
        command.args(["--peer", peer]);
    }
    let json = options.json.iter().flat_map(|target| [OsString::from("--json"), target.clone()]);
    command.args(json).args(options.report_arguments());
    ended(&mut command)
}

/// Runs the program to its end; its exit code is ours.
fn ended(command: &mut Command) -> Result<ExitCode> {
    let status = process::run(command)?;
    let code = status.code().with_context(|| format!("{PROGRAM} ended with {}", how(status)))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// The commit that is checked out, marked where files differ from it.
fn commit() -> Option<String> {
    let output = Command::new("git")
        .current_dir(cargo::root())
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output()
        .ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| name.trim().to_owned())
}
