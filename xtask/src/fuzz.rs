//! `cargo xtask fuzz`: libFuzzer on the targets under `fuzz/`, starting from the corpora there.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::process::{how, run as run_command};
use crate::{cargo, interrupt, usage_error};

const USAGE: &str = "\
usage: cargo xtask fuzz [--seconds N] [--keep] [TARGET ...]

Runs the fuzzers under fuzz/fuzz_targets, all or those named, each for N seconds (60). Needs a nightly toolchain and
cargo-fuzz (`rustup toolchain install nightly`, `cargo install cargo-fuzz`). What breaks a target is kept under
fuzz/artifacts and fails the run; the corpus grows in the build directory.

  --keep   afterwards add to fuzz/corpus what reaches code that nothing in it reaches
";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    seconds: u32,
    keep: bool,
    targets: Vec<String>,
}

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let known = targets()?;
    let Some(options) = options(args, &known)? else {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    interrupt::install()?;
    let grown = cargo::target_dir()?.join("fuzz");
    let mut broken = Vec::new();
    for target in &options.targets {
        println!("\n=== {target}, {} s ===", options.seconds);
        let corpus = grown.join("corpus").join(target);
        fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
        let committed = cargo::root().join("fuzz/corpus").join(target);
        let time = format!("-max_total_time={}", options.seconds);
        if !libfuzzer(&grown, target, &[&corpus, &committed], &[&time, "-timeout=10"])? {
            broken.push(target.as_str());
        } else if options.keep {
            ensure!(
                libfuzzer(&grown, target, &[&committed, &corpus], &["-merge=1"])?,
                "cannot add to {}",
                committed.display()
            );
        }
    }
    println!("\n{} of {} fuzzers found nothing", options.targets.len() - broken.len(), options.targets.len());
    if broken.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("error: {} broke; the bytes are under fuzz/artifacts", broken.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Runs a fuzzer, or merges corpora: those behind the first go into it. Did it find nothing?
fn libfuzzer(build: &Path, target: &str, corpora: &[&Path], flags: &[&str]) -> Result<bool> {
    let mut fuzz = Command::new("cargo");
    // Coverage counters do not survive link-time optimisation. The targets have no unsafe code for a sanitizer to watch.
    fuzz.env("CARGO_PROFILE_RELEASE_LTO", "off")
        .current_dir(cargo::root())
        .args([
            "+nightly",
            "fuzz",
            "run",
            "--fuzz-dir",
            "fuzz",
            "--features",
            "libfuzzer",
            "--sanitizer",
            "none",
        ])
        .arg("--target-dir")
        .arg(build)
        .arg(target)
        .args(corpora)
        .arg("--")
        .args(flags);
    let status = run_command(&mut fuzz)?;
    if !status.success() {
        eprintln!("`cargo +nightly fuzz run {target}` failed ({})", how(status));
    }
    Ok(status.success())
}

/// The fuzzers that there are.
fn targets() -> Result<Vec<String>> {
    let dir = cargo::root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// `None`: help was asked for.
fn options(args: Vec<OsString>, known: &[String]) -> Result<Option<Options>> {
    let mut options = Options { seconds: 60, keep: false, targets: Vec::new() };
    let mut args = args.into_iter().map(|arg| arg.to_string_lossy().into_owned());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let given =
                    args.next().and_then(|seconds| seconds.parse().ok()).filter(|seconds| *seconds > 0);
                options.seconds =
                    given.ok_or_else(|| usage_error("--seconds needs a number of 1 or more", USAGE))?;
            }
            "--keep" => options.keep = true,
            "--help" | "-h" => return Ok(None),
            name if known.iter().any(|target| target == name) => options.targets.push(arg),
            name => {
                let problem = format!("no such option or target: {name}; targets are {}", known.join(", "));
                return Err(usage_error(problem, USAGE));
            }
        }
    }
    if options.targets.is_empty() {
        options.targets = known.to_vec();
    }
    Ok(Some(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Option<Options>> {
        options(args.iter().map(OsString::from).collect(), &["a".to_owned(), "b".to_owned()])
    }

    #[test]
    fn all_targets_unless_some_are_named() {
        let all = parsed(&["--seconds", "5"]).unwrap().unwrap();
        assert_eq!(all, Options { seconds: 5, keep: false, targets: vec!["a".into(), "b".into()] });
        let one = parsed(&["b", "--keep"]).unwrap().unwrap();
        assert_eq!(one, Options { seconds: 60, keep: true, targets: vec!["b".into()] });
    }

    #[test]
    fn what_is_not_known_is_named() {
        assert!(parsed(&["c"]).unwrap_err().to_string().contains("targets are a, b"));
        assert!(parsed(&["--seconds", "0"]).is_err());
        assert!(parsed(&["--help"]).unwrap().is_none());
    }

    #[test]
    fn the_targets_are_the_files() {
        assert!(targets().unwrap().contains(&"enumeration".to_owned()));
    }
}
