//! The same run in the virtual machine, whose kernel has soft-RoCE: this program and the built ones are run there.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Say;
use super::options::Options;
use super::report::{Evidence, Report};
use crate::process::Stream;
use crate::vm::{Host, Job, Progress};
use crate::{build, cargo, interrupt};

/// Longer than the run, so that it ends by itself.
const OVERTIME: Duration = Duration::from_secs(60);

/// Boots, plays there, and brings back the report.
pub(super) fn run(options: &Options, say: Say) -> Result<Report> {
    // The machine first: without one nothing needs to be built.
    let host = Host::new(None, Progress::Shown)?;
    say.line("Building the programs (release, with RDMA devices); the first time takes a few minutes ...");
    let programs = build::verbs_programs()?;
    let job = Job::on_the_pair(command(options, &programs)?, options.timeout + OVERTIME);
    let mut report = Vec::new();
    let mut said = Lines { say, held: Vec::new() };
    let ended = host.run(&job, &mut |stream, bytes| {
        match stream {
            Stream::Out => report.extend_from_slice(bytes),
            Stream::Err => said.take(bytes),
        }
        Ok(())
    });
    said.rest();
    let status = match ended {
        Ok(status) => status,
        Err(error) => {
            interrupt::check()?;
            let evidence = Evidence { reasons: vec![format!("{error:#}")], ..Evidence::default() };
            return Ok(Report::new(options, "vm", evidence));
        }
    };
    judge(&String::from_utf8_lossy(&report), status)
        .with_context(|| format!("the run in the machine ended with exit code {status}"))
}

/// This program as it is called in the machine, without cargo.
fn command(options: &Options, programs: &Path) -> Result<Vec<OsString>> {
    let us = std::env::current_exe().context("cannot say which program this is")?;
    let shared = [cargo::root(), cargo::target_dir()?];
    ensure!(
        shared.iter().any(|dir| us.starts_with(dir)),
        "the machine does not see {}; run it as `cargo xtask`, from the build directory",
        us.display()
    );
    let mut words: Vec<OsString> = vec![us.into(), "emulate".into(), "--programs".into(), programs.into()];
    let link = [
        "--backend",
        "rxe_a",
        "--peer-device",
        "rxe_b",
        "--bridge-ip",
        "10.0.0.1",
        "--emulator-ip",
        "10.0.0.2",
    ];
    words.extend(link.map(OsString::from));
    words.extend(["--json", "-"].map(OsString::from));
    words.extend(options.workload_arguments());
    Ok(words)
}

/// Exit code and report must say the same.
fn judge(text: &str, status: u8) -> Result<Report> {
    let mut report = Report::written_by_another(text, "vm")?;
    if report.passed() != (status == 0) {
        report.fail(format!("the run in the machine ended with exit code {status}, against its report"));
    }
    Ok(report)
}

/// Passes on what the run in the machine says, but not the verdict and the table: those we say ourselves.
struct Lines {
    say: Say,
    held: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.rest();
            } else {
                self.held.push(*byte);
            }
        }
    }

    fn rest(&mut self) {
        let line = std::mem::take(&mut self.held);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        if speaks_of_progress(line) {
            self.say.line(line);
        }
    }
}

/// Lines of the closing table begin with a workload's name, those of the verdict with its word.
fn speaks_of_progress(line: &str) -> bool {
    let closing =
        ["RESULT: ", "FAILED: ", "lost of ", "late: ", "workload ", "---", "increment ", "surface-code "];
    !line.is_empty() && !closing.iter().any(|begin| line.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_against_the_exit_code_fails() {
        let pass = r#"{"verdict": "PASS", "reasons": []}"#;
        let fail = r#"{"verdict": "FAIL", "reasons": ["increment: lost 3"], "lost": 3}"#;
        assert!(judge(pass, 0).unwrap().passed());
        assert!(!judge(pass, 1).unwrap().passed());
        assert!(!judge(fail, 0).unwrap().passed());
        assert_eq!(judge(fail, 1).unwrap().result_line(), "RESULT: FAIL (lost 3)");
        assert!(judge("", 0).is_err());
    }

    #[test]
    fn the_closing_table_is_not_said_twice() {
        for said in ["emulator: queue pair 0x11", "playback: increment took 0.1 s", "error: no device"] {
            assert!(speaks_of_progress(said), "{said}");
        }
        for ours in ["", "RESULT: PASS", "increment       100", "workload  messages", "FAILED: x"] {
            assert!(!speaks_of_progress(ours), "{ours}");
        }
    }
}
