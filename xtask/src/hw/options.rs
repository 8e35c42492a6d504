//! The options of `cargo xtask hw-test`: its own, and those of `emulate`.

use std::ffi::OsString;
use std::net::Ipv4Addr;

use super::checks::Seat;
use crate::emulate;

pub(super) const USAGE: &str = "\
usage: cargo xtask hw-test --device DEVICE [OPTIONS]

Checks what RDMA devices need, names every failure with its cure, then runs bridge, FPGA and playback over them. Exit
code: 0 all right, 1 not, 2 bad options. See docs/hardware.md.

  --device DEVICE         the bridge's RDMA device
  --peer-device DEVICE    the software FPGA's (the same: the loop-back of one port, which needs two addresses)
  --ib-port N, --peer-ib-port N
                          the ports of these devices (1)
  --fpga-ip IP|auto       a real FPGA in place of the software one; auto: the one board that makes itself known
  --start                 first write what a board needs once after it was switched on
  --fpga-qp N             the queue pair on which it takes answers (2)
  --bridge-ip IP          (the port's first address)
  --emulator-ip IP        (the port's first address that is not the bridge's)
  --control-port PORT     UDP port of the FPGA's registers (8193; of a real FPGA 8192)
  --mtu BYTES             that the interfaces must have at least, or get from --setup-network
  --setup-network         give the interfaces the addresses and the MTU, and neighbours, for the time of the run; needs
                          root, --bridge-ip, and --emulator-ip where there is no FPGA
  --build                 build the programs first, which is done anyway unless --programs names built ones
  --unified, --forward, --workload NAME, --num-messages N, --payload-size BYTES, --page-size BYTES, --num-pages N,
  --immediate FORMAT, --timeout SECONDS, --no-verify, --histogram, --rtt-csv DIR, --json FILE|-, --programs DIR, --verbose
                          as of `cargo xtask emulate`
  --help
";

/// The queue pair of a Holoscan sensor bridge that takes SENDs; its logic fixes the number.
const FPGA_QP: u32 = 2;
const FPGA_CONTROL_PORT: &str = "8192";

/// A real FPGA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fpga {
    /// `None`: to be discovered.
    pub(super) ip: Option<Ipv4Addr>,
    pub(super) qp: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct HwOptions {
    pub(super) device: String,
    pub(super) fpga: Option<Fpga>,
    /// Bytes.
    pub(super) mtu: Option<u32>,
    pub(super) setup_network: bool,
    pub(super) run: emulate::Options,
}

#[derive(Debug, PartialEq)]
pub(super) enum Request {
    Help,
    Run(Box<HwOptions>),
}

impl HwOptions {
    /// Our ends: the bridge's, and the software FPGA's where there is one.
    pub(super) fn seats(&self) -> Vec<Seat> {
        let run = &self.run;
        let bridge =
            Seat { device: self.device.clone(), port: run.ib_port, ip: run.bridge_ip, option: "--bridge-ip" };
        if self.fpga.is_some() {
            return vec![bridge];
        }
        let (device, port) = run.peer_place(&self.device);
        let emulator = Seat { device: device.to_owned(), port, ip: run.emulator_ip, option: "--emulator-ip" };
        vec![bridge, emulator]
    }
}

/// Takes out what is ours and leaves the rest to `emulate`.
pub(super) fn parse(args: Vec<OsString>) -> Result<Request, String> {
    let mut device = None;
    let mut fpga_ip = None;
    let mut fpga_qp = None;
    let mut mtu = None;
    let (mut build, mut setup_network, mut start) = (false, false, false);
    let mut rest: Vec<OsString> = Vec::new();
    let mut args = split_equals(args).into_iter();
    while let Some(arg) = args.next() {
        let name = arg.to_string_lossy().into_owned();
        let mut value = || {
            let value = args.next().and_then(|value| value.into_string().ok());
            value.ok_or_else(|| format!("{name} needs a value"))
        };
        match name.as_str() {
            "--help" | "-h" => return Ok(Request::Help),
            "--device" => device = Some(value()?),
            "--fpga-ip" => fpga_ip = Some(fpga_address(&name, &value()?)?),
            "--start" => start = true,
            "--fpga-qp" => fpga_qp = Some(queue_pair(&value()?)?),
            "--mtu" => mtu = Some(read(&name, &value()?, "a number of bytes")?),
            "--build" => build = true,
            "--setup-network" => setup_network = true,
            "--backend" | "--drop-rate" | "--seed" | "--pcap" | "--personality" => {
                return Err(format!("{name} is of `cargo xtask emulate`; hw-test has --device"));
            }
            _ => rest.push(arg),
        }
    }
    let device =
        device.ok_or("say which RDMA device the bridge takes, with --device; `rdma link` lists them")?;
    let given = |option: &str| rest.iter().any(|arg| arg == option);
    if build && given("--programs") {
        return Err("--build and --programs are two sources of the same programs; take one".to_owned());
    }
    let fpga = match (fpga_ip, fpga_qp) {
        (Some(ip), qp) => Some(Fpga { ip, qp: qp.unwrap_or(FPGA_QP) }),
        (None, Some(_)) => return Err("--fpga-qp says nothing without --fpga-ip".to_owned()),
        (None, None) => None,
    };
    if start && fpga.is_none() {
        return Err("--start is about a real FPGA; name it with --fpga-ip".to_owned());
    }
    if fpga.is_some() {
        let of_emulator = ["--peer-device", "--peer-ib-port", "--emulator-ip"];
        if let Some(option) = of_emulator.iter().find(|option| given(option)) {
            return Err(format!("{option} is about the software FPGA, and --fpga-ip names a real one"));
        }
        if !given("--control-port") {
            rest.extend(["--control-port", FPGA_CONTROL_PORT].map(OsString::from));
        }
    }
    rest.extend(["--backend".into(), device.clone().into()]);
    match emulate::parse(rest)? {
        emulate::Request::Help => Ok(Request::Help),
        emulate::Request::Run(run) => {
            let run = emulate::Options { start, ..*run };
            Ok(Request::Run(Box::new(HwOptions { device, fpga, mtu, setup_network, run })))
        }
    }
}

/// "--name=value" as two words.
fn split_equals(args: Vec<OsString>) -> Vec<OsString> {
    let split = |arg: OsString| match arg.to_str().and_then(|text| text.split_once('=')) {
        Some((name, value)) if name.starts_with("--") => vec![name.into(), value.into()],
        _ => vec![arg],
    };
    args.into_iter().flat_map(split).collect()
}

/// `None` for `auto`.
fn fpga_address(name: &str, value: &str) -> Result<Option<Ipv4Addr>, String> {
    if value == "auto" { Ok(None) } else { read(name, value, "an IPv4 address, and not auto").map(Some) }
}

fn read<T: std::str::FromStr>(name: &str, value: &str, what: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} {value}: not {what}"))
}

