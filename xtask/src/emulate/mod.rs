//! `cargo xtask emulate`: a software FPGA, the bridge and the playback tool, run against each other on this machine.

mod handshake;
mod link;
mod machine;
mod options;
mod preflight;
mod report;
mod session;
mod tools;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use self::link::Link;
#[cfg(test)]
pub(crate) use self::options::Mode;
use self::options::{Backend, USAGE};
pub(crate) use self::options::{Json, Options, Request, parse};
use self::report::{Evidence, Report};
use self::session::Session;
use self::tools::{Programs, SurfaceCode};
use crate::rdma::Sysfs;
use crate::{cargo, interrupt, usage_error};

/// Where text for people goes: away from stdout when that is for the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Say {
    pub(crate) to_stderr: bool,
}

impl Say {
    pub(crate) fn line(self, text: &str) {
        // A reader that has seen enough, such as `head`, is no reason to panic.
        let _ =
            if self.to_stderr { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") };
    }
}

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let options = match parse(args) {
        Ok(Request::Run(options)) => *options,
        Ok(Request::Help) => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(problem) => return Err(usage_error(problem, USAGE)),
    };
    let say = Say { to_stderr: options.json == Some(Json::Stdout) };
    interrupt::install()?;
    if options.backend == Backend::Vm {
        check_writable(&options)?;
        return conclude(&options, "vm", machine::run(&options, say), say);
    }
    match link::choose(&options, &Sysfs::of_the_machine(), say) {
        Ok((link, _network)) => on_link(&options, &link, say),
        Err(error) => conclude(&options, options.backend.name(), Err(error), say),
    }
}

/// Builds, plays over this link, and reports.
pub(crate) fn on_link(options: &Options, link: &Link, say: Say) -> Result<ExitCode> {
    check_writable(options)?;
    conclude(options, &link.name, play_on(options, link, say), say)
}

fn play_on(options: &Options, link: &Link, say: Say) -> Result<Report> {
    preflight::check(link, options.control_port)?;
    let code = SurfaceCode::below(&cargo::root())?;
    let programs = match &options.programs {
        Some(dir) => Programs::built_in(dir)?,
        None => {
            say.line("Building the programs (release); the first time takes a few minutes ...");
            Programs::build(link.is_verbs())?
        }
    };
    if link.is_verbs() {
        let sysfs = Sysfs::of_the_machine();
        let names = ["bridge", "emulator"];
        names.iter().zip(link.ends()).for_each(|(name, end)| {
            say.line(&format!("{:9} {}", format!("{name}:"), end.describe(&sysfs)));
        });
    }
    Ok(Report::new(options, &link.name, play(options, link, &programs, &code, say)))
}

/// Runs the processes. Whatever goes wrong is in the evidence.
fn play(options: &Options, link: &Link, programs: &Programs, code: &SurfaceCode, say: Say) -> Evidence {
    let mut evidence = Evidence::default();
    match Session::new(options, link, programs, code, say) {
        Ok(mut session) => {
            let played = session.play(&mut evidence);
            evidence.reasons.extend(played.err().map(|error| format!("{error:#}")));
            session.end(&mut evidence);
        }
        Err(error) => evidence.reasons.push(format!("{error:#}")),
    }
    evidence
}

/// Says what came of the run, and writes the report. A run that could not begin has failed.
fn conclude(options: &Options, backend: &str, run: Result<Report>, say: Say) -> Result<ExitCode> {
    let report = match &run {
        Ok(report) => {
            say.line(&format!("\n{}", report.for_people()));
            if options.histogram {
                say.line(&report.histograms());
            }
            report
        }
        Err(error) => {
            let reasons = vec![format!("{error:#}")];
            &Report::new(options, backend, Evidence { reasons, ..Evidence::default() })
        }
    };
    say.line(&report.result_line());
    write_json(options, report)?;
    let passed = run?.passed();
    let failed = interrupt::exit_code().unwrap_or(ExitCode::FAILURE);
    Ok(if passed { ExitCode::SUCCESS } else { failed })
}

fn write_json(options: &Options, report: &Report) -> Result<()> {
    let json = format!("{:#}\n", report.json());
    match &options.json {
        Some(Json::Stdout) => print!("{json}"),
        Some(Json::File(path)) => fs::write(path, json).with_context(|| cannot_write(path))?,
        None => {}
    }
    Ok(())
}

/// A report that cannot be written is better known before the run than after it. And an earlier run's is not to be
/// taken for this one's, should this one be killed.
fn check_writable(options: &Options) -> Result<()> {
    if let Some(Json::File(path)) = &options.json {
        File::create(path).with_context(|| cannot_write(path))?;
    }
    if let Some(dir) = &options.rtt_csv {
        fs::create_dir_all(dir).with_context(|| format!("cannot make --rtt-csv {}", dir.display()))?;
    }
    Ok(())
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write --json {}", path.display())
}
