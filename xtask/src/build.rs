//! `cargo xtask build`: builds the programs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::{cargo, interrupt, only_flag};

/// The package that has the programs.
const PACKAGE: &str = "roce-tools";

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let release = only_flag(args, Some("--release"))?;
    interrupt::install()?;
    for program in programs(release)? {
        println!("{}", program.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds them; returns where they are.
pub(crate) fn programs(release: bool) -> Result<Vec<PathBuf>> {
    let mut build = cargo::command(["build", "--package", PACKAGE, "--bins"]);
    if release {
        build.arg("--release");
    }
    cargo::build_programs(build)
}
