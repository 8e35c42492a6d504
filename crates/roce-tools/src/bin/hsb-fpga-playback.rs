//! Plays requests through an FPGA to a bridge and checks every answer.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use roce_core::{PeerEndpoint, Qpn, Rkey};
use roce_rendezvous::hsb::{
    BlockingDiscovery, Board, DiscoveryConfig, Mac, StartOptions, enumeration, mac_of, regs,
};
use roce_tools::cli::{JsonTarget, exit_code, number, parse};
use roce_tools::hsb::the_one;
use roce_tools::output::{Output, init_logging};
use roce_tools::playback::{Expect, Plan, Verdict, play, write_csv};
use roce_tools::workload::{Increment, SurfaceCode, SurfaceCodeFiles, Workload};
use roce_tools::{Error, signal};

/// The control port of the software FPGA, and that of a real one.
const CONTROL_PORTS: [u16; 2] = [8193, 8192];
const DEFAULT_MESSAGES: u32 = 100;
/// A board announces itself once a second.
const DISCOVER: Duration = Duration::from_secs(3);

/// Plays requests through an FPGA to a bridge and checks every answer.
///
/// Without --dem the messages go to rpc_increment; with it, --dets and --obs, each shot goes to mwpm_decode. The last
/// line is `RESULT: PASS` (exit code 0) or `RESULT: FAIL (why)` (exit code 1). Numbers are decimal or 0x hex.
#[derive(Debug, Parser)]
#[command(name = "hsb-fpga-playback", version, args_override_self = true)]
struct Options {
    /// The FPGA's address [default: the one board that makes itself known].
    #[arg(long, value_name = "IP")]
    hsb_ip: Option<Ipv4Addr>,
    /// Where a board's announcement is listened for.
    #[arg(
        long, value_name = "IP:PORT", conflicts_with = "hsb_ip",
        default_value_t = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, enumeration::HOST_PORT)
    )]
    listen: SocketAddrV4,
    /// The board takes one register at a time; a board that is discovered tells.
    #[arg(long)]
    no_blocks: bool,
    /// First write what a board needs once after it was switched on.
    #[arg(long)]
    start: bool,
    /// The FPGA's control port [default: 8193 with --emulator, else 8192].
    #[arg(long, value_name = "PORT", value_parser = number::<u16>)]
    control_port: Option<u16>,
    /// The bridge's address.
    #[arg(long, value_name = "IP")]
    bridge_ip: Ipv4Addr,
    /// The bridge's queue pair.
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    bridge_qp: u32,
    /// The key of the bridge's ring.
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    bridge_rkey: u32,
    /// Where the bridge's ring begins.
    #[arg(long, value_name = "ADDR", value_parser = number::<u64>, default_value = "0")]
    bridge_buffer: u64,
    /// The Ethernet address of the bridge's port [default: looked up by --bridge-ip]; not needed with --emulator.
    #[arg(long, value_name = "MAC")]
    bridge_mac: Option<Mac>,
    /// Bytes from slot to slot of the bridge's ring.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "384")]
    page_size: u32,
    /// Slots of the bridge's ring, a power of two.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "64")]
    num_pages: u32,
    /// Messages to send [default: 100, or all shots].
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    num_messages: Option<u32>,
    /// Bytes of arguments in each message to rpc_increment.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "8", conflicts_with = "dem")]
    payload_size: u32,
    /// A detector error model: its shots are sent to be decoded.
    #[arg(long, value_name = "FILE", requires = "dets", requires = "obs")]
    dem: Option<PathBuf>,
    /// The shots' detection events.
    #[arg(long, value_name = "FILE", requires = "dem")]
    dets: Option<PathBuf>,
    /// The shots' true observable flips.
    #[arg(long, value_name = "FILE", requires = "dem")]
    obs: Option<PathBuf>,
    /// What another decoder predicts for the shots: at most one answer in 512 may differ.
    #[arg(long, value_name = "FILE", requires = "dem")]
    pred: Option<PathBuf>,
    /// The FPGA is the software one.
    #[arg(long)]
    emulator: bool,
    /// The bridge sends the requests back as they are.
    #[arg(long)]
    forward: bool,
    /// Count the answers, but do not look at their payloads.
    #[arg(long)]
    no_verify: bool,
    /// Afterwards play the last pass over and over, until a signal or --timeout.
    #[arg(long = "loop")]
    endless: bool,
    /// The FPGA's virtual port registers.
    #[arg(long, value_name = "ADDR", value_parser = number::<u32>, default_value = "0x1000")]
    vp_address: u32,
    /// The FPGA's host interface registers [default: 0x0800 with --emulator, else 0x02000300].
    #[arg(long, value_name = "ADDR", value_parser = number::<u32>)]
    hif_address: Option<u32>,
    /// From one message to the next, in microseconds.
    #[arg(long, value_name = "US", value_parser = number::<u32>, default_value = "120")]
    spacing_us: u32,
    /// The most that the whole run may take, in seconds.
    #[arg(long, value_name = "S", value_parser = number::<u32>, default_value = "60")]
    timeout: u32,
    /// Write the report as JSON; - is standard output.
    #[arg(long, value_name = "FILE", value_parser = JsonTarget::parse)]
    json: Option<JsonTarget>,
    /// Write each round trip, by the FPGA's clock, as CSV.
    #[arg(long, value_name = "FILE")]
    rtt_csv: Option<PathBuf>,
    /// Show how the round trips spread.
    #[arg(long)]
    histogram: bool,
}

