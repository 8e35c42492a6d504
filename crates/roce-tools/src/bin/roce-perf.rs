//! Measures the transport, each case beside the raw limit of what it stands on.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use roce_tools::cli::{JsonTarget, exit_code, number, parse};
use roce_tools::output::init_logging;
use roce_tools::perf::machine::Machine;
use roce_tools::perf::place::{Pin, Placement, Spin};
use roce_tools::perf::plan::{
    Backend, Budget, Case, Choice, Plan, Point, ServiceMode, full_points, quick_points,
};
use roce_tools::perf::record::Record;
use roce_tools::perf::{report, run};
use roce_tools::{Error, signal};

/// Measures the transport, each case in turns with the raw limit of what it stands on.
///
/// Prints a table; times are medians of the runs, ratios are figure over limit. Exit code 0 when all was measured, and
/// nothing was lost. Redirect standard error to measure without the progress bar's thread.
#[derive(Debug, Parser)]
#[command(name = "roce-perf", version, args_override_self = true)]
struct Options {
    /// What to measure [default: what --suite has].
    #[arg(value_name = "CASE", value_enum)]
    cases: Vec<Case>,
    /// Without cases: the main ones, or all with sweeps over frames and depths.
    #[arg(long, value_enum, default_value = "quick", conflicts_with_all = ["cases", "mode", "frame", "depth", "transceivers", "pages", "rate"])]
    suite: Suite,
    /// The caller's link: soft, soft:IP, or an RDMA device.
    #[arg(long, value_name = "NAME", default_value = "soft")]
    backend: String,
    /// The service's link [default: another loopback address, or the same RDMA device].
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// What reports call the link [default: soft, or the device's name].
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// How the service works; several with commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "unified")]
    mode: Vec<ServiceMode>,
    /// Bytes of a frame, the 24 of the RPC header included; several with commas.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, value_delimiter = ',', default_value = "64")]
    frame: Vec<u32>,
    /// Requests under way in the cases throughput and scale; several with commas [default: 64; in scale 1].
    #[arg(long, value_name = "N", value_parser = number::<u32>, value_delimiter = ',')]
    depth: Vec<u32>,
    /// Transceivers in the case scale; several with commas.
    #[arg(long, value_name = "N", value_parser = number::<u32>, value_delimiter = ',', default_value = "1,4,16,64")]
    transceivers: Vec<u32>,
    /// Slots of their rings; several with commas.
    #[arg(long, value_name = "N", value_parser = number::<u32>, value_delimiter = ',', default_value = "64,1024,4096")]
    pages: Vec<u32>,
    /// Requests per second in the jitter case.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "10000")]
    rate: u32,
    /// Seconds of each run of a case; its limit takes as long.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "0.2", conflicts_with = "count")]
    duration: Duration,
    /// Messages of each run, instead of a time.
    #[arg(long, value_name = "N", value_parser = number::<u64>)]
    count: Option<u64>,
    /// Runs of each case, in turns with its limit.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "7")]
    runs: u32,
    /// Measure no limits.
    #[arg(long)]
    no_limits: bool,
    /// auto: a CPU for each thread where there are enough; no: wherever the system puts them; or CPUs, the caller's
    /// first.
    #[arg(long, value_name = "auto|no|CPUS", value_parser = Pin::parse, default_value = "auto")]
    pin: Pin,
    /// How threads wait.
    #[arg(long, value_enum, default_value = "auto")]
    spin: Spin,
    /// The commit that is measured, for reports.
    #[arg(long, value_name = "HASH")]
    commit: Option<String>,
    /// Write one JSON object a line; - is standard output.
    #[arg(long, value_name = "FILE", value_parser = JsonTarget::parse)]
    json: Option<JsonTarget>,
    /// Write a row per result.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with table and plots that needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each plot into this folder.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Measure nothing: take results that --json wrote.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cases", "suite", "json"])]
    from: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Suite {
    /// The main cases.
    Quick,
    /// All cases, with sweeps.
    Full,
}

fn main() -> ExitCode {
    init_logging();
    exit_code::<Options>(execute(&parse()))
}

fn execute(options: &Options) -> Result<bool, Error> {
    let say = Say { to_stderr: options.json == Some(JsonTarget::Stdout) };
    let records = match &options.from {
        Some(file) => {
            let records = read(file)?;
            say.line(&report::table());
            records.iter().for_each(|record| say.line(&report::row(record)));
            records
        }
        None => measure(options, say)?,
    };
    report::handoffs(&records).iter().for_each(|line| say.line(line));
    write_reports(options, &records)?;
    Ok(records.iter().all(|record| record.lost == 0))
}

/// Results are written as they come: a run that is stopped leaves what it had.
fn measure(options: &Options, say: Say) -> Result<Vec<Record>, Error> {
    let plan = options.plan()?;
    let stop = signal::stop_flag()?;
    let mut json = options.json.as_ref().map(open).transpose()?;
    let machine = Machine::here(plan.placement.cpus(), options.commit.clone());
    for (name, value) in machine.facts() {
        say.line(&format!("{name:14} {value}"));
    }
    say.line(&format!("{:14} {}", "threads", plan.placement.describe()));
    say.line(&format!("{:14} {}", "backend", plan.backend.label));
    if let Some(warning) = machine.warning() {
        say.line(&format!("\n{warning}"));
    }
    say.line(&format!("\n{}", report::table()));
    run::run(&plan, &machine, &stop, |record| {
        say.line(&report::row(record));
        match &mut json {
            Some((out, name)) => write_line(out, record).map_err(|source| not_written(name, source)),
            None => Ok(()),
        }
    })
}

impl Options {
    fn plan(&self) -> Result<Plan, Error> {
        if self.runs == 0 || self.count == Some(0) {
            return Err(Error::Options("--runs and --count: take 1 at least".to_owned()));
        }
        if self.backend.starts_with("soft:") && self.peer.is_none() {
            return Err(Error::Options(
                "--backend soft:IP needs --peer soft:IP: each end has an address".to_owned(),
            ));
        }
        let placement = Placement::new(self.pin.clone(), self.spin);
        Ok(Plan {
            points: self.points(placement.cpus())?,
            backend: Backend {
                device: self.backend.clone(),
                peer: self.peer.clone(),
                label: self.label.clone().unwrap_or_else(|| self.backend.clone()),
            },
            runs: self.runs,
            budget: self.count.map_or(Budget::Time(self.duration), Budget::Count),
            baseline: !self.no_limits,
            placement,
        })
    }

