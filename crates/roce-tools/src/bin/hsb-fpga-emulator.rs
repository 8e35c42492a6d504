//! A software FPGA: its registers over UDP, its data plane over RoCEv2.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;
use hsb_emulator::{Config, Emulator, Enumeration, Personality};
use roce_core::Qpn;
use roce_rendezvous::hsb::enumeration::HOST_PORT;
use roce_rendezvous::hsb::{FPGA_QPN, Uuid};
use roce_tools::cli::{FaultOptions, JsonTarget, LinkOptions, exit_code, number, parse};
use roce_tools::output::{Output, announce, init_logging};
use roce_tools::{Error, emulator, signal};
use roce_transport::{AnyDevice, DeviceConfig};

/// A software FPGA: its registers over UDP, its data plane over RoCEv2.
///
/// Runs until a signal or --timeout, then prints a summary. Exit code 0 only when windows were played and all of them
/// were answered well. Numbers are decimal or 0x hex.
#[derive(Debug, Parser)]
#[command(name = "hsb-fpga-emulator", version, args_override_self = true)]
#[command(mut_arg("device", |device| device.default_value("soft:127.0.0.2")))]
struct Options {
    /// Which FPGA it plays: fpga is the hardware, lenient the emulator of the host's libraries.
    #[arg(long, value_name = "NAME", default_value_t)]
    personality: Personality,
    /// The version of its HSB IP; before 0x2602 a virtual port has a register per page [default: 0x2606, lenient
    /// 0x2602].
    #[arg(long, value_name = "VERSION", value_parser = number::<u16>)]
    hsb_ip_version: Option<u16>,
    #[command(flatten)]
    link: LinkOptions,
    /// The queue pair that answers go to, on a soft device; an RDMA device has its own numbers [default: an FPGA's].
    #[arg(long, value_name = "QPN", value_parser = qpn)]
    qpn: Option<Qpn>,
    /// The UDP port of the control plane, on that address, or on all where only the device knows it.
    #[arg(long, value_name = "PORT", value_parser = number::<u16>, default_value = "8193")]
    port: u16,
    /// The bridge's address [default: what playback writes into the registers].
    #[arg(long, value_name = "IP")]
    bridge_ip: Option<Ipv4Addr>,
    /// The registers of the virtual port that streams.
    #[arg(long, value_name = "ADDR", value_parser = number::<u32>, default_value = "0x1000")]
    vp_address: u32,
    /// Another way to the registers of the host interface, beside the one that all FPGAs have.
    #[arg(long, value_name = "ADDR", value_parser = number::<u32>, default_value = "0x0800")]
    hif_address: u32,
    /// Bytes: longer windows are cut to this.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "384")]
    page_size: u32,
    /// How long a window may take to be answered, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = number::<u32>, default_value = "10000")]
    response_timeout_ms: u32,
    /// The bridge sends the requests back as they are.
    #[arg(long)]
    forward: bool,
    /// Do not announce the board.
    #[arg(long)]
    no_enumeration: bool,
    /// Announce the board there, at port 12267 where none is given; may be repeated [default: the broadcast address
    /// of its interface, and this machine].
    #[arg(long, value_name = "IP[:PORT]", value_parser = target)]
    announce_to: Vec<SocketAddrV4>,
    /// From one announcement to the next, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = number::<u32>, default_value = "1000")]
    announce_interval_ms: u32,
    /// The design that is announced, by which a host knows the board's geometry [default: a Hololink Lite's; lenient:
    /// the emulator's].
    #[arg(long, value_name = "UUID")]
    uuid: Option<Uuid>,
    #[command(flatten)]
    faults: FaultOptions,
    /// Write what the device sends and receives, for Wireshark.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// End after so many seconds [default: run until a signal].
    #[arg(long, value_name = "S", value_parser = number::<u32>)]
    timeout: Option<u32>,
    /// Write the summary as JSON; - is standard output.
    #[arg(long, value_name = "FILE", value_parser = JsonTarget::parse)]
    json: Option<JsonTarget>,
}

fn main() -> ExitCode {
    init_logging();
    exit_code::<Options>(run(parse()))
}

fn run(options: Options) -> Result<bool, Error> {
    let stop = signal::stop_flag()?;
    let device = AnyDevice::open(&options.device())
        .map_err(|source| Error::Device { device: options.link.name().to_owned(), source })?;
    let mut fpga = Emulator::bind(options.config(), device)?;

    announce(&format!("  QP Number: {:#x}", fpga.qpn().get()));
    announce(&format!("=== Emulator Ready === control plane at {}", fpga.control_address()));
    if let Some(seconds) = options.timeout {
        stop_after(Duration::from_secs(seconds.into()), Arc::clone(&stop));
    }
    let summary = fpga.run(&stop);

    let output = Output::new(options.json);
    output.say(&emulator::for_people(&summary));
    output.report(&emulator::json(&summary))?;
    if summary.windows == 0 && summary.refused.is_empty() {
        return Err(Error::Idle(format!(
            "no window was played: start the bridge with --remote-qp {:#x}, then hsb-fpga-playback with --hsb-ip {}",
            fpga.qpn().get(),
            fpga.control_address().ip()
        )));
    }
    Ok(summary.is_success())
}

fn qpn(text: &str) -> Result<Qpn, String> {
    Qpn::new(number(text)?).map_err(|error| error.to_string())
}

fn target(text: &str) -> Result<SocketAddrV4, String> {
    let ip = |text: &str| text.parse().map(|ip| SocketAddrV4::new(ip, HOST_PORT));
    text.parse().or_else(|_| ip(text)).map_err(|_| format!("`{text}` is no address; write 192.168.0.255"))
}

fn stop_after(time: Duration, stop: Arc<AtomicBool>) {
    thread::spawn(move || {
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
}

impl Options {
    fn device(&self) -> DeviceConfig {
        let mut device = self.link.device(&self.faults);
        device.first_qpn = Some(self.qpn.unwrap_or(FPGA_QPN));
        device.pcap.clone_from(&self.pcap);
        device
    }

    fn enumeration(&self) -> Enumeration {
        Enumeration {
            interval: Duration::from_millis(self.announce_interval_ms.into()),
            targets: (!self.announce_to.is_empty()).then(|| self.announce_to.clone()),
            uuid: self.uuid,
            ..Enumeration::default()
        }
    }

    fn config(&self) -> Config {
        Config {
            personality: self.personality,
            hsb_ip_version: self.hsb_ip_version,
            enumeration: (!self.no_enumeration).then(|| self.enumeration()),
            control: SocketAddrV4::new(self.link.ip().unwrap_or(Ipv4Addr::UNSPECIFIED), self.port),
            host_ip: self.bridge_ip,
            vp_address: self.vp_address,
            hif_address: self.hif_address,
            page_size: self.page_size,
            forward: self.forward,
            response_timeout: Duration::from_millis(self.response_timeout_ms.into()),
            ..Config::default()
        }
    }
}