/// 24 bits, decimal or 0x hex.
fn queue_pair(value: &str) -> Result<u32, String> {
    let qp =
        value.strip_prefix("0x").map_or_else(|| value.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
    qp.filter(|qp| *qp < 1 << 24).ok_or_else(|| format!("--fpga-qp {value}: not a queue pair (24 bits)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::Mode;

    fn parsed(line: &str) -> Result<HwOptions, String> {
        match parse(line.split_whitespace().map(OsString::from).collect())? {
            Request::Run(options) => Ok(*options),
            Request::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn one_port_two_ports_and_an_fpga() {
        let one = parsed("--device mlx5_0").unwrap();
        let places = |options: &HwOptions| {
            options.seats().into_iter().map(|seat| (seat.device, seat.port)).collect::<Vec<_>>()
        };
        assert_eq!(places(&one), [("mlx5_0".into(), 1), ("mlx5_0".into(), 1)]);
        let two =
            parsed("--device mlx5_0 --ib-port 2 --peer-device mlx5_1 --setup-network --mtu=4200").unwrap();
        assert_eq!(places(&two), [("mlx5_0".into(), 2), ("mlx5_1".into(), 1)]);
        assert!(two.setup_network && two.mtu == Some(4200));
        let fpga = parsed("--device mlx5_0 --fpga-ip 192.168.0.2 --bridge-ip 192.168.0.1 --unified").unwrap();
        assert_eq!(fpga.fpga, Some(Fpga { ip: Some([192, 168, 0, 2].into()), qp: 2 }));
        assert_eq!((fpga.run.control_port, fpga.run.mode), (8192, Mode::Unified));
        assert_eq!(places(&fpga).len(), 1);
        let other =
            parsed("--device m --fpga-ip 10.0.0.2 --fpga-qp 0x11 --control-port 9000 --build").unwrap();
        assert_eq!((other.fpga.map(|fpga| fpga.qp), other.run.control_port), (Some(17), 9000));
    }

    #[test]
    fn a_board_can_be_found_and_started() {
        let found = parsed("--device m --fpga-ip auto --start --histogram --rtt-csv d").unwrap();
        assert_eq!(found.fpga, Some(Fpga { ip: None, qp: 2 }));
        assert!(found.run.start && found.run.histogram && found.run.rtt_csv == Some("d".into()));
        assert!(!parsed("--device m --fpga-ip 10.0.0.2").unwrap().run.start);
        assert!(parsed("--device m --start").unwrap_err().contains("--fpga-ip"));
    }

    #[test]
    fn the_rest_is_emulates() {
        let run = parsed("--device m --num-messages 7 --page-size=512 --no-verify --timeout 9").unwrap().run;
        assert_eq!((run.num_messages, run.page_size, run.verify), (7, 512, false));
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (line, part) in [
            ("", "--device"),
            ("--device", "needs a value"),
            ("--device m --backend soft", "--backend"),
            ("--device m --drop-rate 0.1", "--drop-rate"),
            ("--device m --fpga-qp 2", "--fpga-ip"),
            ("--device m --fpga-ip x", "IPv4"),
            ("--device m --fpga-ip 10.0.0.2 --fpga-qp 0x1000000", "24 bits"),
            ("--device m --fpga-ip 10.0.0.2 --peer-device n", "--peer-device"),
            ("--device m --build --programs p", "take one"),
            ("--device m --num-pages 3", "power of two"),
            ("--device m --nope", "--nope"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
