//! Measures the transport, each case beside the raw limit of what it stands on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use roce_tools::cli::{FaultOptions, JsonTarget, exit_code, number, parse};
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
    #[arg(long, value_enum, default_value = "quick", conflicts_with = "cases")]
    suite: Suite,
    /// The caller's link: soft, which is two loopback addresses that nobody uses, soft:IP, or an RDMA device.
    #[arg(long, value_name = "NAME", default_value = "soft")]
    backend: String,
    /// The service's link, of the same kind [default: for an RDMA device the same].
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// What reports call the link [default: soft, or the device's name].
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// How the service works; several with commas [default: unified; in scale shared].
    #[arg(long, value_enum, value_delimiter = ',', requires = "cases")]
    mode: Vec<ServiceMode>,
    /// Bytes of a frame, the 24 of the RPC header included; several with commas [default: 64].
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, value_delimiter = ',', requires = "cases")]
    frame: Vec<u32>,
    /// Requests under way in the cases throughput and scale; several with commas [default: 64; in scale 1].
    #[arg(long, value_name = "N", value_parser = number::<u32>, value_delimiter = ',', requires = "cases")]
    depth: Vec<u32>,
    /// Transceivers in the case scale; several with commas [default: 1,4,16,64].
    #[arg(long, value_name = "N", value_parser = number::<u32>, value_delimiter = ',', requires = "cases")]
    transceivers: Vec<u32>,
    /// Slots of their rings; several with commas [default: 64,1024,4096].
    #[arg(long, value_name = "N", value_parser = number::<u32>, value_delimiter = ',', requires = "cases")]
    pages: Vec<u32>,
    /// Requests per second in the jitter case [default: 10000].
    #[arg(long, value_name = "N", value_parser = number::<u32>, requires = "cases")]
    rate: Option<u32>,
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
    #[command(flatten)]
    faults: FaultOptions,
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
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cases", "suite", "json", "backend", "peer", "label", "duration", "count", "runs", "no_limits", "pin", "spin", "faults", "drop_rate", "commit"])]
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
    let mut records = Vec::new();
    let (reports, ended) = match &options.from {
        Some(file) => {
            records = read(file)?;
            say.line(&report::table())?;
            records.iter().try_for_each(|record| say.line(&report::row(record)))?;
            (Reports::open(options)?, Ok(()))
        }
        None => {
            let plan = options.plan()?;
            let reports = Reports::open(options)?;
            (reports, measure(options, &plan, say, &mut records))
        }
    };
    // Of a run that was stopped, or failed, what it had until then.
    if !records.is_empty() {
        say.fact("path MTU", &report::mtus(&records))?;
        report::handoffs(&records).iter().try_for_each(|line| say.line(line))?;
        reports.write(&records)?;
    }
    ended.map(|()| records.iter().all(|record| record.lost == 0))
}

/// Results are written, and handed out, as they come.
fn measure(options: &Options, plan: &Plan, say: Say, records: &mut Vec<Record>) -> Result<(), Error> {
    let stop = signal::stop_flag()?;
    let mut json = options.json.as_ref().map(open).transpose()?;
    let machine = Machine::here(plan.placement.cpus(), options.commit.clone());
    machine.facts().iter().try_for_each(|(name, value)| say.fact(name, value))?;
    say.fact("threads", &plan.placement.describe())?;
    say.fact("backend", &plan.backend.label)?;
    say.fact("takes about", &format!("{:.0} s", plan.takes().as_secs_f64().ceil()))?;
    if let Some(warning) = machine.warning() {
        say.line(&format!("\n{warning}"))?;
    }
    say.line(&format!("\n{}", report::table()))?;
    run::run(plan, &machine, &stop, |record| {
        if let Some((out, name)) = &mut json {
            write_line(out, &record).map_err(|source| not_written(name, source))?;
        }
        say.line(&report::row(&record))?;
        records.push(record);
        Ok(())
    })
}

impl Options {
    fn plan(&self) -> Result<Plan, Error> {
        if self.runs == 0 || self.count == Some(0) {
            return Err(Error::Options("--runs and --count: take 1 at least".to_owned()));
        }
        let placement = Placement::new(self.pin.clone(), self.spin)?;
        Ok(Plan {
            points: self.points(placement.cpus())?,
            backend: self.backend()?,
            runs: self.runs,
            budget: self.count.map_or(Budget::Time(self.duration), Budget::Count),
            baseline: !self.no_limits,
            placement,
        })
    }

