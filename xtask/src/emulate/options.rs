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

  --backend auto|soft|rxe|vm|DEVICE
                             what carries the packets: soft is RoCEv2 in userspace, rxe the kernel's soft-RoCE, vm
                             soft-RoCE in a virtual machine, DEVICE an RDMA device; auto takes an RDMA card that is
                             ready, else rxe where it can be had, else soft, and says why
  --peer-device DEVICE|soft  the emulator's device (that of --backend: the loop-back of one port)
  --ib-port N                the bridge's port of its device (1)
  --peer-ib-port N           the emulator's (on the same device that of the bridge, else 1)
  --personality fpga|lenient the software FPGA behaves as the hardware does (fpga), or as the older emulators do
  --immediate hsb|hsb-2510   where a frame's immediate has the page: hsb with HSB IP 0x2603 and later, hsb-2510 before,
                             of which the software FPGA then is (hsb)
  --histogram                show how the round trips spread, by the FPGA's clock
  --rtt-csv DIR              write each round trip to DIR/WORKLOAD.csv
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
  --drop-rate P              each side drops a packet with probability P; each loss takes 2 s to be noticed
  --seed N                   of the droppings (0)
  --pcap FILE                what the bridge sends and receives, for Wireshark
  --json FILE|-              the report; with - nothing else goes to stdout. Its lost_ids are by workload, as in
                             {\"increment\": [7, 41], \"surface-code\": []}
  --bridge-ip IP             (soft: 127.0.0.1; a device: its first address)
  --emulator-ip IP           (soft: 127.0.0.2; a device: its first address that is not the bridge's)
  --bridge-netns NAME        run the bridge in that network namespace
  --emulator-netns NAME      and the emulator
  --programs DIR             programs built before; builds nothing
  --control-port PORT        UDP port of the FPGA's registers (8193)
  --verbose                  show what the three processes say
  --help
";

/// Clocks and the programs' own options hold this, and some more on top.
const LONGEST: Duration = Duration::from_secs(1_000_000);
/// The RPC header before each payload, bytes.
const HEADER: u32 = 24;
/// The FPGA sends whole beats of so many bytes.
const BEAT: u64 = 64;
/// The FPGA counts page sizes in units of so many bytes.
const PAGE_UNIT: u32 = 128;

/// What carries the packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The best there is.
    Auto,
    /// RoCEv2 in userspace, over UDP.
    Soft,
    /// The kernel's soft-RoCE.
    Rxe,
    /// Soft-RoCE in a virtual machine.
    Vm,
    /// The RDMA device of that name.
    Device(String),
}

impl Backend {
    /// As it is given to `--backend`.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Auto => "auto",
            Self::Soft => "soft",
            Self::Rxe => "rxe",
            Self::Vm => "vm",
            Self::Device(name) => name,
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

/// Whose manners the software FPGA has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Personality {
    /// Those of the hardware.
    Fpga,
    /// Those of older emulators.
    Lenient,
}

impl Personality {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fpga => "fpga",
            Self::Lenient => "lenient",
        }
    }
}

/// How an FPGA writes the page of a frame into its immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// With HSB IP 0x2603 and later.
    Hsb,
    /// Before: 8 bits.
    Hsb2510,
}

