//! The control plane of a Holoscan Sensor Bridge board, by hand.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use roce_core::{Qpn, Rkey};
use roce_rendezvous::hsb::{
    BlockingClient, BlockingDiscovery, Board, DiscoveryConfig, HsbError, Ignored, Mac, ResetOptions,
    RoceConfig, StartOptions, Timing, enumeration, mac_of,
};
use roce_tools::Error;
use roce_tools::cli::{JsonTarget, exit_code, number, parse};
use roce_tools::hsb::{PlaceOptions, for_people, json, the_one};
use roce_tools::output::{Output, announce, init_logging};

/// A board announces itself once a second.
const DISCOVER: u32 = 3;
const ANSWER: u32 = 5;
const RESTART: u32 = 30;
const WORDS_PER_READ: u32 = 1 << 20;

/// The control plane of a Holoscan Sensor Bridge board: finds boards, reads and writes registers, tells a board whom to
/// stream to.
///
/// Without --hsb-ip the board is discovered; there must be one only. Exit code 1 where a board does not answer or refuses,
/// 2 for options that cannot work. Numbers are decimal or 0x hex.
#[derive(Debug, Parser)]
#[command(name = "hsb", version, args_override_self = true, propagate_version = true)]
struct Options {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: Command,
}

/// How the board is found and reached.
#[derive(Debug, Args)]
struct Reach {
    /// The board's address [default: the one board that is discovered].
    #[arg(long, value_name = "IP", global = true)]
    hsb_ip: Option<Ipv4Addr>,
    /// The board's control port.
    #[arg(long, value_name = "N", value_parser = number::<u16>, default_value = "8192", global = true)]
    control_port: u16,
    /// Hear boards on this interface alone.
    #[arg(long, value_name = "NAME", global = true)]
    interface: Option<String>,
    /// Where announcements are listened for.
    #[arg(
        long, value_name = "IP:PORT", global = true,
        default_value_t = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, enumeration::HOST_PORT)
    )]
    listen: SocketAddrV4,
    /// How long to wait, in seconds: for boards [default: 3], for an answer [default: 5], for a board to restart
    /// [default: 30].
    #[arg(long, value_name = "S", value_parser = number::<u32>, global = true)]
    timeout: Option<u32>,
    /// Ask for one register at a time [default: as the board's kind has it, where it was discovered, else blocks].
    #[arg(long, global = true)]
    no_blocks: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the boards that make themselves known; exit code 1 if there is none.
    Discover {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read registers.
    Read {
        /// The first register, a multiple of 4.
        #[arg(value_name = "ADDR", value_parser = number::<u32>)]
        address: u32,
        /// How many, one after another.
        #[arg(value_name = "COUNT", value_parser = number::<u32>, default_value = "1")]
        count: u32,
    },
    /// Write a register.
    Write {
        /// The register, a multiple of 4.
        #[arg(value_name = "ADDR", value_parser = number::<u32>)]
        address: u32,
        /// What it shall hold.
        #[arg(value_name = "VALUE", value_parser = number::<u32>)]
        value: u32,
    },
    /// Write what a board needs once after it was switched on.
    Start(Start),
    /// Tell a stream of the board whose ring to write into, and let it go.
    Configure(Box<Configure>),
    /// Stop a stream and make the board forget the ring.
    Unconfigure(PlaceOptions),
    /// Restart the board, wait until it is back, and start it.
    Reset(Start),
}

/// How a board is started.
#[derive(Debug, Clone, Args)]
struct Start {
    /// Leave the PTP clock alone.
    #[arg(long)]
    no_ptp: bool,
    /// This host's UDP port for messages about events.
    #[arg(long, value_name = "PORT", value_parser = number::<u16>, default_value = "0")]
    event_port: u16,
}

/// A host's ring.
#[derive(Debug, Args)]
struct Configure {
    #[command(flatten)]
    place: PlaceOptions,
    /// The host's queue pair.
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    qp: u32,
    /// The key of the host's ring.
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    rkey: u32,
    /// The host's RoCE address [default: this machine's on the way to the board].
    #[arg(long, value_name = "IP")]
    host_ip: Option<Ipv4Addr>,
    /// The host's Ethernet address [default: looked up by the RoCE address].
    #[arg(long, value_name = "MAC")]
    host_mac: Option<Mac>,
    /// Where the ring begins, as the board addresses it.
    #[arg(long, value_name = "ADDR", value_parser = number::<u64>, default_value = "0")]
    base: u64,
    /// Bytes of a frame.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>)]
    frame_size: u32,
    /// Bytes from page to page.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "384")]
    page_size: u32,
    /// Pages of the ring.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "64")]
    pages: u32,
    /// Let 128 bytes of metadata follow each frame.
    #[arg(long)]
    metadata: bool,
    /// The link's MTU.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "1500")]
    mtu: u32,
    /// The VLAN tag of the board's packets: priority, drop-eligible, number, as on the wire.
    #[arg(long, value_name = "TAG", value_parser = number::<u16>)]
    vlan: Option<u16>,
}

fn main() -> ExitCode {
    init_logging();
    let Options { reach, command } = parse();
    exit_code::<Options>(run(&reach, command).map_err(blame_options))
}

/// What no board was asked, since it cannot be, came from the command line.
fn blame_options(error: Error) -> Error {
    match error {
        Error::Control(refused @ (HsbError::Address { .. } | HsbError::Config { .. })) => {
            Error::Options(refused.to_string())
        }
        other => other,
    }
}

