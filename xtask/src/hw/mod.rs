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

/// The address of the board's first data plane, of the report of `hsb discover --json`.
fn board_in(report: &[u8]) -> Result<Ipv4Addr> {
    let report: Value = serde_json::from_slice(report).context("`hsb discover` printed no JSON")?;
    let boards = report["boards"].as_array().map_or(&[][..], Vec::as_slice);
    let serials: BTreeSet<_> = boards.iter().map(|board| board["serial"].as_str()).collect();
    if serials.len() > 1 {
        let ips: Vec<_> = boards.iter().filter_map(|board| board["ip"].as_str()).collect();
        bail!("there is more than one board: {}; choose one with --fpga-ip", ips.join(", "));
    }
    let Some(board) = boards.iter().min_by_key(|board| board["data_plane"].as_u64()) else {
        bail!("no board made itself known; give its address with --fpga-ip, and see docs/hsb.md");
    };
    let ip = board["ip"].as_str().unwrap_or_default();
    ip.parse().with_context(|| format!("`hsb discover` says `{ip}`, which is no address"))
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
        let found = |planes: &[(&str, u8, &str)]| {
            let board =
                |&(serial, plane, ip)| serde_json::json!({ "serial": serial, "data_plane": plane, "ip": ip });
            let boards: Vec<Value> = planes.iter().map(board).collect();
            let report = serde_json::json!({ "boards": boards }).to_string();
            board_in(report.as_bytes()).map_err(|error| error.to_string())
        };
        let (first, second) = ([192, 168, 0, 2].into(), [192, 168, 0, 3].into());
        assert_eq!(found(&[("a", 0, "192.168.0.2")]), Ok(first));
        assert_eq!(found(&[("a", 1, "192.168.0.3")]), Ok(second));
        // Both ports of one board, the first on two interfaces.
        let both = [("a", 1, "192.168.0.3"), ("a", 0, "192.168.0.2"), ("a", 0, "192.168.0.2")];
        assert_eq!(found(&both), Ok(first));
        assert!(found(&[]).unwrap_err().contains("docs/hsb.md"));
        let two = found(&[("a", 0, "192.168.0.2"), ("b", 0, "192.168.0.3")]);
        assert!(two.unwrap_err().contains("192.168.0.2, 192.168.0.3"));
        assert!(found(&[("a", 0, "nowhere")]).unwrap_err().contains("nowhere"));
        assert!(board_in(b"").is_err());
    }
}
