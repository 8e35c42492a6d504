//! Which devices carry a run's packets, and with which addresses.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Say;
use super::options::{Backend, Options};
use crate::net::{self, Network};
use crate::rdma::Sysfs;

const SOFT: &str = "soft";
const SOFT_BRIDGE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SOFT_EMULATOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A side of the link on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// An RDMA device; `None` is RoCEv2 in userspace.
    pub(crate) device: Option<String>,
    /// Of the device, from 1.
    pub(crate) port: u8,
    pub(crate) ip: Ipv4Addr,
    /// The network namespace in which its program runs, where that is not ours.
    pub(crate) netns: Option<String>,
}

/// Who answers the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The software FPGA.
    Emulator(End),
    /// A real one.
    Fpga {
        ip: Ipv4Addr,
        /// The queue pair that takes its answers.
        qp: u32,
    },
}

/// Both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// For the report.
    pub(crate) name: String,
    pub(crate) bridge: End,
    pub(crate) peer: Peer,
}

impl End {
    pub(super) fn soft(ip: Ipv4Addr) -> Self {
        Self { device: None, port: 1, ip, netns: None }
    }

    /// The options by which every program takes its device.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let words = match &self.device {
            None => vec!["--device".to_owned(), format!("{SOFT}:{}", self.ip)],
            Some(device) => {
                let (port, ip) = (self.port.to_string(), self.ip.to_string());
                ["--device", device, "--ib-port", &port, "--local-ip", &ip].map(str::to_owned).to_vec()
            }
        };
        words.into_iter().map(OsString::from).collect()
    }

    /// A command that runs the program where this side is.
    pub(super) fn command(&self, program: &Path) -> Command {
        match &self.netns {
            None => Command::new(program),
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(program);
                command
            }
        }
    }

    /// "10.0.0.1 on rxe_a port 1, GID 1 (RoCE v2, va)".
    pub(crate) fn describe(&self, sysfs: &Sysfs) -> String {
        let place = match &self.device {
            None => format!("{} on {SOFT}", self.ip),
            Some(device) => {
                let port = sysfs.port(device, self.port).ok();
                let gid =
                    port.as_ref().and_then(|port| port.gids.of(self.ip)).map_or(String::new(), |entry| {
                        format!(", GID {} ({}, {})", entry.index, entry.kind, entry.interface)
                    });
                format!("{} on {device} port {}{gid}", self.ip, self.port)
            }
        };
        self.netns.as_ref().map_or_else(|| place.clone(), |netns| format!("{place}, in namespace {netns}"))
    }
}

impl Peer {
    pub(crate) fn ip(&self) -> Ipv4Addr {
        match self {
            Self::Emulator(end) => end.ip,
            Self::Fpga { ip, .. } => *ip,
        }
    }
}

impl Link {
    pub(crate) fn soft(bridge: Ipv4Addr, emulator: Ipv4Addr) -> Self {
        Self { name: SOFT.to_owned(), bridge: End::soft(bridge), peer: Peer::Emulator(End::soft(emulator)) }
    }

    /// The bridge on `device`, the emulator on `--peer-device` or on the same port: the loop-back of one port with two
    /// addresses.
    pub(crate) fn on_devices(options: &Options, sysfs: &Sysfs, device: &str) -> Result<Self> {
        on_devices(options, sysfs, device)
    }

    /// The bridge on `device`, its peer a real FPGA.
    pub(crate) fn to_fpga(
        options: &Options,
        sysfs: &Sysfs,
        device: &str,
        ip: Ipv4Addr,
        qp: u32,
    ) -> Result<Self> {
        let place = Place { device, port: options.ib_port, netns: &options.bridge_netns };
        let bridge = place.end(sysfs, "--bridge-ip", options.bridge_ip, Some(ip))?;
        Ok(Self { name: device.to_owned(), bridge, peer: Peer::Fpga { ip, qp } })
    }

    /// Does a program of this run need libibverbs?
    pub(crate) fn is_verbs(&self) -> bool {
        self.ends().any(|end| end.device.is_some())
    }

    /// The sides that are programs of ours.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &End> {
        let emulator = match &self.peer {
            Peer::Emulator(end) => Some(end),
            Peer::Fpga { .. } => None,
        };
        [Some(&self.bridge), emulator].into_iter().flatten()
    }
}

