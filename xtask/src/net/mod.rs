//! `cargo xtask net-setup` and `net-teardown`: soft-RoCE devices of this machine's own kernel, and the network that RDMA
//! devices need, made step by step and taken back step by step.

mod journal;
mod options;
mod steps;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use self::journal::Journal;
use self::options::{Request, USAGE};
pub(crate) use self::steps::{Neighbour, Network, Subnet, mac_of};
use crate::emulate::Say;
use crate::rdma::Sysfs;
use crate::setup::on_path;
use crate::{interrupt, only_flag, usage_error};

/// The soft-RoCE devices of the pair that `--veth` makes, and their interfaces.
pub(crate) const RXE_BRIDGE: &str = "rxe_a";
pub(crate) const RXE_EMULATOR: &str = "rxe_b";
const VETH: [&str; 2] = ["roce_a", "roce_b"];

/// The driver of soft-RoCE.
const MODULE: &str = "rdma_rxe";
const WAYS_OUT: &str = "without it there are the virtual machine, which needs neither root nor this kernel's drivers (`cargo xtask vm`, \
                        `cargo xtask emulate --backend vm`), and RoCEv2 in userspace (`cargo xtask emulate --backend soft`)";

/// A veth pair with a soft-RoCE device on each end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    bridge: Ipv4Addr,
    emulator: Ipv4Addr,
    /// Of the interfaces, bytes.
    mtu: u32,
}

/// A soft-RoCE device on an interface that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OnInterface {
    interface: String,
    /// Added where they are missing.
    addresses: Vec<Subnet>,
    mtu: Option<u32>,
    neighbours: Vec<Neighbour>,
}

impl Default for Pair {
    /// Addresses of RFC 2544, which no network uses for anything else.
    fn default() -> Self {
        Self { bridge: Ipv4Addr::new(198, 18, 77, 1), emulator: Ipv4Addr::new(198, 18, 77, 2), mtu: 9000 }
    }
}