    fn backend(&self) -> Result<Backend, Error> {
        let faults = self.faults.config();
        let is_soft = |device: &str| device == "soft" || device.starts_with("soft:");
        let problem = match (self.backend.as_str(), self.peer.as_deref()) {
            ("soft", Some(_)) => {
                "--peer: with --backend soft both ends have an address; name both, as soft:IP"
            }
            (device, None) if device.starts_with("soft:") => {
                "--backend soft:IP needs --peer soft:IP: each end has an address"
            }
            (device, Some(peer)) if device == peer && is_soft(device) => {
                "--peer: has the address of --backend; each end needs one of its own"
            }
            (device, Some(peer)) if is_soft(device) != peer.starts_with("soft:") => {
                "--peer: both ends are soft:IP, or both RDMA devices"
            }
            (device, _) if faults.is_some() && !is_soft(device) => {
                "--faults, --drop-rate: only soft links can spoil what they send"
            }
            _ => {
                return Ok(Backend {
                    device: self.backend.clone(),
                    peer: self.peer.clone(),
                    label: self.label.clone().unwrap_or_else(|| self.backend.clone()),
                    faults,
                });
            }
        };
        Err(Error::Options(problem.to_owned()))
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
    fn line(self, text: &str) -> Result<(), Error> {
        let written =
            if self.to_stderr { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") };
        match written {
            // A reader that has seen enough is no reason to stop.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(not_written(Path::new("what is for people"), error))
            }
            _ => Ok(()),
        }
    }

    fn fact(self, name: &str, value: &str) -> Result<(), Error> {
        self.line(&format!("{name:14} {value}"))
    }
}

fn open(target: &JsonTarget) -> Result<(Box<dyn Write>, PathBuf), Error> {
    match target {
        JsonTarget::Stdout => Ok((Box::new(io::stdout()), PathBuf::from("-"))),
        JsonTarget::File(path) => Ok((Box::new(create(path)?), path.clone())),
    }
}

fn write_line(out: &mut impl Write, record: &Record) -> io::Result<()> {
    // In one piece, so that whoever is killed leaves whole lines.
    let line = serde_json::to_string(record)? + "\n";
    out.write_all(line.as_bytes())?;
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
    let records: Vec<Record> = lines.enumerate().map(record).collect::<Result<_, Error>>()?;
    if records.is_empty() {
        let reason = "has no results; take a file that --json wrote".to_owned();
        return Err(Error::Data { path: path.to_owned(), reason });
    }
    Ok(records)
}

/// Where reports go. Opened before anything is measured, so that minutes are not spent for a folder that is missing.
struct Reports<'a> {
    csv: Option<(File, &'a Path)>,
    html: Option<(File, &'a Path)>,
    svg: Option<&'a Path>,
}

impl<'a> Reports<'a> {
    /// What the files have stays until there are results.
    fn open(options: &'a Options) -> Result<Self, Error> {
        let open = |path: &'a PathBuf| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
            file.map(|file| (file, path.as_path())).map_err(|source| not_written(path, source))
        };
        if let Some(dir) = &options.svg {
            fs::create_dir_all(dir).map_err(|source| not_written(dir, source))?;
        }
        Ok(Self {
            csv: options.csv.as_ref().map(open).transpose()?,
            html: options.html.as_ref().map(open).transpose()?,
            svg: options.svg.as_deref(),
        })
    }

    fn write(self, records: &[Record]) -> Result<(), Error> {
        if let Some((file, path)) = self.csv {
            let written = emptied(file).and_then(|file| report::csv(records, file));
            written.map_err(|source| not_written(path, source))?;
        }
        if let Some((file, path)) = self.html {
            let page = report::html(records)?;
            let written = emptied(file).and_then(|mut file| file.write_all(page.as_bytes()));
            written.map_err(|source| not_written(path, source))?;
        }
        let Some(dir) = self.svg else { return Ok(()) };
        for plot in report::plots(records)? {
            let path = dir.join(format!("{}.svg", plot.name));
            fs::write(&path, plot.svg).map_err(|source| not_written(&path, source))?;
        }
        Ok(())
    }
}

/// Pipes and devices have nothing to be rid of.
fn emptied(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

fn create(path: &Path) -> Result<File, Error> {
    File::create(path).map_err(|source| not_written(path, source))
}

fn not_written(path: &Path, source: io::Error) -> Error {
    Error::File { call: "write", path: path.to_owned(), source }
}