impl Immediate {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hsb => "hsb",
            Self::Hsb2510 => "hsb-2510",
        }
    }

    /// Pages that it can name.
    fn pages(self) -> u32 {
        match self {
            Self::Hsb => 1 << 12,
            Self::Hsb2510 => 1 << 8,
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
    pub(crate) peer_device: Option<String>,
    pub(crate) ib_port: u8,
    pub(crate) peer_ib_port: Option<u8>,
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
    pub(crate) bridge_ip: Option<Ipv4Addr>,
    pub(crate) emulator_ip: Option<Ipv4Addr>,
    pub(crate) bridge_netns: Option<String>,
    pub(crate) emulator_netns: Option<String>,
    /// Where built programs are.
    pub(crate) programs: Option<PathBuf>,
    pub(crate) control_port: u16,
    pub(crate) personality: Personality,
    /// `None`: as the bridge takes it by itself.
    pub(crate) immediate: Option<Immediate>,
    /// Start the board before anything else, as it needs once after it was switched on.
    pub(crate) start: bool,
    pub(crate) histogram: bool,
    pub(crate) rtt_csv: Option<PathBuf>,
    pub(crate) verbose: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            peer_device: None,
            ib_port: 1,
            peer_ib_port: None,
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
            bridge_ip: None,
            emulator_ip: None,
            bridge_netns: None,
            emulator_netns: None,
            programs: None,
            control_port: 8193,
            personality: Personality::Fpga,
            immediate: None,
            start: false,
            histogram: false,
            rtt_csv: None,
            verbose: false,
        }
    }
}

/// What the arguments ask for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Help,
    Run(Box<Options>),
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
            "backend" => options.backend = backend(value()?)?,
            "peer-device" => options.peer_device = Some(value()?),
            "ib-port" => options.ib_port = number(&name, &value()?)?,
            "peer-ib-port" => options.peer_ib_port = Some(number(&name, &value()?)?),
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
            "bridge-ip" => options.bridge_ip = Some(address(&name, &value()?)?),
            "emulator-ip" => options.emulator_ip = Some(address(&name, &value()?)?),
            "bridge-netns" => options.bridge_netns = Some(value()?),
            "emulator-netns" => options.emulator_netns = Some(value()?),
            "programs" => options.programs = Some(PathBuf::from(value()?)),
            "control-port" => options.control_port = number(&name, &value()?)?,
            "personality" => options.personality = personality(&value()?)?,
            "immediate" => options.immediate = Some(immediate(&value()?)?),
            "histogram" => options.histogram = true,
            "rtt-csv" => options.rtt_csv = Some(PathBuf::from(value()?)),
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
    Ok(Request::Run(Box::new(options)))
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
        if let Some(immediate) = self.immediate.filter(|immediate| num_pages > immediate.pages()) {
            let (name, most) = (immediate.name(), immediate.pages());
            return Err(format!("--num-pages {num_pages}: --immediate {name} has room for {most}"));
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
        if let (Some(bridge), Some(emulator)) = (self.bridge_ip, self.emulator_ip)
            && bridge == emulator
        {
            return Err(format!(
                "--bridge-ip and --emulator-ip are both {bridge}; each side needs an address of its own (all of \
                 127.0.0.0/8 is local)"
            ));
        }
        self.fit_the_backend()?;
        if self.timeout.is_zero() || self.control_port == 0 {
            return Err("--timeout and --control-port must be at least 1".to_owned());
        }
        if self.timeout > LONGEST {
            let (given, most) = (self.timeout.as_secs(), LONGEST.as_secs());
            return Err(format!("--timeout {given} is more than {most} s, 11 days"));
        }
        Ok(())
    }
}

/// Options that mean nothing on some backends are refused there, not passed over.
impl Options {
    fn fit_the_backend(&self) -> Result<(), String> {
        let says_where = matches!(self.backend, Backend::Device(_) | Backend::Rxe | Backend::Soft);
        if self.peer_device.is_some() && !says_where {
            return Err("--peer-device goes with a --backend that says where the bridge is".to_owned());
        }
        if self.ib_port == 0 || self.peer_ib_port == Some(0) {
            return Err("ports of a device are numbered from 1".to_owned());
        }
        if let Some(why) = self.only_soft_has()
            && !matches!(self.backend, Backend::Auto | Backend::Soft)
        {
            return Err(format!("{why}; take --backend soft"));
        }
        let local = [
            ("--bridge-ip", self.bridge_ip.is_some()),
            ("--emulator-ip", self.emulator_ip.is_some()),
            ("--bridge-netns", self.bridge_netns.is_some()),
            ("--emulator-netns", self.emulator_netns.is_some()),
            ("--programs", self.programs.is_some()),
            ("--rtt-csv", self.rtt_csv.is_some()),
        ];
        match local.iter().find(|(_, given)| *given) {
            Some((option, _)) if self.backend == Backend::Vm => {
                Err(format!("{option} is about this machine; --backend vm brings its own"))
            }
            _ => Ok(()),
        }
    }