/// Chooses the link of `--backend`. The network, where one was made for this run, goes when it is dropped.
pub(super) fn choose(options: &Options, sysfs: &Sysfs, say: Say) -> Result<(Link, Option<Network>)> {
    match &options.backend {
        Backend::Soft if options.peer_device.is_some() => Ok((on_devices(options, sysfs, SOFT)?, None)),
        Backend::Soft => Ok((soft(options), None)),
        Backend::Device(name) => Ok((on_devices(options, sysfs, name)?, None)),
        Backend::Rxe => match rxe_devices(sysfs).as_slice() {
            [] => made_for_the_run(options, sysfs, say),
            known => Ok((on_rxe(options, sysfs, known)?, None)),
        },
        Backend::Auto => automatic(options, sysfs, say),
        Backend::Vm => bail!("the virtual machine has no link of this machine's own"),
    }
}

fn soft(options: &Options) -> Link {
    let mut link =
        Link::soft(options.bridge_ip.unwrap_or(SOFT_BRIDGE), options.emulator_ip.unwrap_or(SOFT_EMULATOR));
    link.bridge.netns.clone_from(&options.bridge_netns);
    if let Peer::Emulator(end) = &mut link.peer {
        end.netns.clone_from(&options.emulator_netns);
    }
    link
}

/// The best that is here, and why nothing better.
fn automatic(options: &Options, sysfs: &Sysfs, say: Say) -> Result<(Link, Option<Network>)> {
    let mut why = Vec::new();
    let asked_for = options.only_soft_has().or_else(|| {
        (options.programs.is_none() && !can_build_verbs()).then_some("libibverbs's headers are not installed")
    });
    if let Some(reason) = asked_for {
        why.push(reason.to_owned());
    } else {
        match usable_card(sysfs) {
            Ok(device) => match on_devices(options, sysfs, &device) {
                Ok(link) => {
                    say.line(&format!(
                        "--backend auto: {}, an RDMA card with a link and addresses",
                        link.name
                    ));
                    return Ok((link, None));
                }
                Err(reason) => why.push(format!("{reason:#}")),
            },
            Err(reason) => why.push(reason),
        }
        match rxe_devices(sysfs).as_slice() {
            [] if options.bridge_ip.is_some() || options.emulator_ip.is_some() => {
                why.push("no soft-RoCE device is here that has the addresses".to_owned());
            }
            [] => match net::can_make_devices() {
                Ok(()) => {
                    say.line(&format!("--backend auto: the kernel's soft-RoCE, for {}", why.join(", and ")));
                    return made_for_the_run(options, sysfs, say);
                }
                Err(reason) => why.push(format!("{reason:#}")),
            },
            known => match on_rxe(options, sysfs, known) {
                Ok(link) => {
                    say.line(&format!("--backend auto: {}, for {}", link.name, why.join(", and ")));
                    return Ok((link, None));
                }
                Err(reason) => why.push(format!("{reason:#}")),
            },
        }
    }
    say.line(&format!("--backend auto: soft, for {}", why.join(", and ")));
    Ok((soft(options), None))
}

fn rxe_devices(sysfs: &Sysfs) -> Vec<String> {
    sysfs.devices().into_iter().filter(|device| sysfs.is_rxe(device)).collect()
}

/// Soft-RoCE devices that are here: the two that `net-setup --veth` makes, or one.
fn on_rxe(options: &Options, sysfs: &Sysfs, known: &[String]) -> Result<Link> {
    let pair = [net::RXE_BRIDGE, net::RXE_EMULATOR];
    if options.peer_device.is_none() && pair.iter().all(|name| known.iter().any(|device| device == name)) {
        let [bridge, emulator] = pair.map(str::to_owned);
        return on_devices(&Options { peer_device: Some(emulator), ..options.clone() }, sysfs, &bridge);
    }
    on_devices(options, sysfs, &known[0])
}

fn made_for_the_run(options: &Options, sysfs: &Sysfs, say: Say) -> Result<(Link, Option<Network>)> {
    let network = Network::pair_for_a_run(say)?;
    let [bridge, emulator] = [net::RXE_BRIDGE, net::RXE_EMULATOR].map(str::to_owned);
    let link = on_devices(&Options { peer_device: Some(emulator), ..options.clone() }, sysfs, &bridge)?;
    Ok((link, Some(network)))
}

