//! Single changes to the network. Each looks first, is noted before it is done, and can be taken back.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::journal::{Journal, Undo};
use crate::emulate::Say;
use crate::interrupt;
use crate::process::how;
use crate::rdma::Sysfs;

/// How long an address may take to get its GID.
const GID: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Below this the kernel takes IPv6 off an interface, addresses and all, and nothing brings them back.
pub(super) const SMALLEST_MTU: u32 = 1280;

/// An address and its prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet {
    pub(crate) ip: Ipv4Addr,
    pub(crate) prefix: u8,
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// Whose Ethernet address is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) ip: Ipv4Addr,
    /// Six bytes in hex with colons.
    pub(crate) mac: String,
}

/// Changes made so far.
#[derive(Debug)]
pub(crate) struct Network {
    journal: Journal,
    /// Entries that were there before us.
    older: usize,
    ends_with_us: bool,
    say: Say,
}

impl Network {
    pub(super) fn kept(journal: Journal, say: Say) -> Self {
        Self { older: journal.steps().len(), journal, ends_with_us: false, say }
    }

    pub(super) fn for_a_run(journal: Journal, say: Say) -> Self {
        Self { older: 0, journal, ends_with_us: true, say }
    }

    pub(super) fn say(&self, text: &str) {
        self.say.line(text);
    }

    pub(super) fn load(&mut self, module: &str) -> Result<()> {
        self.step(Undo::Module { name: module.to_owned() }, &["modprobe", module])
    }

    /// Both ends of a veth pair. Interfaces of these names that we did not make are not touched.
    pub(super) fn veth(&mut self, a: &str, b: &str, mtu: u32) -> Result<()> {
        if let Some(index) = index_of(a) {
            let ours = Undo::Link { name: a.to_owned(), index };
            ensure!(
                self.journal.steps().contains(&ours) && index_of(b).is_some(),
                "there is an interface {a} already, and net-setup did not make it, so it is not touched; remove it with \
                 `ip link delete {a}` if it may go"
            );
            return Ok(());
        }
        let mtu = mtu.to_string();
        // Its index is known only when it is there, so this one is noted behind the step.
        self.run(&["ip", "link", "add", a, "mtu", &mtu, "type", "veth", "peer", "name", b, "mtu", &mtu])?;
        let index = index_of(a).with_context(|| format!("{a} was made and is not there"))?;
        self.journal.note(Undo::Link { name: a.to_owned(), index })?;
        Ok(())
    }

    /// Two interfaces of one namespace take packets from each other only where their own addresses are no offence. For
    /// rp_filter the kernel takes the larger of an interface's value and that of `all`.
    pub(crate) fn between_own_addresses(&mut self, interface: &str) -> Result<()> {
        self.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
        self.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
        self.sysctl(&format!("net/ipv4/conf/{interface}/accept_local"), "1")
    }

    pub(crate) fn mtu(&mut self, interface: &str, mtu: u32) -> Result<()> {
        let now: u32 = attribute(interface, "mtu")?.parse().context("an MTU that is no number")?;
        if now == mtu {
            return Ok(());
        }
        ensure!(
            mtu >= SMALLEST_MTU,
            "an MTU of {mtu} would take the IPv6 addresses off {interface} for good; take {SMALLEST_MTU} at least"
        );
        let undo = Undo::Mtu { interface: interface.to_owned(), mtu: now };
        self.step(undo, &["ip", "link", "set", "dev", interface, "mtu", &mtu.to_string()])
    }

    pub(crate) fn address(&mut self, interface: &str, subnet: Subnet) -> Result<()> {
        if addresses_of(interface)?.contains(&subnet.ip) {
            return Ok(());
        }
        let undo = Undo::Address { interface: interface.to_owned(), subnet };
        self.step(undo, &["ip", "address", "add", &subnet.to_string(), "dev", interface])
    }

    pub(crate) fn up(&mut self, interface: &str) -> Result<()> {
        let flags = attribute(interface, "flags")?;
        let flags =
            u32::from_str_radix(flags.trim_start_matches("0x"), 16).context("flags that are no number")?;
        if flags & 1 == 1 {
            return Ok(());
        }
        let undo = Undo::Down { interface: interface.to_owned() };
        self.step(undo, &["ip", "link", "set", "dev", interface, "up"])
    }