fn main() -> ExitCode {
    init_logging();
    exit_code::<Options>(run(parse()))
}

fn run(options: Options) -> Result<bool, Error> {
    let stop = signal::stop_flag()?;
    let workload = options.workload()?;
    let plan = options.plan()?;
    let report = play(&plan, &workload, &stop)?;
    if let Some(path) = &options.rtt_csv {
        write_csv(path, &report.round_trips)?;
    }
    let output = Output::new(options.json);
    if options.histogram {
        output.say(report.rtt_histogram.text.trim_end());
    }
    output.say(&report.for_people());
    output.report(&report)?;
    Ok(report.verdict == Verdict::Pass)
}

impl Options {
    fn workload(&self) -> Result<Workload, Error> {
        if self.num_messages == Some(0) {
            return Err(Error::Options(
                "--num-messages 0: there is nothing to check; send 1 at least".to_owned(),
            ));
        }
        let (Some(dem), Some(dets), Some(obs)) = (&self.dem, &self.dets, &self.obs) else {
            let messages = self.num_messages.unwrap_or(DEFAULT_MESSAGES);
            return Ok(Workload::Increment(Increment { messages, payload_len: self.payload_size as usize }));
        };
        let files = SurfaceCodeFiles {
            dem: dem.clone(),
            dets: dets.clone(),
            obs: obs.clone(),
            pred: self.pred.clone(),
        };
        Ok(Workload::SurfaceCode(SurfaceCode::load(&files, self.num_messages)?))
    }

    fn plan(&self) -> Result<Plan, Error> {
        let [emulator_port, fpga_port] = CONTROL_PORTS;
        let port = self.control_port.unwrap_or(if self.emulator { emulator_port } else { fpga_port });
        let hif = if self.emulator { regs::EMULATOR_HIF_ADDRESS } else { regs::HIF_ADDRESS };
        let board = self.discover()?;
        let ip = board.as_ref().map(|board| board.peer_ip).or(self.hsb_ip).unwrap_or(Ipv4Addr::UNSPECIFIED);
        let kind = board.as_ref().and_then(|board| board.kind);
        let qpn = Qpn::new(self.bridge_qp).map_err(|e| Error::Options(format!("--bridge-qp: {e}")))?;
        Ok(Plan {
            fpga: SocketAddrV4::new(ip, port),
            start: self
                .start
                .then(|| board.as_ref().map_or_else(StartOptions::default, Board::start_options)),
            block_access: !self.no_blocks && kind.is_none_or(|kind| kind.block_access),
            emulator: self.emulator,
            vp_address: self.vp_address,
            hif_address: self.hif_address.unwrap_or(hif),
            bridge: PeerEndpoint { qpn, rkey: Some(Rkey::new(self.bridge_rkey)), ip: self.bridge_ip },
            bridge_mac: self.mac()?,
            bridge_buffer: self.bridge_buffer,
            page_size: self.page_size,
            num_pages: self.num_pages,
            expect: if self.forward { Expect::Echoes } else { Expect::Answers },
            verify: !self.no_verify,
            spacing: Duration::from_micros(self.spacing_us.into()),
            timeout: Duration::from_secs(self.timeout.into()),
            endless: self.endless,
        })
    }

    /// Where no address was given.
    fn discover(&self) -> Result<Option<Board>, Error> {
        if self.hsb_ip.is_some() {
            return Ok(None);
        }
        let config = DiscoveryConfig { address: self.listen, interface: None };
        let board = the_one(BlockingDiscovery::open(&config)?.collect(DISCOVER)?, None)?;
        tracing::info!(ip = %board.peer_ip, serial = %board.serial(), "a board was discovered");
        Ok(Some(board))
    }

    fn mac(&self) -> Result<Mac, Error> {
        let found = self.bridge_mac.map_or_else(|| mac_of(self.bridge_ip), |mac| Ok(Some(mac)))?;
        match found {
            Some(mac) => Ok(mac),
            None if self.emulator => Ok(Mac([0; 6])),
            None => Err(Error::Options(format!(
                "{} is no address of this machine, so its Ethernet address is unknown; give it with --bridge-mac",
                self.bridge_ip
            ))),
        }
    }
}
