//! `cargo xtask tidy`: the rules of this repository that neither the compiler nor clippy knows.

mod code;
mod edges;
mod rules;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{cargo, only_flag};

/// Folders that are not ours to judge.
const SKIPPED: &[&str] = &["target", ".git", ".vm"];
/// What text looks like here; `run` is `.ci/run`.
const TEXTS: &[&str] = &["rs", "toml", "md", "sh", "c", "h", "yml"];

/// A rule that something breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// Relative to the root of the workspace.
    path: String,
    /// From 1; 0 speaks of the whole file.
    line: usize,
    text: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    only_flag(args, None)?;
    let root = cargo::root();
    let mut findings = Vec::new();
    let files = texts(&root)?;
    for path in &files {
        let text = fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        findings.extend(rules::check(path, &text));
    }
    findings.extend(edges::check(&cargo::metadata()?)?);
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The text files below `root`, relative to it, sorted.
fn texts(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let entries =
            fs::read_dir(root.join(&dir)).with_context(|| format!("cannot list {}", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let path = dir.join(&name);
            if entry.file_type()?.is_dir() {
                if !SKIPPED.iter().any(|skipped| name == *skipped) {
                    dirs.push(path);
                }
            } else if is_text(&path) {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_text(path: &Path) -> bool {
    path == Path::new(".ci/run")
        || path.extension().is_some_and(|extension| TEXTS.iter().any(|text| extension == *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_our_texts_and_no_builds() {
        let files = texts(&cargo::root()).unwrap();
        assert!(files.iter().any(|path| path == "xtask/src/tidy/mod.rs"));
        assert!(files.iter().any(|path| path == "Cargo.toml"));
        assert!(files.iter().all(|path| !path.starts_with("target/") && !path.starts_with(".git/")));
        assert!(!is_text(Path::new("a/b.pcap")));
    }
}
