//! The options of `cargo xtask emulate`, and whether they can work together.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

pub(crate) const USAGE: &str = "\
usage: cargo xtask emulate [OPTIONS]

Runs a software FPGA, the bridge with its decoder, and the playback tool as three processes on this machine, and
checks every answer. Exit code: 0 all right, 1 not, 2 bad options. Numbers are decimal or 0x hex.

  --backend auto|soft        what carries the packets (auto: the best there is)
  --unified                  the bridge receives, decodes and answers in one thread
  --forward                  the bridge echoes; nothing is decoded
  --workload increment|surface-code
                             only one of the two
  --num-messages N           messages of the increment workload (100)
  --payload-size BYTES       their payload (8)
  --page-size BYTES          a slot of the bridge's rings, a multiple of 128 (384)
  --num-pages N              slots of each ring, a power of two (128)
  --timeout SECONDS          for the whole run, the build apart (120)
  --no-verify                do not look into the answers
  --drop-rate P              each side drops a packet with probability P
  --seed N                   of the droppings (0)
  --pcap FILE                what the bridge sends and receives, for Wireshark
  --json FILE|-              the report; with - nothing else goes to stdout
  --bridge-ip IP             (127.0.0.1)
  --emulator-ip IP           (127.0.0.2)
  --control-port PORT        UDP port of the FPGA's registers (8193)
  --verbose                  show what the three processes say
  --help
";

/// The RPC header before each payload, bytes.
const HEADER: u32 = 24;
/// The FPGA sends whole beats of so many bytes.
const BEAT: u64 = 64;
/// The FPGA counts page sizes in units of so many bytes.
const PAGE_UNIT: u32 = 128;

/// What carries the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// RoCEv2 in userspace, over UDP.
    Soft,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
        }
    }
}

/// How the bridge works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Threads,
    Unified,
    Forward,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Unified => "unified",
            Self::Forward => "forward",
        }
    }
}

/// What the FPGA sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Bytes that come back one higher.
    Increment,
    /// Detection events of a distance-5 surface code.
    SurfaceCode,
}

impl Workload {
    pub(crate) const ALL: [Self; 2] = [Self::Increment, Self::SurfaceCode];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Increment => "increment",
            Self::SurfaceCode => "surface-code",
        }
    }
}

/// Losses to inject.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Faults {
    /// 0 to 1.
    pub(crate) drop_rate: f64,
    pub(crate) seed: u64,
}

/// Where the report goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Json {
    Stdout,
    File(PathBuf),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    pub(crate) backend: Backend,
    pub(crate) mode: Mode,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) num_messages: u32,
    pub(crate) payload_size: u32,
    pub(crate) page_size: u32,
    pub(crate) num_pages: u32,
    pub(crate) timeout: Duration,
    pub(crate) verify: bool,
    pub(crate) faults: Option<Faults>,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) json: Option<Json>,
    pub(crate) bridge_ip: Ipv4Addr,
    pub(crate) emulator_ip: Ipv4Addr,
    pub(crate) control_port: u16,
    pub(crate) verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::Soft,
            mode: Mode::Threads,
            workloads: Workload::ALL.to_vec(),
            num_messages: 100,
            payload_size: 8,
            page_size: 384,
            num_pages: 128,
            timeout: Duration::from_secs(120),
            verify: true,
            faults: None,
            pcap: None,
            json: None,
            bridge_ip: Ipv4Addr::new(127, 0, 0, 1),
            emulator_ip: Ipv4Addr::new(127, 0, 0, 2),
            control_port: 8193,
            verbose: false,
        }
    }
}

/// What the arguments ask for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Help,
    Run(Options),
}

