//! `cargo xtask header --check`: the headers of the C library against its functions. They are written by hand, for people.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::process::{how, run as run_command};
use crate::{USAGE, cargo, interrupt, only_flag, usage_error};

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    if !only_flag(args, Some("--check"))? {
        return Err(usage_error("the headers are written by hand; there is only `header --check`", USAGE));
    }
    interrupt::install()?;
    // One thing with the tests of the library, which look at both sides.
    let status = run_command(&mut cargo::command(["test", "--package", "roce-capi", "--test", "header"]))?;
    ensure!(
        status.success(),
        "the headers and the library disagree ({}); what differs is above",
        how(status)
    );
    Ok(ExitCode::SUCCESS)
}