fn run(reach: &Reach, command: Command) -> Result<bool, Error> {
    match command {
        Command::Discover { json } => return discover(reach, json),
        Command::Read { address, count } => read(reach, address, count)?,
        Command::Write { address, value } => reach.open(None)?.client.write(address, value)?,
        Command::Start(start) => {
            let Session { mut client, board } = reach.open(None)?;
            client.start(&start.options(board.as_ref()))?;
        }
        Command::Configure(configure) => configure.run(reach)?,
        Command::Unconfigure(place) => unconfigure(reach, &place)?,
        Command::Reset(start) => reset(reach, &start)?,
    }
    Ok(true)
}

/// A session, and the board where it was discovered.
struct Session {
    client: BlockingClient,
    board: Option<Board>,
}

impl Reach {
    fn seconds(&self, default: u32) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(default).into())
    }

    fn discovery(&self) -> DiscoveryConfig {
        DiscoveryConfig { address: self.listen, interface: self.interface.clone() }
    }

    fn open(&self, data_plane: Option<u32>) -> Result<Session, Error> {
        let board = match self.hsb_ip {
            Some(_) => None,
            None => {
                let heard = BlockingDiscovery::open(&self.discovery())?.collect(self.seconds(DISCOVER))?;
                Some(the_one(heard, data_plane)?)
            }
        };
        let ip = board.as_ref().map_or(self.hsb_ip, |board| Some(board.peer_ip));
        let peer = SocketAddrV4::new(ip.unwrap_or(Ipv4Addr::UNSPECIFIED), self.control_port);
        let patience = self.seconds(ANSWER);
        let timing = Timing { first_timeout: patience, timeout: patience, ..Timing::default() };
        let client = BlockingClient::connect(peer, timing)?;
        let kind = board.as_ref().and_then(|board| board.kind);
        let blocks = !self.no_blocks && kind.is_none_or(|kind| kind.block_access);
        Ok(Session { client: client.with_block_access(blocks), board })
    }
}

fn discover(reach: &Reach, as_json: bool) -> Result<bool, Error> {
    let mut discovery = BlockingDiscovery::open(&reach.discovery())?;
    let boards = discovery.collect(reach.seconds(DISCOVER))?;
    if as_json {
        Output::new(Some(JsonTarget::Stdout)).report(&json(&boards, discovery.ignored()))?;
    } else if !boards.is_empty() {
        announce(&for_people(&boards, discovery.ignored()));
    }
    if boards.is_empty() {
        return Err(Error::Control(HsbError::NoBoard {
            address: reach.listen,
            waited: reach.seconds(DISCOVER),
            others: 0,
            ignored: discovery.ignored(),
        }));
    }
    Ok(true)
}

fn read(reach: &Reach, address: u32, count: u32) -> Result<(), Error> {
    if !(1..=WORDS_PER_READ).contains(&count) {
        return Err(Error::Options(format!("COUNT {count}: take 1 to {WORDS_PER_READ}")));
    }
    let mut client = reach.open(None)?.client;
    let words = match count {
        1 => vec![client.read(address)?],
        _ => client.read_block(address, count as usize)?,
    };
    let lines = (address..).step_by(4).zip(words);
    let lines: Vec<_> = lines.map(|(address, word)| format!("{address:#010x}: {word:#010x}")).collect();
    announce(&lines.join("\n"));
    Ok(())
}

impl Start {
    fn options(&self, board: Option<&Board>) -> StartOptions {
        let options = board.map_or_else(StartOptions::default, Board::start_options);
        StartOptions { ptp: !self.no_ptp, event_port: self.event_port, ..options }
    }
}

impl Configure {
    fn run(&self, reach: &Reach) -> Result<(), Error> {
        let qpn = Qpn::new(self.qp).map_err(|e| Error::Options(format!("--qp: {e}")))?;
        let Session { mut client, board } = reach.open(self.place.data_plane)?;
        let ip = self.host_ip.map_or_else(|| client.local_ip(), Ok)?;
        let ring = RoceConfig {
            mac: self.mac(ip)?,
            base: self.base,
            metadata: self.metadata,
            mtu: self.mtu,
            vlan: self.vlan,
            ..RoceConfig::new(qpn, Rkey::new(self.rkey), ip, self.frame_size, self.page_size, self.pages)
        };
        client.configure_roce(&ring.at(self.place.place(board.as_ref())?))?;
        announce(&format!("{} streams to {ip}, queue pair {qpn}", client.peer().ip()));
        Ok(())
    }

    fn mac(&self, ip: Ipv4Addr) -> Result<Mac, Error> {
        let mac = self.host_mac.map_or_else(|| mac_of(ip), |mac| Ok(Some(mac)))?;
        mac.ok_or_else(|| {
            Error::Options(format!(
                "{ip} is no address of this machine, so its Ethernet address is unknown; give it with --host-mac"
            ))
        })
    }
}

fn unconfigure(reach: &Reach, place: &PlaceOptions) -> Result<(), Error> {
    let Session { mut client, board } = reach.open(place.data_plane)?;
    let nobody = RoceConfig::new(Qpn::from_low_bits(0), Rkey::new(0), Ipv4Addr::UNSPECIFIED, 0, 0, 0);
    Ok(client.unconfigure_roce(&nobody.at(place.place(board.as_ref())?))?)
}

fn reset(reach: &Reach, start: &Start) -> Result<(), Error> {
    let Session { mut client, board } = reach.open(None)?;
    let options = ResetOptions {
        discovery: reach.discovery(),
        timeout: reach.seconds(RESTART),
        start: start.options(board.as_ref()),
        board,
    };
    let board = client.reset(&options)?;
    announce(&for_people(&[board], Ignored::default()));
    Ok(())
}