    pub(crate) fn neighbour(&mut self, interface: &str, neighbour: &Neighbour) -> Result<()> {
        let Neighbour { ip, mac } = neighbour;
        let ip_text = ip.to_string();
        let before =
            mac_in(&output(&["ip", "neighbour", "show", &ip_text, "dev", interface, "nud", "permanent"])?);
        if before.as_ref() == Some(mac) {
            return Ok(());
        }
        let undo = Undo::Neighbour { interface: interface.to_owned(), ip: *ip, before };
        let command =
            ["ip", "neighbour", "replace", &ip_text, "lladdr", mac, "dev", interface, "nud", "permanent"];
        self.step(undo, &command)
    }

    /// A soft-RoCE device of that name on the interface.
    pub(super) fn rxe(&mut self, device: &str, interface: &str) -> Result<()> {
        let sysfs = Sysfs::of_the_machine();
        if sysfs.devices().iter().any(|name| name == device) {
            let on = rxe_on(&sysfs, interface);
            ensure!(
                on.as_deref() == Some(device),
                "there is an RDMA device {device} already, and not on {interface}; `rdma link delete {device}` removes it if \
                 it may go"
            );
            return Ok(());
        }
        self.step(
            made_rxe(device, interface),
            &["rdma", "link", "add", device, "type", "rxe", "netdev", interface],
        )
    }

    /// The kernel follows the addresses of Ethernet interfaces; those of others, such as lo, it looks up once, when a device is
    /// made. So one that we made is made again.
    pub(super) fn let_it_see_all_addresses(&mut self, device: &str, interface: &str) -> Result<()> {
        const ETHERNET: &str = "1";
        let gids = Sysfs::of_the_machine().port(device, 1)?.gids;
        let unseen = addresses_of(interface)?.into_iter().find(|ip| gids.of(*ip).is_none());
        let Some(ip) = unseen else { return Ok(()) };
        if attribute(interface, "type")? == ETHERNET {
            return Ok(());
        }
        ensure!(
            self.journal.steps().contains(&made_rxe(device, interface)),
            "{device} was made before {ip} came to {interface}, and on an interface that is not Ethernet the kernel does not \
             see it then. net-setup did not make {device}, so it is not touched; remove it with `rdma link delete {device}` if \
             it may go, and ask again"
        );
        self.run(&["rdma", "link", "delete", device])?;
        self.run(&["rdma", "link", "add", device, "type", "rxe", "netdev", interface])
    }

