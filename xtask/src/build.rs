//! `cargo xtask build`: builds the programs.

use std::ffi::OsString;
use std::fs;
use std::io;
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

/// Builds the named ones, optimised, and nothing that only others need; returns where they are.
pub(crate) fn only(names: &[&str]) -> Result<Vec<PathBuf>> {
    let mut build = cargo::command(["build", "--release", "--package", PACKAGE, "--no-default-features"]);
    build.args(names.iter().flat_map(|name| ["--bin", name]));
    cargo::build_programs(build)
}

/// Builds them; returns where they are.
fn programs(release: bool) -> Result<Vec<PathBuf>> {
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
    for program in &built {
        let name = program.file_name().context("a program without a name")?;
        put(&dir.join(name), |fresh| fs::copy(program, fresh).map(drop))?;
    }
    Ok(dir)
}

/// Makes a file, and the folders that it is in. Whoever uses the old one meanwhile keeps it.
pub(crate) fn put(at: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let name = at.file_name().context("a file without a name")?;
    let dir = at.parent().context("a file in no folder")?;
    let fresh = dir.join(format!(".{}-{}", name.to_string_lossy(), std::process::id()));
    fs::create_dir_all(dir)
        .and_then(|()| make(&fresh))
        .and_then(|()| fs::rename(&fresh, at))
        .with_context(|| format!("cannot write {}", at.display()))
}
