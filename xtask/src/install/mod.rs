//! `cargo xtask install`: the C libraries with their headers, and the programs, where other builds look for them.

mod options;
mod tree;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use self::options::{Options, Request, USAGE};
use self::tree::Tree;
use crate::process::{how, run as run_command};
use crate::{build, cargo, interrupt, setup, usage_error};

/// The packages that have what is installed.
const PACKAGES: [&str; 3] = ["roce-capi", "roce-provider", "roce-tools"];

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let options = match options::parse(args) {
        Ok(Request::Install(options)) => options,
        Ok(Request::Help) => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(problem) => return Err(usage_error(problem, USAGE)),
    };
    interrupt::install()?;
    let links = Links::of(&options);
    install(&options, &links)?;
    println!("{}", links.told());
    Ok(ExitCode::SUCCESS)
}

/// What the installed libraries can open.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Links {
    /// Soft and RDMA devices.
    All,
    /// Soft devices, as was asked for.
    SoftOnly,
    /// Soft devices, since these packages are not there.
    Lacking(Vec<&'static str>),
}

impl Links {
    fn of(options: &Options) -> Self {
        match setup::lacking_for_verbs() {
            _ if options.soft_only => Self::SoftOnly,
            none if none.is_empty() => Self::All,
            some => Self::Lacking(some),
        }
    }

    fn told(&self) -> String {
        match self {
            Self::All => {
                "They open soft and RDMA devices, the latter on machines that have libibverbs.".to_owned()
            }
            Self::SoftOnly => "They open soft devices alone, as was asked for.".to_owned(),
            Self::Lacking(packages) => format!(
                "They open soft devices alone: RDMA devices need {} to build; `cargo xtask setup` installs that.",
                packages.join(" and ")
            ),
        }
    }
}

fn install(options: &Options, links: &Links) -> Result<()> {
    let built = build(links)?;
    let tree = Tree::new(options.prefix.clone(), version()?);
    for file in tree.files(&built)? {
        println!("{}", file.put(options.destdir.as_deref())?.display());
    }
    Ok(())
}

/// Builds everything; all files that cargo made.
fn build(links: &Links) -> Result<Vec<PathBuf>> {
    let mut build = cargo::command(["build", "--release"]);
    for package in PACKAGES {
        build.args(["--package", package]);
    }
    if *links == Links::All {
        build.args(["--features", &PACKAGES.map(|package| format!("{package}/verbs")).join(",")]);
        cargo::find_libclang(&mut build);
    }
    cargo::build_files(build)
}

fn version() -> Result<String> {
    let metadata = cargo::metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let ours = packages.iter().find(|package| package["name"] == PACKAGES[0]);
    let version = ours.and_then(|package| package["version"].as_str());
    version.map(str::to_owned).context("cargo metadata knows no version of the C library")
}

/// C and C++ programs for tests, below the root.
const PROGRAMS: [&str; 5] = [
    "examples/ring_caller.c",
    "examples/ring_service.c",
    "examples/shared_service.c",
    "examples/unified_service.cpp",
    "crates/roce-capi/tests/c/messages.c",
];

/// Installs into the build directory, with RDMA devices, and builds C programs against that, which are in `programs` then.
pub(crate) fn with_c_programs() -> Result<()> {
    let prefix = cargo::target_dir()?.join("installed");
    let options = Options { prefix: prefix.clone(), destdir: None, soft_only: false };
    let links = Links::of(&options);
    ensure!(links == Links::All, "{}", links.told());
    install(&options, &links)?;
    let programs = prefix.join("programs");
    std::fs::create_dir_all(&programs).with_context(|| format!("cannot make {}", programs.display()))?;
    PROGRAMS.iter().try_for_each(|source| compile(&cargo::root().join(source), &prefix, &programs))
}

fn compile(source: &Path, prefix: &Path, to: &Path) -> Result<()> {
    let is_c = source.extension() == Some(OsStr::new("c"));
    // Where they run there may be no library of C++.
    let (compiler, options) =
        if is_c { ("cc", ["-std=c11", "-pthread"]) } else { ("c++", ["-std=c++17", "-static-libstdc++"]) };
    let mut command = Command::new(compiler);
    command.args(options).arg("-I").arg(prefix.join("include")).arg(source);
    command.arg("-o").arg(to.join(source.file_stem().context("a source without a name")?));
    command.arg("-L").arg(prefix.join("lib")).arg(format!("-l{}", tree::NAME));
    let status = run_command(&mut command)?;
    ensure!(status.success(), "cannot compile {} ({})", source.display(), how(status));
    Ok(())
}

/// A file to be.
#[derive(Debug)]
struct File {
    at: PathBuf,
    content: Content,
}

#[derive(Debug)]
enum Content {
    CopyOf(PathBuf),
    Text(String),
}

impl File {
    /// Puts it below `destdir`; where it is then.
    fn put(&self, destdir: Option<&Path>) -> Result<PathBuf> {
        let at = match destdir {
            Some(destdir) => destdir.join(self.at.strip_prefix("/").unwrap_or(&self.at)),
            None => self.at.clone(),
        };
        match &self.content {
            Content::CopyOf(from) => build::put(&at, |fresh| std::fs::copy(from, fresh).map(drop))?,
            Content::Text(text) => build::put(&at, |fresh| std::fs::write(fresh, text))?,
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_what_is_lacking() {
        let lacking = Links::Lacking(vec!["libibverbs-dev", "libclang-14-dev"]).told();
        assert!(lacking.contains("libibverbs-dev and libclang-14-dev"), "{lacking}");
        let asked = Options { prefix: "/p".into(), destdir: None, soft_only: true };
        assert_eq!(Links::of(&asked), Links::SoftOnly);
    }
}