/// A card whose port has two addresses. Two ports reach each other only once their network is set up for it, which
/// nobody here can see: they are for those who name them. The error says what is wrong with the cards.
fn usable_card(sysfs: &Sysfs) -> Result<String, String> {
    let cards: Vec<String> = sysfs.devices().into_iter().filter(|device| !sysfs.is_rxe(device)).collect();
    if cards.is_empty() {
        return Err("this machine has no RDMA card".to_owned());
    }
    let ports = cards.iter().filter_map(|card| sysfs.port(card, 1).ok());
    let mut live = ports.filter(|port| port.is_active() && port.is_ethernet());
    live.find(|port| port.gids.addresses().count() == 2).map(|port| port.device).ok_or_else(|| {
        format!("no card has an active Ethernet port with exactly two IPv4 addresses ({})", cards.join(", "))
    })
}

fn on_devices(options: &Options, sysfs: &Sysfs, device: &str) -> Result<Link> {
    let (peer_device, peer_port) = options.peer_place(device);
    let bridge_at = Place { device, port: options.ib_port, netns: &options.bridge_netns };
    let emulator_at = Place { device: peer_device, port: peer_port, netns: &options.emulator_netns };
    let bridge = bridge_at.end(sysfs, "--bridge-ip", options.bridge_ip, options.emulator_ip)?;
    let emulator = emulator_at.end(sysfs, "--emulator-ip", options.emulator_ip, Some(bridge.ip))?;
    ensure!(bridge.ip != emulator.ip, "both sides have the address {}; each needs one of its own", bridge.ip);
    let name = if device == peer_device { device.to_owned() } else { format!("{device}+{peer_device}") };
    Ok(Link { name, bridge, peer: Peer::Emulator(emulator) })
}

/// Where a side is, its address apart.
struct Place<'a> {
    device: &'a str,
    port: u8,
    netns: &'a Option<String>,
}

impl Place<'_> {
    /// With the address asked for, or the port's first that the other side has not.
    fn end(
        &self,
        sysfs: &Sysfs,
        option: &str,
        asked: Option<Ipv4Addr>,
        other: Option<Ipv4Addr>,
    ) -> Result<End> {
        let netns = self.netns.clone();
        if self.device == SOFT {
            let ip = asked.with_context(|| format!("say which address {SOFT} shall take, with {option}"))?;
            return Ok(End { netns, ..End::soft(ip) });
        }
        let port = sysfs.port(self.device, self.port)?;
        let end = |ip| End { device: Some(self.device.to_owned()), port: self.port, ip, netns };
        match asked {
            Some(ip) if port.gids.of(ip).is_some() => Ok(end(ip)),
            Some(ip) => bail!(
                "{} has no RoCEv2 GID for {ip}: add the address to its interface, or take one of its table with \
                 {option}:\n{}",
                port.place(),
                port.gids
            ),
            None => {
                let free = port.gids.addresses().map(|(ip, _)| ip).find(|ip| Some(*ip) != other);
                free.map(end).with_context(|| {
                    format!(
                        "{} has no address for this side (without --peer-device both sides share the port, which then \
                         needs two): add one to its interface. Its GID table:\n{}",
                        port.place(),
                        port.gids
                    )
                })
            }
        }
    }
}

/// Can programs that use libibverbs be built here?
fn can_build_verbs() -> bool {
    Path::new("/usr/include/infiniband/verbs.h").is_file()
}

/// Those of a run: the software FPGA, the bridge, the playback tool.
pub(super) const PROGRAMS: [&str; 3] = ["hsb-fpga-emulator", "hsb-bridge-cpu", "hsb-fpga-playback"];