    /// The emulator's device and port, where the bridge's device is this one.
    pub(crate) fn peer_place<'a>(&'a self, device: &'a str) -> (&'a str, u8) {
        let peer = self.peer_device.as_deref().unwrap_or(device);
        let port = if peer == device { self.ib_port } else { 1 };
        (peer, self.peer_ib_port.unwrap_or(port))
    }

    /// Why this run can be on soft alone; `None` where it can be on others.
    pub(crate) fn only_soft_has(&self) -> Option<&'static str> {
        match (self.faults, &self.pcap) {
            (Some(_), _) => Some("--drop-rate is done by soft devices"),
            (_, Some(_)) => Some("--pcap is written by soft devices"),
            (None, None) => None,
        }
    }

    /// The options that another run of this program needs to play the same, where and with what apart.
    pub(crate) fn workload_arguments(&self) -> Vec<OsString> {
        let mut words: Vec<String> = [
            ("--num-messages", self.num_messages.to_string()),
            ("--payload-size", self.payload_size.to_string()),
            ("--page-size", self.page_size.to_string()),
            ("--num-pages", self.num_pages.to_string()),
            ("--timeout", self.timeout.as_secs().to_string()),
            ("--control-port", self.control_port.to_string()),
            ("--personality", self.personality.name().to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
        if let Some(immediate) = self.immediate {
            words.extend(["--immediate".to_owned(), immediate.name().to_owned()]);
        }
        if let [only] = self.workloads.as_slice() {
            words.extend(["--workload".to_owned(), only.name().to_owned()]);
        }
        let flags = [
            ("--unified", self.mode == Mode::Unified),
            ("--forward", self.mode == Mode::Forward),
            ("--no-verify", !self.verify),
            ("--verbose", self.verbose),
        ];
        words.extend(flags.iter().filter(|(_, given)| *given).map(|(name, _)| (*name).to_owned()));
        words.into_iter().map(OsString::from).collect()
    }
}

fn value_of(parser: &mut Parser, name: &str) -> Result<String, String> {
    let value = parser.value().map_err(|e| e.to_string())?;
    value.string().map_err(|e| format!("--{name}: {e}"))
}

fn personality(value: &str) -> Result<Personality, String> {
    let known = [Personality::Fpga, Personality::Lenient];
    let found = known.into_iter().find(|personality| personality.name() == value);
    found.ok_or_else(|| format!("--personality {value}: take fpga or lenient"))
}

fn immediate(value: &str) -> Result<Immediate, String> {
    let known = [Immediate::Hsb, Immediate::Hsb2510];
    let found = known.into_iter().find(|immediate| immediate.name() == value);
    found.ok_or_else(|| format!("--immediate {value}: take hsb or hsb-2510"))
}

fn backend(value: String) -> Result<Backend, String> {
    match value.as_str() {
        "auto" => Ok(Backend::Auto),
        "soft" => Ok(Backend::Soft),
        "rxe" => Ok(Backend::Rxe),
        "vm" => Ok(Backend::Vm),
        "" => Err("--backend: take auto, soft, rxe, vm or the name of an RDMA device".to_owned()),
        _ => Ok(Backend::Device(value)),
    }
}

fn address(name: &str, value: &str) -> Result<Ipv4Addr, String> {
    parsed(name, value, "an IPv4 address")
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
            Request::Run(options) => Ok(*options),
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
            run("--backend mlx5_0 --peer-device mlx5_1 --ib-port 2 --peer-ib-port 3 --unified --workload increment --num-messages 0x200 --payload-size=200 \
             --page-size 512 --num-pages 64 --timeout 7 --no-verify --programs p --bridge-netns n \
             --emulator-netns m --json - --bridge-ip 127.0.0.3 --emulator-ip 127.0.0.4 --control-port 8194 --personality lenient --immediate hsb-2510 --histogram --rtt-csv d --verbose")
            .unwrap();
        let expected = Options {
            backend: Backend::Device("mlx5_0".into()),
            peer_device: Some("mlx5_1".into()),
            ib_port: 2,
            peer_ib_port: Some(3),
            mode: Mode::Unified,
            workloads: vec![Workload::Increment],
            num_messages: 512,
            payload_size: 200,
            page_size: 512,
            num_pages: 64,
            timeout: Duration::from_secs(7),
            verify: false,
            faults: None,
            pcap: None,
            json: Some(Json::Stdout),
            bridge_ip: Some(Ipv4Addr::new(127, 0, 0, 3)),
            emulator_ip: Some(Ipv4Addr::new(127, 0, 0, 4)),
            bridge_netns: Some("n".into()),
            emulator_netns: Some("m".into()),
            programs: Some(PathBuf::from("p")),
            control_port: 8194,
            personality: Personality::Lenient,
            immediate: Some(Immediate::Hsb2510),
            start: false,
            histogram: true,
            rtt_csv: Some(PathBuf::from("d")),
            verbose: true,
        };
        assert_eq!(options, expected);
        let lossy = run("--backend soft --drop-rate 0.02 --seed 7 --pcap a.pcap").unwrap();
        assert_eq!(lossy.faults, Some(Faults { drop_rate: 0.02, seed: 7 }));
        assert_eq!((lossy.backend, lossy.pcap), (Backend::Soft, Some(PathBuf::from("a.pcap"))));
        assert_eq!(run("--backend vm").unwrap().backend, Backend::Vm);
        assert_eq!(run("--backend rxe").unwrap().backend, Backend::Rxe);
        assert_eq!(run("--json out.json").unwrap().json, Some(Json::File(PathBuf::from("out.json"))));
        assert_eq!(run("--forward").unwrap().mode, Mode::Forward);
    }

    #[test]
    fn another_run_is_told_the_same_workload() {
        let told = |line: &str| {
            let options = run(line).unwrap();
            let again = parse(options.workload_arguments());
            assert_eq!(
                again,
                Ok(Request::Run(Box::new(Options { backend: Backend::Auto, ..options }))),
                "{line}"
            );
        };
        told("--backend vm");
        told("--backend vm --unified --workload increment --num-messages 7 --payload-size 9 --page-size 512");
        told("--backend vm --forward --num-pages 8 --timeout 9 --no-verify --verbose --control-port 9000");
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
            ("--immediate hsb-2510 --num-pages 512", "has room for 256"),
            ("--immediate 2510", "take hsb or hsb-2510"),
            ("--payload-size 361", "make 448"),
            ("--page-size 200", "multiple of 128"),
            ("--page-size 0", "multiple of 128"),
            ("--payload-size 0xffffffff", "smaller than a frame"),
            ("--bridge-ip 127.0.0", "--bridge-ip 127.0.0"),
            ("--bridge-ip 127.0.0.2 --emulator-ip 127.0.0.2", "address of its own"),
            ("--control-port 65536", "65536"),
            ("--control-port 0", "at least 1"),
            ("--timeout 0", "at least 1"),
            ("--timeout 1000001", "more than 1000000 s"),
            ("--timeout 0xffffffffffffffff", "more than 1000000 s"),
            ("--drop-rate 1.5", "0 to 1"),
            ("--drop-rate NaN", "0 to 1"),
            ("--seed 7", "--drop-rate"),
            ("--backend=", "auto, soft, rxe, vm"),
            ("--peer-device mlx5_1", "--backend that says"),
            ("--backend mlx5_0 --ib-port 0", "from 1"),
            ("--backend mlx5_0 --drop-rate 0.1", "--backend soft"),
            ("--backend vm --pcap x", "--backend soft"),
            ("--backend vm --bridge-ip 10.0.0.1", "--bridge-ip is about this machine"),
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
