//! `cargo xtask hw-test`: the whole path on RDMA devices: the bridge on one port, and as its peer a second port, the same
//! port, or a real FPGA. What stands in the way is found first, and told all at once.

mod checks;
mod options;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use self::checks::{Finding, Machine, Seat};
use self::options::{HwOptions, Request, USAGE};
use crate::emulate::{self, Json, Link, Say};
use crate::net::{Neighbour, Network, Subnet, mac_of};
use crate::rdma::Sysfs;
use crate::{interrupt, usage_error};

/// Of the addresses that `--setup-network` gives.
const PREFIX: u8 = 24;

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let options = match options::parse(args) {
        Ok(Request::Run(options)) => *options,
        Ok(Request::Help) => {
            print!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(problem) => return Err(usage_error(problem, USAGE)),
    };
    let say = Say { to_stderr: options.run.json == Some(Json::Stdout) };
    interrupt::install()?;
    let sysfs = Sysfs::of_the_machine();
    let _network = if options.setup_network { Some(set_up(&options, &sysfs, say)?) } else { None };

    let findings = checks::all(&options, &sysfs, &Machine::this());
    say.line(&checks::table(&findings));
    let cures: Vec<String> = findings.iter().filter_map(Finding::cure).collect();
    if !cures.is_empty() {
        say.line(&cures.join("\n"));
    }
    let failures = findings.iter().filter(|finding| finding.is_failure()).count();
    if failures > 0 {
        say.line(&format!("RESULT: FAIL (preconditions not met: {failures})"));
        return Ok(ExitCode::FAILURE);
    }
    emulate::on_link(&options.run, &link(&options, &sysfs)?, say)
}

fn link(options: &HwOptions, sysfs: &Sysfs) -> Result<Link> {
    match options.fpga {
        Some(fpga) => Link::to_fpga(&options.run, sysfs, &options.device, fpga.ip, fpga.qp),
        None => Link::on_devices(&options.run, sysfs, &options.device),
    }
}

/// Gives the interfaces their addresses, until the run ends.
fn set_up(options: &HwOptions, sysfs: &Sysfs, say: Say) -> Result<Network> {
    let mut network = Network::empty_for_a_run(say)?;
    let seats = options.seats();
    let mut taken = Vec::new();
    for seat in &seats {
        let Seat { device, port, ip, option } = seat;
        let Some(ip) = *ip else { bail!("--setup-network needs {option}: it gives the address to {device}") };
        let interface = sysfs.port(device, *port)?.interface;
        let interface =
            interface.with_context(|| format!("{device} port {port} has no network interface"))?.name;
        if let Some(mtu) = options.mtu {
            network.mtu(&interface, mtu)?;
        }
        network.up(&interface)?;
        network.address(&interface, Subnet { ip, prefix: PREFIX })?;
        taken.push((interface, ip));
    }
    if let [(a, of_a), (b, of_b)] = taken.as_slice()
        && a != b
    {
        for (interface, far, ip) in [(a, b, of_b), (b, a, of_a)] {
            network.between_own_addresses(interface)?;
            network.neighbour(interface, &Neighbour { ip: *ip, mac: mac_of(far)? })?;
        }
    }
    for seats in seats.chunk_by(|a, b| (&a.device, a.port) == (&b.device, b.port)) {
        let ips: Vec<Ipv4Addr> = seats.iter().filter_map(|seat| seat.ip).collect();
        network.await_gids(&seats[0].device, seats[0].port, &ips)?;
    }
    Ok(network)
}