    /// Returns once each of the addresses has its GID on the device's port.
    pub(crate) fn await_gids(&self, device: &str, port: u8, addresses: &[Ipv4Addr]) -> Result<()> {
        let sysfs = Sysfs::of_the_machine();
        let deadline = Instant::now() + GID;
        loop {
            let port = sysfs.port(device, port)?;
            let missing = addresses.iter().find(|ip| port.gids.of(**ip).is_none());
            match missing {
                None => {
                    self.say(&format!("{}, GIDs:\n{}", port.place(), port.gids));
                    return Ok(());
                }
                Some(ip) if Instant::now() >= deadline => {
                    bail!("{ip} got no GID on {} within {} s:\n{}", port.place(), GID.as_secs(), port.gids)
                }
                Some(_) => {}
            }
            interrupt::check()?;
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Is it the address of an interface other than this one?
    pub(super) fn has_elsewhere(&self, ip: Ipv4Addr, interface: &str) -> Result<bool> {
        let wanted = ip.to_string();
        let text = output(&["ip", "-o", "-4", "address", "show", "to", &wanted])?;
        Ok(text.lines().any(|line| line.split_whitespace().nth(1) != Some(interface)))
    }

    fn sysctl(&mut self, key: &str, value: &str) -> Result<()> {
        let now = read_sysctl(key)?;
        if now == value {
            return Ok(());
        }
        self.journal.note(Undo::Sysctl { key: key.to_owned(), value: now })?;
        self.write_sysctl(key, value)
    }

    fn write_sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.say(&format!("+ sysctl -w {}={value}", key.replace('/', ".")));
        fs::write(sysctl_file(key), value).with_context(|| format!("cannot set {}", key.replace('/', ".")))
    }

    /// Notes and runs; what fails is not noted.
    fn step(&mut self, undo: Undo, words: &[&str]) -> Result<()> {
        let noted = self.journal.note(undo)?;
        let done = self.run(words);
        if done.is_err() && noted {
            self.journal.drop_last()?;
        }
        done
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        interrupt::check()?;
        self.say(&format!("+ {}", words.join(" ")));
        output(words).map(drop)
    }

    /// Takes back what this process did.
    pub(super) fn undo_new(&mut self) -> Result<()> {
        self.undo_to(self.older)
    }

    /// Takes everything back.
    pub(super) fn undo(&mut self) -> Result<()> {
        self.undo_to(0)
    }

    fn undo_to(&mut self, kept: usize) -> Result<()> {
        while self.journal.steps().len() > kept {
            if let Some(last) = self.journal.steps().last().cloned() {
                self.take_back(&last).with_context(|| {
                    format!(
                        "cannot take {last:?} back; `cargo xtask net-teardown` tries this and the rest again"
                    )
                })?;
            }
            self.journal.drop_last()?;
        }
        Ok(())
    }

    /// What is gone already needs nothing.
    fn take_back(&self, step: &Undo) -> Result<()> {
        match step {
            Undo::Rdma { name, interface } if is_rxe_on(&Sysfs::of_the_machine(), name, interface) => {
                self.run_anyway(&["rdma", "link", "delete", name])
            }
            Undo::Link { name, index } if index_of(name) == Some(*index) => {
                self.run_anyway(&["ip", "link", "delete", name])
            }
            Undo::Address { interface, subnet } if has(interface, subnet.ip) => {
                self.run_anyway(&["ip", "address", "delete", &subnet.to_string(), "dev", interface])
            }
            Undo::Mtu { interface, mtu } if index_of(interface).is_some() => {
                self.run_anyway(&["ip", "link", "set", "dev", interface, "mtu", &mtu.to_string()])
            }
            Undo::Down { interface } if index_of(interface).is_some() => {
                self.run_anyway(&["ip", "link", "set", "dev", interface, "down"])
            }
            Undo::Neighbour { interface, ip, before: Some(mac) } if index_of(interface).is_some() => {
                let ip = ip.to_string();
                self.run_anyway(&[
                    "ip",
                    "neighbour",
                    "replace",
                    &ip,
                    "lladdr",
                    mac,
                    "dev",
                    interface,
                    "nud",
                    "permanent",
                ])
            }
            Undo::Neighbour { interface, ip, before: None } if index_of(interface).is_some() => {
                let ip = ip.to_string();
                let known = output(&["ip", "neighbour", "show", &ip, "dev", interface])?;
                if known.trim().is_empty() {
                    return Ok(());
                }
                self.run_anyway(&["ip", "neighbour", "delete", &ip, "dev", interface])
            }
            Undo::Sysctl { key, value } if sysctl_file(key).exists() => self.write_sysctl(key, value),
            Undo::Module { name } if Path::new("/sys/module").join(name).is_dir() => {
                self.run_anyway(&["modprobe", "-r", name])
            }
            _ => Ok(()),
        }
    }

    /// A signal does not keep us from cleaning up.
    fn run_anyway(&self, words: &[&str]) -> Result<()> {
        self.say(&format!("+ {}", words.join(" ")));
        output(words).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if self.ends_with_us
            && let Err(error) = self.undo()
        {
            eprintln!("error: {error:#}");
        }
    }
}

/// Runs a program to its end for what it prints.
fn output(words: &[&str]) -> Result<String> {
    let (program, args) = words.split_first().context("no program")?;
    let output =
        Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", words.join(" "), how(output.status), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn interface_file(interface: &str, name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(interface).join(name)
}

fn attribute(interface: &str, name: &str) -> Result<String> {
    let file = interface_file(interface, name);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.trim().to_owned())
}

/// Six bytes in hex with colons.
pub(crate) fn mac_of(interface: &str) -> Result<String> {
    attribute(interface, "address")
}

fn index_of(interface: &str) -> Option<u32> {
    attribute(interface, "ifindex").ok()?.parse().ok()
}

pub(super) fn must_exist(interface: &str) -> Result<()> {
    if index_of(interface).is_some() {
        return Ok(());
    }
    let mut known: Vec<String> = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    known.sort_unstable();
    bail!("there is no interface {interface}; there are: {}", known.join(", "))
}

