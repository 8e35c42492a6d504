//! The measurements in the virtual machine, over its kernel's soft-RoCE.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::PROGRAM;
use super::options::Options;
use crate::cargo;
use crate::process::Stream;
use crate::vm::{Host, Job, Progress};

/// Longer than the longest suite.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Boots, measures there, and writes the reports here.
pub(super) fn run(options: &Options) -> Result<ExitCode> {
    // The machine first: without one nothing needs to be built.
    let host = Host::new(None, Progress::Shown)?;
    let program = super::build(true)?;
    let job = Job::on_the_pair(command(options, &program), TIMEOUT);
    let mut results = Vec::new();
    let ended = host.run(&job, &mut |stream, bytes| match stream {
        Stream::Out => {
            results.extend_from_slice(bytes);
            Ok(())
        }
        Stream::Err => io::stderr().lock().write_all(bytes),
    });
    // A machine that was stopped leaves what it had measured.
    if !results.is_empty() {
        let kept = keep(options, &results)?;
        render(options, &program, &kept)?;
    }
    let status = ended?;
    ensure!(status <= 1 && !results.is_empty(), "{PROGRAM} in the machine ended with exit code {status}");
    Ok(ExitCode::from(status))
}

/// Writes the reports of results that were kept, if any are asked for. What the program prints was seen already.
fn render(options: &Options, program: &Path, kept: &Path) -> Result<()> {
    let reports = options.report_arguments();
    if reports.is_empty() {
        return Ok(());
    }
    let rendered = Command::new(program).arg("--from").arg(kept).args(reports).output();
    let rendered = rendered.with_context(|| format!("cannot run {}", program.display()))?;
    io::stderr().lock().write_all(&rendered.stderr)?;
    let is_rendered = rendered.status.code().is_some_and(|code| code <= 1);
    ensure!(is_rendered, "{PROGRAM} cannot render {}", kept.display());
    Ok(())
}

fn command(options: &Options, program: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(options.suite_arguments());
    let link = ["--backend", "rxe_a", "--peer", "rxe_b", "--label", "vm", "--json", "-"];
    words.extend(link.map(OsString::from));
    words
}

/// Writes the results to where they were asked for, and to a file that can be read again.
fn keep(options: &Options, results: &[u8]) -> Result<PathBuf> {
    let path = match &options.json {
        Some(target) if target != "-" => PathBuf::from(target),
        target => {
            if target.is_some() {
                io::stdout().lock().write_all(results)?;
            }
            cargo::target_dir()?.join("vm-bench.json")
        }
    };
    fs::write(&path, results).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
