//! What the programs' command lines have in common.

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, ValueEnum};
use roce_transport::{Config, ConfigBuilder, DeviceConfig, FaultConfig, TxMode};

use crate::Error;

/// Reads a number, decimal or 0x hex, that fits `T`. For clap's `value_parser`.
pub fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let digits = hex.unwrap_or(text);
    let radix = if hex.is_some() { 16 } else { 10 };
    // from_str_radix takes a sign, which is no digit.
    let all_digits = digits.chars().all(|c| c.is_digit(radix));
    let wide = if all_digits { u64::from_str_radix(digits, radix).ok() } else { None };
    wide.and_then(|n| T::try_from(n).ok())
        .ok_or_else(|| format!("not a number in range ({} bits, decimal or 0x hex)", 8 * size_of::<T>()))
}

/// Reads a probability from 0 to 1. For clap's `value_parser`.
pub fn probability(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| "not a number from 0 to 1".to_owned())
}

/// Where a report goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonTarget {
    /// Standard output; what is for people then goes to standard error.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl JsonTarget {
    /// `-`, or the name of a file. For clap's `value_parser`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("not a file name; give one, or - for standard output".to_owned()),
            "-" => Ok(Self::Stdout),
            file => Ok(Self::File(file.into())),
        }
    }
}

/// Which link a program's own end is on.
#[derive(Debug, Clone, Args)]
pub struct LinkOptions {
    /// The link: soft:IP is RoCEv2 in userspace, from that address; others are RDMA devices.
    #[arg(long, value_name = "NAME", default_value = "soft:127.0.0.1")]
    device: String,
    /// The port of the device, from 1; soft devices have one.
    #[arg(long, value_name = "N", value_parser = number::<u8>, default_value = "1")]
    ib_port: u8,
    /// The address to send from [default: the one in the device's name, or its first].
    #[arg(long, value_name = "IP")]
    local_ip: Option<Ipv4Addr>,
}

impl LinkOptions {
    /// The name of the device.
    pub fn name(&self) -> &str {
        &self.device
    }

    /// The address to send from, as far as the options tell.
    pub fn ip(&self) -> Option<Ipv4Addr> {
        let named = || match self.device.split_once(':') {
            Some(("soft", addr)) => addr.parse().ok(),
            _ => (self.device == "soft").then_some(Ipv4Addr::LOCALHOST),
        };
        self.local_ip.or_else(named)
    }

    /// The device, for what is no transceiver.
    pub fn device(&self, faults: &FaultOptions) -> DeviceConfig {
        let mut device = DeviceConfig::new(&self.device);
        device.port = self.ib_port;
        device.local_ip = self.local_ip;
        device.faults = faults.config();
        device
    }

    /// A transceiver's configuration on this link, which spoils what it sends as `faults` say.
    pub fn config(&self, faults: &FaultOptions) -> ConfigBuilder {
        let mut config = Config::builder(&self.device).port(self.ib_port);
        if let Some(ip) = self.local_ip {
            config = config.local_ip(ip);
        }
        if let Some(faults) = faults.config() {
            config = config.faults(faults);
        }
        config
    }
}

/// How a program's messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Verb {
    /// Each into the slot that it names.
    Write,
    /// Each into the peer's next receive.
    Send,
}

impl From<Verb> for TxMode {
    fn from(verb: Verb) -> Self {
        match verb {
            Verb::Write => Self::WriteWithImm,
            Verb::Send => Self::Send,
        }
    }
}

/// Faults that a program injects into what it sends.
#[derive(Debug, Clone, Args)]
pub struct FaultOptions {
    /// Spoil packets on their way out, as in drop=0.01,dup=0.01,reorder=0.01,delay=0.01:200us,corrupt=0.01,seed=7.
    #[arg(long, value_name = "SPEC", conflicts_with = "drop_rate")]
    faults: Option<FaultConfig>,
    /// Drop a packet on its way out with this probability.
    #[arg(long, value_name = "P", value_parser = probability)]
    drop_rate: Option<f64>,
    /// Which packets are dropped: the same seed, the same packets.
    #[arg(long, value_name = "N", value_parser = number::<u64>, requires = "drop_rate", default_value = "0")]
    seed: u64,
}

impl FaultOptions {
    /// The faults, if there are any.
    pub fn config(&self) -> Option<FaultConfig> {
        let dropping = |drop| FaultConfig { drop, seed: self.seed, ..FaultConfig::default() };
        self.faults.or(self.drop_rate.map(dropping))
    }
}

/// Reads the command line of program `P`. Bad options end the program with exit code 2 and the usage, --help and
/// --version with 0.
pub fn parse<P: Parser>() -> P {
    P::try_parse().unwrap_or_else(|error| match error.exit_code() {
        2 => {
            print_with_usage::<P>(&error);
            std::process::exit(2)
        }
        _ => error.exit(),
    })
}

/// Not every error of clap's shows the usage by itself.
fn print_with_usage<P: CommandFactory>(error: &clap::Error) {
    // Nobody is left to tell where standard error is closed.
    let _ = error.print();
    if !error.to_string().contains("Usage:") {
        let usage = P::command().render_usage().to_string();
        let _ = writeln!(io::stderr(), "{usage}");
    }
}

/// The exit code of program `P`: 0 for `Ok(true)`, 1 for `Ok(false)` and for errors, which are printed; 2, with the
/// usage, for options that cannot work.
pub fn exit_code<P: CommandFactory>(result: Result<bool, Error>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Error::Options(problem)) => {
            print_with_usage::<P>(&P::command().error(ErrorKind::ValueValidation, problem));
            ExitCode::from(2)
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hex() {
        assert_eq!(number::<u32>("4096"), Ok(4096));
        assert_eq!(number::<u32>("0xFfff_ffff".replace('_', "").as_str()), Ok(u32::MAX));
        assert_eq!(number::<u64>("0X10"), Ok(16));
        assert_eq!(number::<u8>("010"), Ok(10));
        for bad in ["", "0x", "-1", "+1", "0x+1", "0x-1", "1e3", "256", "0x100", " 1", "1_0"] {
            assert!(number::<u8>(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn probabilities_are_bounded() {
        assert_eq!(probability("0.02"), Ok(0.02));
        for bad in ["", "1.01", "-0.1", "NaN", "inf"] {
            assert!(probability(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_dash_is_standard_output() {
        assert_eq!(JsonTarget::parse("-"), Ok(JsonTarget::Stdout));
        assert_eq!(JsonTarget::parse("a-"), Ok(JsonTarget::File("a-".into())));
        assert!(JsonTarget::parse("").is_err());
    }
}