/// The IPv4 addresses of an interface.
pub(super) fn addresses_of(interface: &str) -> Result<Vec<Ipv4Addr>> {
    Ok(addresses_in(&output(&["ip", "-o", "-4", "address", "show", "dev", interface])?))
}

/// From lines like "2: eth0    inet 10.0.0.1/24 brd ...".
fn addresses_in(text: &str) -> Vec<Ipv4Addr> {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "inet");
        words.nth(1)?.split('/').next()?.parse().ok()
    };
    text.lines().filter_map(of_line).collect()
}

/// From a line like "10.0.0.2 lladdr 02:00:00:00:00:01 PERMANENT".
fn mac_in(text: &str) -> Option<String> {
    text.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).map(str::to_owned)
}

fn has(interface: &str, ip: Ipv4Addr) -> bool {
    index_of(interface).is_some() && addresses_of(interface).is_ok_and(|known| known.contains(&ip))
}

/// The soft-RoCE device on an interface.
pub(super) fn rxe_on(sysfs: &Sysfs, interface: &str) -> Option<String> {
    let on_it = |device: &String| {
        sysfs.is_rxe(device)
            && sysfs.port(device, 1).ok().and_then(|port| port.interface).is_some_and(|i| i.name == interface)
    };
    sysfs.devices().into_iter().find(on_it)
}

fn made_rxe(device: &str, interface: &str) -> Undo {
    Undo::Rdma { name: device.to_owned(), interface: interface.to_owned() }
}

/// One of that name elsewhere is somebody else's by now.
fn is_rxe_on(sysfs: &Sysfs, device: &str, interface: &str) -> bool {
    rxe_on(sysfs, interface).as_deref() == Some(device)
}

/// A name for a soft-RoCE device that no device has.
pub(super) fn free_name(sysfs: &Sysfs) -> String {
    let taken = sysfs.devices();
    let mut names = (0..).map(|n: u32| format!("rxe{n}"));
    names.find(|name| !taken.contains(name)).unwrap_or_default()
}

fn sysctl_file(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key)
}

fn read_sysctl(key: &str) -> Result<String> {
    let file = sysctl_file(key);
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::fake::Tree;

    #[test]
    fn addresses_are_read_from_what_ip_prints() {
        let text = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n\
                    1: lo    inet 127.0.0.2/8 scope host secondary lo\\       valid_lft forever\n\
                    3: va    inet 10.0.0.1 peer 10.0.0.2/32 scope global va\n";
        let addresses = addresses_in(text);
        assert_eq!(addresses, [[127, 0, 0, 1].into(), [127, 0, 0, 2].into(), Ipv4Addr::new(10, 0, 0, 1)]);
    }

    #[test]
    fn neighbours_are_read_from_what_ip_prints() {
        assert_eq!(
            mac_in("10.0.0.2 lladdr 02:00:00:00:00:01 PERMANENT \n").as_deref(),
            Some("02:00:00:00:00:01")
        );
        assert_eq!((mac_in("10.0.0.2 FAILED\n"), mac_in("")), (None, None));
    }

    #[test]
    fn devices_are_found_by_interface_and_new_names_are_free() {
        let tree = Tree::new();
        assert_eq!(free_name(&tree.sysfs()), "rxe0");
        tree.port("rxe0", "eth0", 1500, &[]).file("infiniband/rxe0/parent", "eth0");
        tree.port("mlx5_0", "eth1", 1500, &[]);
        assert_eq!(rxe_on(&tree.sysfs(), "eth0").as_deref(), Some("rxe0"));
        assert_eq!(rxe_on(&tree.sysfs(), "eth1"), None, "a card is no soft-RoCE");
        let is_ours = |device, interface| is_rxe_on(&tree.sysfs(), device, interface);
        assert!(is_ours("rxe0", "eth0") && !is_ours("rxe0", "eth1") && !is_ours("rxe1", "eth0"));
        assert_eq!(free_name(&tree.sysfs()), "rxe1");
    }

    #[test]
    fn a_command_that_fails_is_quoted() {
        let error = output(&["sh", "-c", "echo no such thing >&2; exit 2"]).unwrap_err().to_string();
        assert!(error.ends_with("failed (exit code 2): no such thing"), "{error}");
        assert!(must_exist("no-such-interface").unwrap_err().to_string().contains("lo"));
    }
}
