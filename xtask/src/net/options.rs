//! The options of `cargo xtask net-setup`.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::str::FromStr;

use lexopt::{Arg, Parser, ValueExt};

use super::steps::SMALLEST_MTU;
use super::{Neighbour, OnInterface, Pair, Subnet};

pub(crate) const USAGE: &str = "\
usage: cargo xtask net-setup --rxe IFACE [--address IP/LENGTH]... [--mtu BYTES] [--neighbour IP=MAC]...
       cargo xtask net-setup --veth [--mtu BYTES] [--bridge-ip IP] [--emulator-ip IP]
       cargo xtask net-teardown

Makes devices of the kernel's soft-RoCE, waits until their addresses have GIDs, and prints every command it runs. Asking
twice changes nothing. net-teardown takes back exactly what was done. Needs root, and a kernel with rdma_rxe.

  --rxe IFACE            a device on this interface, which gets nothing that is not asked for here
  --address IP/LENGTH    an address that the interface shall have; the loop-back of one port needs two
  --neighbour IP=MAC     a neighbour that is not asked for its address, such as an FPGA without ARP
  --veth                 rxe_a and rxe_b on the ends of a veth pair, roce_a and roce_b, in this network namespace
  --bridge-ip IP         of rxe_a (198.18.77.1)
  --emulator-ip IP       of rxe_b (198.18.77.2)
  --mtu BYTES            of the interface (--veth: 9000); 4200 carry a path MTU of 4096
  --help
";

/// What the arguments ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Help,
    Veth(Pair),
    Rxe(OnInterface),
}

/// Reads the arguments; the error says which one is wrong, and how.
pub(super) fn parse(args: Vec<OsString>) -> Result<Request, String> {
    let mut interface = None;
    let mut veth = false;
    let mut mtu = None;
    let mut addresses = Vec::new();
    let mut neighbours = Vec::new();
    let mut ips: [Option<Ipv4Addr>; 2] = [None, None];
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let Arg::Long(name) = arg else {
            return match arg {
                Arg::Short('h') => Ok(Request::Help),
                other => Err(other.unexpected().to_string()),
            };
        };
        let name = name.to_owned();
        let mut value = || {
            let value = parser.value().map_err(|error| error.to_string())?;
            value.string().map_err(|error| format!("--{name}: {error}"))
        };
        match name.as_str() {
            "help" => return Ok(Request::Help),
            "veth" => veth = true,
            "rxe" => interface = Some(value()?),
            "mtu" => mtu = Some(mtu_of(&value()?)?),
            "address" => {
                addresses.push(read(&name, &value()?, "an address with its prefix, such as 10.0.0.1/24")?)
            }
            "neighbour" => {
                neighbours.push(read(&name, &value()?, "IP=MAC, such as 10.0.0.2=02:00:00:00:00:01")?)
            }
            "bridge-ip" => ips[0] = Some(read(&name, &value()?, "an IPv4 address")?),
            "emulator-ip" => ips[1] = Some(read(&name, &value()?, "an IPv4 address")?),
            _ => return Err(format!("no such option: --{name}")),
        }
    }
    match (interface, veth) {
        (Some(interface), false) if ips == [None, None] => {
            Ok(Request::Rxe(OnInterface { interface, addresses, mtu, neighbours }))
        }
        (Some(_), false) => {
            Err("--bridge-ip and --emulator-ip go with --veth; --rxe takes --address".to_owned())
        }
        (None, true) if addresses.is_empty() && neighbours.is_empty() => pair(mtu, ips),
        (None, true) => Err("--address and --neighbour go with --rxe; --veth has its own".to_owned()),
        (Some(_), true) => Err("take --rxe or --veth, not both".to_owned()),
        (None, false) => Err("say what to make: --rxe IFACE, or --veth".to_owned()),
    }
}

fn pair(mtu: Option<u32>, [bridge, emulator]: [Option<Ipv4Addr>; 2]) -> Result<Request, String> {
    let default = Pair::default();
    let pair = Pair {
        bridge: bridge.unwrap_or(default.bridge),
        emulator: emulator.unwrap_or(default.emulator),
        mtu: mtu.unwrap_or(default.mtu),
    };
    let network = |ip: Ipv4Addr| ip.octets()[..3].to_vec();
    if pair.bridge == pair.emulator || network(pair.bridge) != network(pair.emulator) {
        return Err(format!(
            "--bridge-ip {} and --emulator-ip {} must be two addresses of one /24",
            pair.bridge, pair.emulator
        ));
    }
    Ok(Request::Veth(pair))
}

fn mtu_of(value: &str) -> Result<u32, String> {
    let mtu = value.parse().ok().filter(|mtu| (SMALLEST_MTU..=65536).contains(mtu));
    mtu.ok_or_else(|| format!("--mtu {value}: take a number from {SMALLEST_MTU} to 65536"))
}

fn read<T: FromStr>(name: &str, value: &str, what: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("--{name} {value}: not {what}"))
}

impl FromStr for Subnet {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ip, prefix) = text.split_once('/').ok_or(())?;
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32).ok_or(())?;
        Ok(Self { ip: ip.parse().map_err(drop)?, prefix })
    }
}

impl FromStr for Neighbour {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ip, mac) = text.split_once('=').ok_or(())?;
        let bytes: Vec<&str> = mac.split(':').collect();
        let all_hex = bytes.iter().all(|byte| byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit()));
        if bytes.len() != 6 || !all_hex {
            return Err(());
        }
        Ok(Self { ip: ip.parse().map_err(drop)?, mac: mac.to_ascii_lowercase() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn both_forms() {
        assert_eq!(parsed("--veth"), Ok(Request::Veth(Pair::default())));
        let pair = Pair { bridge: [10, 1, 2, 3].into(), emulator: [10, 1, 2, 4].into(), mtu: 1500 };
        assert_eq!(
            parsed("--veth --mtu 1500 --bridge-ip 10.1.2.3 --emulator-ip 10.1.2.4"),
            Ok(Request::Veth(pair))
        );
        let on = OnInterface {
            interface: "eth0".into(),
            addresses: vec![Subnet { ip: [10, 0, 0, 1].into(), prefix: 24 }],
            mtu: Some(4200),
            neighbours: vec![Neighbour { ip: [10, 0, 0, 2].into(), mac: "02:00:00:00:0a:01".into() }],
        };
        assert_eq!(
            parsed("--rxe eth0 --address 10.0.0.1/24 --mtu 4200 --neighbour 10.0.0.2=02:00:00:00:0A:01"),
            Ok(Request::Rxe(on))
        );
        assert_eq!(parsed("--help"), Ok(Request::Help));
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (line, part) in [
            ("", "--rxe IFACE, or --veth"),
            ("--veth --rxe lo", "not both"),
            ("--rxe", "rxe"),
            ("--rxe lo --address 10.0.0.1", "10.0.0.1/24"),
            ("--rxe lo --address 10.0.0.1/33", "/33"),
            ("--rxe lo --neighbour 10.0.0.1=02:00", "IP=MAC"),
            ("--rxe lo --bridge-ip 10.0.0.1", "--address"),
            ("--veth --address 10.0.0.1/24", "--rxe"),
            ("--veth --bridge-ip 10.0.0.1", "one /24"),
            ("--veth --mtu 1279", "from 1280"),
            ("--vteh", "--vteh"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