/// Where programs are that were built before.
pub(super) fn programs_in(dir: &Path) -> Result<[PathBuf; 3]> {
    let paths = PROGRAMS.map(|name| dir.join(name));
    for path in &paths {
        ensure!(path.is_file(), "--programs: there is no {}", path.display());
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::fake::Tree;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn of(link: &Link) -> (Option<&str>, Ipv4Addr, Option<&str>, Ipv4Addr) {
        let Peer::Emulator(emulator) = &link.peer else { panic!("{link:?}") };
        (link.bridge.device.as_deref(), link.bridge.ip, emulator.device.as_deref(), emulator.ip)
    }

    fn chosen(tree: &Tree, options: &Options) -> Result<Link> {
        choose(options, &tree.sysfs(), Say { to_stderr: true }).map(|(link, _)| link)
    }

    fn device(name: &str) -> Options {
        Options { backend: Backend::Device(name.to_owned()), ..Options::default() }
    }

    #[test]
    fn one_port_with_two_addresses() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[[10, 0, 0, 1], [10, 0, 0, 2]]);
        let link = chosen(&tree, &device("mlx5_0")).unwrap();
        assert_eq!(of(&link), (Some("mlx5_0"), A, Some("mlx5_0"), B));
        assert_eq!(link.name, "mlx5_0");
        assert!(link.is_verbs());
        let swapped = Options { emulator_ip: Some(A), ..device("mlx5_0") };
        assert_eq!(of(&chosen(&tree, &swapped).unwrap()), (Some("mlx5_0"), B, Some("mlx5_0"), A));
        assert_eq!(link.bridge.describe(&tree.sysfs()), "10.0.0.1 on mlx5_0 port 1, GID 3 (RoCE v2, eth2)");
    }

    #[test]
    fn two_devices_or_one_and_soft_elsewhere() {
        let tree = Tree::new();
        tree.port("rxe_a", "va", 9000, &[[10, 0, 0, 1]]).port("rxe_b", "vb", 9000, &[[10, 0, 0, 2]]);
        let pair = Options { peer_device: Some("rxe_b".into()), ..device("rxe_a") };
        assert_eq!(of(&chosen(&tree, &pair).unwrap()), (Some("rxe_a"), A, Some("rxe_b"), B));
        let far = Options {
            peer_device: Some("soft".into()),
            emulator_ip: Some(B),
            emulator_netns: Some("far".into()),
            ..device("rxe_a")
        };
        let link = chosen(&tree, &far).unwrap();
        assert_eq!(of(&link), (Some("rxe_a"), A, None, B));
        let Peer::Emulator(emulator) = &link.peer else { panic!("{link:?}") };
        assert_eq!(emulator.describe(&tree.sysfs()), "10.0.0.2 on soft, in namespace far");
        let turned = Options {
            backend: Backend::Soft,
            peer_device: Some("rxe_a".into()),
            bridge_ip: Some(B),
            ..Options::default()
        };
        assert_eq!(of(&chosen(&tree, &turned).unwrap()), (None, B, Some("rxe_a"), A));
        let command = format!("{:?}", emulator.command(Path::new("/p")));
        assert_eq!(command, r#""ip" "netns" "exec" "far" "/p""#);
    }

    #[test]
    fn what_is_missing_is_shown_with_the_table() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[[10, 0, 0, 1]]);
        let error = |options: &Options| format!("{:#}", chosen(&tree, options).unwrap_err());
        assert!(error(&device("mlx5_0")).contains("needs two"), "{}", error(&device("mlx5_0")));
        let foreign = error(&Options { bridge_ip: Some(B), ..device("mlx5_0") });
        assert!(
            foreign.contains("no RoCEv2 GID for 10.0.0.2") && foreign.contains("::ffff:10.0.0.1"),
            "{foreign}"
        );
        assert!(error(&device("mlx5_7")).contains("there are: mlx5_0"));
        let soft = Options { peer_device: Some("soft".into()), ..device("mlx5_0") };
        assert!(error(&soft).contains("--emulator-ip"));
    }

    #[test]
    fn a_card_is_usable_with_two_addresses() {
        let tree = Tree::new();
        assert!(usable_card(&tree.sysfs()).unwrap_err().contains("no RDMA card"));
        tree.port("mlx5_0", "eth2", 4200, &[[10, 0, 0, 1]]);
        assert!(usable_card(&tree.sysfs()).unwrap_err().contains("mlx5_0"));
        tree.port("mlx5_1", "eth3", 4200, &[[10, 0, 1, 1]]);
        let apart = usable_card(&tree.sysfs()).unwrap_err();
        assert!(apart.contains("mlx5_0, mlx5_1"), "ports of two networks are no link: {apart}");
        tree.port("mlx5_1", "eth3", 4200, &[[10, 0, 1, 1], [10, 0, 1, 2]]);
        assert_eq!(usable_card(&tree.sysfs()), Ok("mlx5_1".into()));
        tree.file("infiniband/mlx5_1/ports/1/state", "1: DOWN");
        assert!(usable_card(&tree.sysfs()).is_err());
    }

    #[test]
    fn losses_on_purpose_need_soft() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[[10, 0, 0, 1], [10, 0, 0, 2]]);
        let lossy = Options { pcap: Some("x".into()), backend: Backend::Auto, ..Options::default() };
        assert_eq!(chosen(&tree, &lossy).unwrap().name, "soft");
    }
}