    fn points(&self, cpus: usize) -> Result<Vec<Point>, Error> {
        if self.cases.is_empty() {
            return Ok(match self.suite {
                Suite::Quick => quick_points(),
                Suite::Full => full_points(cpus),
            });
        }
        let choice = Choice {
            cases: self.cases.clone(),
            modes: self.mode.clone(),
            frames: self.frame.clone(),
            depths: self.depth.clone(),
            rate: self.rate,
            transceivers: self.transceivers.clone(),
            pages: self.pages.clone(),
        };
        choice.points()
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.001..=86_400.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "not a number of seconds from 0.001 to 86400".to_owned())
}

/// Where text for people goes: away from standard output when that is for results.
#[derive(Debug, Clone, Copy)]
struct Say {
    to_stderr: bool,
}

impl Say {
    fn line(self, text: &str) {
        // A reader that has seen enough is no reason to stop.
        let _ =
            if self.to_stderr { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") };
    }
}

fn open(target: &JsonTarget) -> Result<(Box<dyn Write>, PathBuf), Error> {
    match target {
        JsonTarget::Stdout => Ok((Box::new(io::stdout()), PathBuf::from("-"))),
        JsonTarget::File(path) => Ok((Box::new(create(path)?), path.clone())),
    }
}

fn write_line(out: &mut impl Write, record: &Record) -> io::Result<()> {
    let line = serde_json::to_string(record)?;
    writeln!(out, "{line}")?;
    out.flush()
}

fn read(path: &Path) -> Result<Vec<Record>, Error> {
    let failed = |source| Error::File { call: "read", path: path.to_owned(), source };
    let lines = BufReader::new(File::open(path).map_err(failed)?).lines();
    let record = |(number, line): (usize, io::Result<String>)| {
        serde_json::from_str(&line.map_err(failed)?).map_err(|e| Error::Data {
            path: path.to_owned(),
            reason: format!("line {}: {e}; take a file that --json wrote", number + 1),
        })
    };
    lines.enumerate().map(record).collect()
}

fn write_reports(options: &Options, records: &[Record]) -> Result<(), Error> {
    if let Some(path) = &options.csv {
        report::csv(records, create(path)?).map_err(|source| not_written(path, source))?;
    }
    if let Some(path) = &options.html {
        fs::write(path, report::html(records)?).map_err(|source| not_written(path, source))?;
    }
    let Some(dir) = &options.svg else { return Ok(()) };
    fs::create_dir_all(dir).map_err(|source| not_written(dir, source))?;
    for plot in report::plots(records)? {
        let path = dir.join(format!("{}.svg", plot.name));
        fs::write(&path, plot.svg).map_err(|source| not_written(&path, source))?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<File, Error> {
    File::create(path).map_err(|source| not_written(path, source))
}

fn not_written(path: &Path, source: io::Error) -> Error {
    Error::File { call: "write", path: path.to_owned(), source }
}
