//! `cargo xtask outside`: builds and runs tiny projects that use our crates as a stranger would, one crate each, and
//! looks at what they pull in.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{how, run as run_command};
use crate::{cargo, interrupt, only_flag};

/// A project below `tests/outside`, named as its folder.
struct Project {
    name: &'static str,
    /// Packages that must not be in its graph.
    never: &'static [&'static str],
}

const PROJECTS: [Project; 4] = [
    Project { name: "ring", never: &["rdma-sys", "tokio", "roce-verbs", "roce-soft", "roce-transport"] },
    Project { name: "rendezvous", never: &["rdma-sys", "roce-verbs", "roce-transport", "roce-ring"] },
    Project { name: "transport-soft", never: &["rdma-sys", "tokio", "roce-verbs", "roce-rendezvous"] },
    Project { name: "dispatch", never: &["rdma-sys", "tokio", "roce-verbs", "roce-rendezvous"] },
];

/// What a program linked with libibverbs has in it.
const VERBS_LIBRARY: &[u8] = b"libibverbs";

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    only_flag(args, None)?;
    interrupt::install()?;
    let target = cargo::target_dir()?.join("outside");
    for project in &PROJECTS {
        project.check(&target).with_context(|| format!("outside project {}", project.name))?;
        println!("outside project {}: built, ran, and pulls in nothing it must not", project.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// The manifests of the projects.
pub(crate) fn manifests() -> Vec<PathBuf> {
    PROJECTS.iter().map(Project::manifest).collect()
}

impl Project {
    fn manifest(&self) -> PathBuf {
        cargo::root().join("tests/outside").join(self.name).join("Cargo.toml")
    }

    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = cargo::command(args);
        command.arg("--manifest-path").arg(self.manifest());
        command
    }

    fn check(&self, target: &Path) -> Result<()> {
        // Our versions, so that nothing is resolved or fetched anew; cargo drops what the project does not use.
        let lock = self.manifest().with_file_name("Cargo.lock");
        fs::copy(cargo::root().join("Cargo.lock"), &lock)
            .with_context(|| format!("cannot write {}", lock.display()))?;
        let mut build = self.cargo(&["build", "--quiet"]);
        build.arg("--target-dir").arg(target);
        let program = cargo::named(&cargo::build_programs(build)?, &format!("outside-{}", self.name))?;
        let status = run_command(&mut Command::new(&program))?;
        ensure!(status.success(), "{} failed ({})", program.display(), how(status));
        let binary = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
        if binary.windows(VERBS_LIBRARY.len()).any(|window| window == VERBS_LIBRARY) {
            bail!("{} is linked with libibverbs", program.display());
        }
        let refused = refused(&self.graph()?, self.never);
        ensure!(refused.is_empty(), "pulls in {}", refused.join(", "));
        Ok(())
    }

    /// What `cargo tree` says, a package a line.
    fn graph(&self) -> Result<String> {
        let mut tree = self.cargo(&["tree", "--edges", "normal,build", "--prefix", "none"]);
        let output = tree.stderr(Stdio::inherit()).output().context("cannot run cargo tree")?;
        ensure!(output.status.success(), "cargo tree failed ({})", how(output.status));
        String::from_utf8(output.stdout).context("cargo tree printed no UTF-8")
    }
}

/// Which of `never` the graph has.
fn refused(graph: &str, never: &[&'static str]) -> Vec<&'static str> {
    let packages: Vec<&str> = graph.lines().filter_map(|line| line.split_whitespace().next()).collect();
    never.iter().copied().filter(|name| packages.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_refused_by_their_whole_name() {
        let graph = "outside-ring v0.0.0 (/x)\nroce-ring v0.1.0 (/y)\ntokio-macros v2.0.0 (proc-macro)\n";
        assert_eq!(refused(graph, &["tokio", "roce-soft"]), [""; 0]);
        assert_eq!(refused(&format!("{graph}tokio v1.54.0 (*)\n"), &["tokio", "roce-soft"]), ["tokio"]);
    }

    #[test]
    fn every_project_is_there() {
        for manifest in manifests() {
            assert!(manifest.is_file(), "{}", manifest.display());
        }
    }
}