/// Reads the arguments; the error says which one is wrong, and how.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Request, String> {
    let mut options = Options::default();
    let mut drop_rate = None;
    let mut seed = None;
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        let Arg::Long(name) = arg else {
            return match arg {
                Arg::Short('h') => Ok(Request::Help),
                other => Err(other.unexpected().to_string()),
            };
        };
        let name = name.to_owned();
        let mut value = || value_of(&mut parser, &name);
        match name.as_str() {
            "help" => return Ok(Request::Help),
            "backend" => options.backend = backend(&value()?)?,
            "unified" => options.mode = mode(options.mode, Mode::Unified)?,
            "forward" => options.mode = mode(options.mode, Mode::Forward)?,
            "workload" => options.workloads = vec![workload(&value()?)?],
            "num-messages" => options.num_messages = number(&name, &value()?)?,
            "payload-size" => options.payload_size = number(&name, &value()?)?,
            "page-size" => options.page_size = number(&name, &value()?)?,
            "num-pages" => options.num_pages = number(&name, &value()?)?,
            "timeout" => options.timeout = Duration::from_secs(number(&name, &value()?)?),
            "no-verify" => options.verify = false,
            "drop-rate" => drop_rate = Some(probability(&name, &value()?)?),
            "seed" => seed = Some(number(&name, &value()?)?),
            "pcap" => options.pcap = Some(PathBuf::from(value()?)),
            "json" => options.json = Some(json(value()?)),
            "bridge-ip" => options.bridge_ip = parsed(&name, &value()?, "an IPv4 address")?,
            "emulator-ip" => options.emulator_ip = parsed(&name, &value()?, "an IPv4 address")?,
            "control-port" => options.control_port = number(&name, &value()?)?,
            "verbose" => options.verbose = true,
            _ => return Err(format!("no such option: --{name}")),
        }
    }
    options.faults = match (drop_rate, seed) {
        (Some(drop_rate), seed) => Some(Faults { drop_rate, seed: seed.unwrap_or(0) }),
        (None, Some(_)) => return Err("--seed says nothing without --drop-rate".to_owned()),
        (None, None) => None,
    };
    options.fit_together()?;
    Ok(Request::Run(options))
}

impl Options {
    fn fit_together(&self) -> Result<(), String> {
        let Self { num_pages, page_size, payload_size, .. } = *self;
        if self.num_messages == 0 {
            return Err("--num-messages must be at least 1".to_owned());
        }
        if !num_pages.is_power_of_two() {
            return Err(format!("--num-pages {num_pages} is no power of two; take 64 or 128"));
        }
        if page_size == 0 || !page_size.is_multiple_of(PAGE_UNIT) {
            return Err(format!(
                "--page-size {page_size} is no multiple of {PAGE_UNIT} bytes, the FPGA's unit"
            ));
        }
        let frame = (u64::from(HEADER) + u64::from(payload_size)).next_multiple_of(BEAT);
        if frame > u64::from(page_size) {
            return Err(format!(
                "--page-size {page_size} is smaller than a frame: {HEADER} bytes of header and {payload_size} of \
                 payload make {frame} in whole beats of {BEAT}"
            ));
        }
        if self.bridge_ip == self.emulator_ip {
            return Err(format!(
                "--bridge-ip and --emulator-ip are both {}; each side needs an address of its own (all of \
                 127.0.0.0/8 is local)",
                self.bridge_ip
            ));
        }
        if self.timeout.is_zero() || self.control_port == 0 {
            return Err("--timeout and --control-port must be at least 1".to_owned());
        }
        Ok(())
    }
}

fn value_of(parser: &mut Parser, name: &str) -> Result<String, String> {
    let value = parser.value().map_err(|e| e.to_string())?;
    value.string().map_err(|e| format!("--{name}: {e}"))
}

fn backend(value: &str) -> Result<Backend, String> {
    match value {
        "auto" | "soft" => Ok(Backend::Soft),
        _ => Err(format!("--backend {value}: there are auto and soft")),
    }
}

fn mode(given: Mode, wanted: Mode) -> Result<Mode, String> {
    if given != Mode::Threads && given != wanted {
        return Err("--unified and --forward are two ways to run the bridge; take one".to_owned());
    }
    Ok(wanted)
}

fn workload(value: &str) -> Result<Workload, String> {
    let found = Workload::ALL.into_iter().find(|workload| workload.name() == value);
    found.ok_or_else(|| format!("--workload {value}: there are increment and surface-code"))
}

fn json(value: String) -> Json {
    if value == "-" { Json::Stdout } else { Json::File(PathBuf::from(value)) }
}

