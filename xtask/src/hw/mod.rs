//! `cargo xtask hw-test`: the whole path on RDMA devices: the bridge on one port, and as its peer a second port, the same
//! port, or a real FPGA. What stands in the way is found first, and told all at once.

mod checks;
mod options;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::checks::{Finding, Machine, Seat};
use self::options::{HwOptions, Request, USAGE};
use crate::emulate::{self, Json, Link, Say};
use crate::net::{Neighbour, Network, Subnet, mac_of};
use crate::rdma::Sysfs;
use crate::{build, interrupt, usage_error};

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
    emulate::on_link(&options.run, &link(&options, &sysfs, say)?, say)
}

fn link(options: &HwOptions, sysfs: &Sysfs, say: Say) -> Result<Link> {
    match options.fpga {
        Some(fpga) => {
            let ip = fpga.ip.map_or_else(|| discover(options, say), Ok)?;
            Link::to_fpga(&options.run, sysfs, &options.device, ip, fpga.qp)
        }
        None => Link::on_devices(&options.run, sysfs, &options.device),
    }
}

/// The address of the one board that makes itself known.
fn discover(options: &HwOptions, say: Say) -> Result<Ipv4Addr> {
    let programs = match &options.run.programs {
        Some(dir) => dir.clone(),
        None => build::verbs_programs()?,
    };
    say.line("Listening for boards ...");
    let mut hsb = Command::new(programs.join("hsb"));
    let output = hsb.args(["discover", "--json"]).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {}", programs.join("hsb").display()))?;
    board_in(&output.stdout)
}

/// Of the report of `hsb discover --json`.
fn board_in(report: &[u8]) -> Result<Ipv4Addr> {
    let report: Value = serde_json::from_slice(report).context("`hsb discover` printed no JSON")?;
    let boards = report["boards"].as_array().map_or(&[][..], Vec::as_slice);
    let ips: BTreeSet<&str> = boards.iter().filter_map(|board| board["ip"].as_str()).collect();
    match ips.iter().collect::<Vec<_>>().as_slice() {
        [ip] => ip.parse().with_context(|| format!("`hsb discover` says {ip}, which is no address")),
        [] => bail!("no board made itself known; give its address with --fpga-ip, and see docs/hsb.md"),
        several => bail!("there is more than one: {several:?}; choose one with --fpga-ip"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_board_is_taken() {
        let report = |ips: &[&str]| {
            let boards: Vec<Value> = ips.iter().map(|ip| serde_json::json!({ "ip": ip })).collect();
            serde_json::json!({ "boards": boards }).to_string()
        };
        let found = |ips: &[&str]| board_in(report(ips).as_bytes()).map_err(|error| error.to_string());
        assert_eq!(found(&["192.168.0.2"]), Ok([192, 168, 0, 2].into()));
        // Two data planes of one port.
        assert_eq!(found(&["192.168.0.2", "192.168.0.2"]), Ok([192, 168, 0, 2].into()));
        assert!(found(&[]).unwrap_err().contains("docs/hsb.md"));
        assert!(found(&["192.168.0.2", "192.168.0.3"]).unwrap_err().contains("192.168.0.3"));
        assert!(board_in(b"").is_err());
    }
}
