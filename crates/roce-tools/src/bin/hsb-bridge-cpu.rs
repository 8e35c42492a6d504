//! The bridge between an FPGA and the functions that answer it, on CPUs alone.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use roce_core::{PeerEndpoint, Qpn};
use roce_dispatch::rpc::HEADER_LEN;
use roce_tools::bridge::{Bridge, BridgeReport, Dispatcher};
use roce_tools::cli::{FaultOptions, JsonTarget, LinkOptions, exit_code, number, parse};
use roce_tools::output::{Output, announce, init_logging};
use roce_tools::workload::load_graph;
use roce_tools::{Error, handlers, signal};
use roce_transport::{Config, ImmediateFormat, Mode, SpinPolicy};

/// Receives an FPGA's requests over RoCEv2, calls the functions, and sends the answers back.
///
/// Serves rpc_increment and, with --dem, mwpm_decode. Prints how it is reached, then runs until a signal or --timeout,
/// then prints its counters. Numbers are decimal or 0x hex.
#[derive(Debug, Parser)]
#[command(name = "hsb-bridge-cpu", version, args_override_self = true)]
struct Options {
    #[command(flatten)]
    link: LinkOptions,
    /// The FPGA's RoCE address.
    #[arg(long, value_name = "IP")]
    peer_ip: Ipv4Addr,
    /// The FPGA's queue pair.
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    remote_qp: u32,
    /// Slots of each ring, a power of two.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "64")]
    num_pages: u32,
    /// Bytes from slot to slot.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "384")]
    page_size: u32,
    /// The largest payload, in bytes; 24 bytes of header come on top.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "8")]
    payload_size: u32,
    /// Where the FPGA's immediate has the slot: hsb, with HSB IP 0x2603 and later; hsb-2510, before; auto is hsb for up to
    /// 4096 slots, without the packet number.
    #[arg(long, value_name = "FORMAT", value_parser = immediate, default_value = "auto")]
    immediate: ImmediateFormat,
    /// End after so many seconds.
    #[arg(long, value_name = "S", value_parser = number::<u32>, default_value = "60")]
    timeout: u32,
    /// One thread receives, calls and answers, without flags in between.
    #[arg(long, conflicts_with = "forward")]
    unified: bool,
    /// Send up to N answers at once, where as many requests came together; for functions faster than a send. A lone
    /// answer waits for nothing.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "1", requires = "unified")]
    answers_per_flush: u32,
    /// Send every request back as it is; call nothing.
    #[arg(long)]
    forward: bool,
    /// A detector error model to decode with: serves mwpm_decode.
    #[arg(long, value_name = "FILE", conflicts_with = "forward")]
    dem: Option<PathBuf>,
    /// Pin the thread that calls the functions to this CPU.
    #[arg(long, value_name = "CPU", value_parser = number::<u16>)]
    cpu: Option<u16>,
    /// Pin the thread that receives to this CPU.
    #[arg(long, value_name = "CPU", value_parser = number::<u16>)]
    rx_cpu: Option<u16>,
    /// Pin the thread that sends to this CPU.
    #[arg(long, value_name = "CPU", value_parser = number::<u16>)]
    tx_cpu: Option<u16>,
    /// Run the receiving and the sending thread under SCHED_FIFO with this priority, 1 to 99.
    #[arg(long, value_name = "N", value_parser = number::<u8>)]
    rt_priority: Option<u8>,
    /// Never give a CPU away while waiting: for threads that have one each.
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    faults: FaultOptions,
    /// Write what the device sends and receives, for Wireshark.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write the counters as JSON; - is standard output.
    #[arg(long, value_name = "FILE", value_parser = JsonTarget::parse)]
    json: Option<JsonTarget>,
}

fn main() -> ExitCode {
    init_logging();
    exit_code::<Options>(run(parse()))
}

fn run(options: Options) -> Result<bool, Error> {
    let stop = signal::stop_flag()?;
    let graph = options.dem.as_deref().map(load_graph).transpose()?;
    let table = handlers::table(graph.as_ref())?;
    let bridge = Bridge::connect(options.config()?, options.dispatcher())?;
    announce(&bridge.handshake());

    let deadline = Instant::now() + Duration::from_secs(options.timeout.into());
    let mut report = bridge.run(table, &stop, deadline);
    if report.error.is_none() {
        report.error = options.idle(&report, deadline);
    }
    let output = Output::new(options.json);
    output.say(&report.for_people());
    output.report(&report.json())?;
    report.error.map_or(Ok(true), Err)
}

fn immediate(name: &str) -> Result<ImmediateFormat, String> {
    match name {
        "auto" => Ok(ImmediateFormat::Auto),
        "hsb" => Ok(ImmediateFormat::Hsb),
        "hsb-2510" => Ok(ImmediateFormat::Hsb2510),
        other => Err(format!("`{other}` is none; take auto, hsb or hsb-2510")),
    }
}

impl Options {
    fn config(&self) -> Result<Config, Error> {
        let qpn = Qpn::new(self.remote_qp).map_err(|e| Error::Options(format!("--remote-qp: {e}")))?;
        let header = u32::try_from(HEADER_LEN).unwrap_or(u32::MAX);
        let mut config = self
            .link
            .config(&self.faults)
            .num_pages(self.num_pages)
            .page_size(self.page_size)
            .frame_size(self.payload_size.saturating_add(header))
            .mode(self.mode())
            .immediate(self.immediate)
            .peer(PeerEndpoint { qpn, rkey: None, ip: self.peer_ip })
            .spin(self.spin());
        if let Some(cpu) = self.rx_cpu {
            config = config.rx_cpu(cpu.into());
        }
        if let Some(cpu) = self.tx_cpu {
            config = config.tx_cpu(cpu.into());
        }
        if let Some(priority) = self.rt_priority {
            config = config.rt_priority(priority);
        }
        if let Some(file) = &self.pcap {
            config = config.pcap(file);
        }
        config.build().map_err(|e| Error::Options(e.to_string()))
    }

    fn dispatcher(&self) -> Dispatcher {
        let cpu = self.cpu.map(usize::from);
        Dispatcher { cpu, spin: self.spin(), answers_per_flush: self.answers_per_flush }
    }

    fn spin(&self) -> SpinPolicy {
        if self.spin { SpinPolicy::Spin } else { SpinPolicy::default() }
    }

    fn mode(&self) -> Mode {
        match (self.unified, self.forward) {
            (true, _) => Mode::Unified,
            (_, true) => Mode::Forward,
            _ => Mode::Threads,
        }
    }

    /// A bridge that nobody called until its time was up was not reached.
    fn idle(&self, report: &BridgeReport, deadline: Instant) -> Option<Error> {
        let unreached = report.stats.received == 0 && Instant::now() >= deadline;
        unreached.then(|| {
            Error::Idle(format!(
                "no request came within {} s: does the FPGA or its emulator run at {}, is {:#x} its queue pair, and was \
                 hsb-fpga-playback started with the numbers above?",
                self.timeout, self.peer_ip, self.remote_qp
            ))
        })
    }
}
