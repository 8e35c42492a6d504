//! `cargo xtask bench`: runs the measurements of `roce-perf`, here or in the virtual machine, and compares results.

mod compare;
mod machine;
mod options;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use self::options::{Request, USAGE};
use crate::process::how;
use crate::{cargo, interrupt, process, usage_error};

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
    let program = build(!options.backend.starts_with("soft"))?;
    let mut command = Command::new(&program);
    command.args(options.suite_arguments()).args(["--backend", &options.backend]);
    if let Some(peer) = &options.peer_device {
        command.args(["--peer", peer]);
    }
    let json = options.json.iter().flat_map(|target| [OsString::from("--json"), target.clone()]);
    command.args(json).args(options.report_arguments());
    ended(&mut command)
}

/// Builds the program, with RDMA devices where they are asked for.
fn build(verbs: bool) -> Result<PathBuf> {
    let mut build = cargo::command(["build", "--release", "--package", "roce-tools", "--bin", PROGRAM]);
    if verbs {
        build.args(["--features", "verbs"]);
        cargo::find_libclang(&mut build);
    }
    let built = cargo::build_programs(build).with_context(|| match verbs {
        true => {
            format!("cannot build {PROGRAM} with RDMA devices; `cargo xtask setup` installs what that needs")
        }
        false => format!("cannot build {PROGRAM}"),
    })?;
    cargo::named(&built, PROGRAM)
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
