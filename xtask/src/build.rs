//! `cargo xtask build`: builds the programs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

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

/// Builds them, optimised and with RDMA devices, and returns the folder that they are in. It is one of their own: a later
/// build without RDMA devices does not take them away.
pub(crate) fn verbs_programs() -> Result<PathBuf> {
    let mut build =
        cargo::command(["build", "--release", "--package", PACKAGE, "--bins", "--features", "verbs"]);
    cargo::find_libclang(&mut build);
    let built = cargo::build_programs(build).context(
        "cannot build the programs with RDMA devices; `cargo xtask setup` installs the headers that they need",
    )?;
    let dir = cargo::target_dir()?.join("verbs");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for program in &built {
        put_into(&dir, program)?;
    }
    Ok(dir)
}

/// Whoever runs the old one meanwhile keeps it.
fn put_into(dir: &Path, program: &Path) -> Result<()> {
    let name = program.file_name().context("a program without a name")?;
    let fresh = dir.join(format!(".{}-{}", name.to_string_lossy(), std::process::id()));
    fs::copy(program, &fresh)
        .and_then(|_| fs::rename(&fresh, dir.join(name)))
        .with_context(|| format!("cannot put {} into {}", program.display(), dir.display()))
}
