//! `cargo xtask ci`: what a machine does that has just cloned the repository.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;

use crate::{only_flag, setup, test};

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    only_flag(args, None)?;
    let ready = setup::run(Vec::new())?;
    if ready != ExitCode::SUCCESS {
        return Ok(ready);
    }
    test::run(Vec::new())
}