/// Decimal or 0x hex, within `T`.
fn number<T: TryFrom<u64>>(name: &str, value: &str) -> Result<T, String> {
    let hex = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((value, 10), |digits| (digits, 16));
    // from_str_radix takes a sign, which is no digit.
    let all_digits = digits.chars().all(|c| c.is_digit(radix));
    let wide = if all_digits { u64::from_str_radix(digits, radix).ok() } else { None };
    let fits = wide.and_then(|wide| T::try_from(wide).ok());
    fits.ok_or_else(|| format!("--{name} {value}: not a number (decimal or 0x hex) in range"))
}

fn probability(name: &str, value: &str) -> Result<f64, String> {
    let p: f64 = parsed(name, value, "a number from 0 to 1")?;
    if (0.0..=1.0).contains(&p) { Ok(p) } else { Err(format!("--{name} {value}: not a number from 0 to 1")) }
}

fn parsed<T: FromStr>(name: &str, value: &str, what: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("--{name} {value}: not {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Options, String> {
        let args = line.split_whitespace().map(OsString::from).collect();
        match parse(args)? {
            Request::Run(options) => Ok(options),
            Request::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn nothing_given_is_the_default_run() {
        let options = run("").unwrap();
        assert_eq!(options, Options::default());
        assert_eq!(options.workloads, [Workload::Increment, Workload::SurfaceCode]);
    }

    #[test]
    fn every_option_is_taken() {
        let options =
            run("--backend auto --unified --workload increment --num-messages 0x200 --payload-size=200 \
             --page-size 512 --num-pages 64 --timeout 7 --no-verify --drop-rate 0.02 --seed 7 --pcap a.pcap \
             --json - --bridge-ip 127.0.0.3 --emulator-ip 127.0.0.4 --control-port 8194 --verbose")
            .unwrap();
        let expected = Options {
            backend: Backend::Soft,
            mode: Mode::Unified,
            workloads: vec![Workload::Increment],
            num_messages: 512,
            payload_size: 200,
            page_size: 512,
            num_pages: 64,
            timeout: Duration::from_secs(7),
            verify: false,
            faults: Some(Faults { drop_rate: 0.02, seed: 7 }),
            pcap: Some(PathBuf::from("a.pcap")),
            json: Some(Json::Stdout),
            bridge_ip: Ipv4Addr::new(127, 0, 0, 3),
            emulator_ip: Ipv4Addr::new(127, 0, 0, 4),
            control_port: 8194,
            verbose: true,
        };
        assert_eq!(options, expected);
        assert_eq!(run("--json out.json").unwrap().json, Some(Json::File(PathBuf::from("out.json"))));
        assert_eq!(run("--forward").unwrap().mode, Mode::Forward);
    }

    #[test]
    fn help_is_no_error() {
        assert_eq!(parse(vec!["--help".into()]), Ok(Request::Help));
        assert_eq!(parse(vec!["-h".into()]), Ok(Request::Help));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let cases = [
            ("--nope", "--nope"),
            ("extra", "extra"),
            ("--num-messages", "num-messages"),
            ("--num-messages ten", "--num-messages ten"),
            ("--num-messages 0x", "--num-messages 0x"),
            ("--num-messages +1", "--num-messages +1"),
            ("--num-messages 0x-1", "--num-messages 0x-1"),
            ("--num-messages 4294967296", "4294967296"),
            ("--num-messages 0", "at least 1"),
            ("--num-pages 100", "no power of two"),
            ("--num-pages 0", "no power of two"),
            ("--payload-size 361", "make 448"),
            ("--page-size 200", "multiple of 128"),
            ("--page-size 0", "multiple of 128"),
            ("--payload-size 0xffffffff", "smaller than a frame"),
            ("--bridge-ip 127.0.0", "--bridge-ip 127.0.0"),
            ("--bridge-ip 127.0.0.2", "address of its own"),
            ("--control-port 65536", "65536"),
            ("--control-port 0", "at least 1"),
            ("--timeout 0", "at least 1"),
            ("--drop-rate 1.5", "0 to 1"),
            ("--drop-rate NaN", "0 to 1"),
            ("--seed 7", "--drop-rate"),
            ("--backend verbs", "auto and soft"),
            ("--workload repetition", "surface-code"),
            ("--unified --forward", "take one"),
            ("--unified=1", "unified"),
        ];
        for (line, part) in cases {
            let error = run(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