pub(crate) fn setup(args: Vec<OsString>) -> Result<ExitCode> {
    let request = match options::parse(args) {
        Ok(Request::Help) => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Ok(request) => request,
        Err(problem) => return Err(usage_error(problem, USAGE)),
    };
    interrupt::install()?;
    may_change()?;
    let say = Say { to_stderr: false };
    let mut network = Network::kept(Journal::of_net_setup()?, say);
    let made = have_module(&mut network).and_then(|()| match &request {
        Request::Veth(pair) => pair.make(&mut network),
        Request::Rxe(on) => on.make(&mut network),
        Request::Help => Ok(()),
    });
    if let Err(error) = made {
        say.line("taking back what was done");
        network.undo_new().context("and could not take it back")?;
        return Err(error);
    }
    say.line("`cargo xtask net-teardown` takes all of it back");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn teardown(args: Vec<OsString>) -> Result<ExitCode> {
    only_flag(args, None)?;
    interrupt::install()?;
    let journals = Journal::all_left()?;
    if journals.is_empty() {
        println!(
            "Nothing to take back: `cargo xtask net-setup` has made nothing here since this machine was booted."
        );
        return Ok(ExitCode::SUCCESS);
    }
    may_change()?;
    for journal in journals {
        Network::kept(journal, Say { to_stderr: false }).undo()?;
    }
    println!("Nothing of it is left.");
    Ok(ExitCode::SUCCESS)
}

/// Could [`Network::pair_for_a_run`] work? The error says what is in the way.
pub(crate) fn can_make_devices() -> Result<()> {
    may_change()?;
    if is_loaded() {
        return Ok(());
    }
    let known = std::process::Command::new("modprobe").args(["-n", "-q", MODULE]).status();
    ensure!(known.is_ok_and(|status| status.success()), "this kernel has no {MODULE}");
    Ok(())
}

impl Network {
    /// The pair, until this is dropped.
    pub(crate) fn pair_for_a_run(say: Say) -> Result<Self> {
        may_change()?;
        let mut network = Self::for_a_run(Journal::of_this_process()?, say);
        have_module(&mut network)?;
        Pair::default().make(&mut network)?;
        Ok(network)
    }

    /// For [`hw-test`](crate::hw): nothing yet.
    pub(crate) fn empty_for_a_run(say: Say) -> Result<Self> {
        may_change()?;
        Ok(Self::for_a_run(Journal::of_this_process()?, say))
    }
}

fn may_change() -> Result<()> {
    let us = std::env::current_exe().map_or_else(|_| "xtask".to_owned(), |path| path.display().to_string());
    ensure!(
        nix::unistd::geteuid().is_root(),
        "changing the network needs root: `sudo {us} ...` does what `cargo xtask ...` does; {WAYS_OUT}"
    );
    for program in ["ip", "rdma"] {
        ensure!(on_path(program), "there is no program {program}; install iproute2. {WAYS_OUT}");
    }
    Ok(())
}

fn is_loaded() -> bool {
    Path::new("/sys/module").join(MODULE).is_dir()
}

fn have_module(network: &mut Network) -> Result<()> {
    if is_loaded() {
        return Ok(());
    }
    network.load(MODULE).with_context(|| {
        format!(
            "this kernel has no soft-RoCE ({MODULE}). Debian's linux-image-amd64 brings it, its -cloud- kernels do not; \
             Ubuntu has it in linux-modules-extra-$(uname -r); {WAYS_OUT}"
        )
    })
}

impl Pair {
    fn make(&self, network: &mut Network) -> Result<()> {
        let [a, b] = VETH;
        network.veth(a, b, self.mtu)?;
        let sides = [
            (a, RXE_BRIDGE, self.bridge, b, self.emulator),
            (b, RXE_EMULATOR, self.emulator, a, self.bridge),
        ];
        for (interface, _, own, _, _) in sides {
            let subnet = Subnet { ip: own, prefix: 24 };
            ensure!(
                !network.has_elsewhere(own, interface)?,
                "{own} is another interface's address; choose others with --bridge-ip and --emulator-ip"
            );
            network.mtu(interface, self.mtu)?;
            network.between_own_addresses(interface)?;
            network.address(interface, subnet)?;
            network.up(interface)?;
        }
        for (interface, _, _, far, ip) in sides {
            network.neighbour(interface, &Neighbour { ip, mac: mac_of(far)? })?;
        }
        for (interface, device, own, _, _) in sides {
            network.rxe(device, interface)?;
            network.await_gids(device, 1, &[own])?;
        }
        Ok(())
    }
}

impl OnInterface {
    fn make(&self, network: &mut Network) -> Result<()> {
        let interface = self.interface.as_str();
        steps::must_exist(interface)?;
        ensure!(
            self.neighbours.is_empty() || interface != "lo",
            "{interface} asks nobody for addresses, so --neighbour does nothing there"
        );
        if let Some(mtu) = self.mtu {
            network.mtu(interface, mtu)?;
        }
        for subnet in &self.addresses {
            network.address(interface, *subnet)?;
        }
        network.up(interface)?;
        for neighbour in &self.neighbours {
            network.neighbour(interface, neighbour)?;
        }
        let device = match steps::rxe_on(&Sysfs::of_the_machine(), interface) {
            Some(device) => {
                network.say(&format!("{device} is on {interface} already"));
                network.let_it_see_all_addresses(&device, interface)?;
                device
            }
            None => {
                let device = steps::free_name(&Sysfs::of_the_machine());
                network.rxe(&device, interface)?;
                device
            }
        };
        let addresses = steps::addresses_of(interface)?;
        if addresses.is_empty() {
            bail!(
                "{interface} has no IPv4 address, so {device} can reach nobody; give one with --address IP/LENGTH"
            );
        }
        network.await_gids(&device, 1, &addresses)
    }
}

/// Where the journals are: gone with the boot that they are of, and not with the build directory.
const FOLDER: &str = "/run/roce-xtask";
