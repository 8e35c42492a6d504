//! Calls a function of a service over RoCEv2.

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use roce_rendezvous::socket::Form;
use roce_tools::Error;
use roce_tools::call::{Plan, Report, ResultType, Session, SessionConfig, Value, run as make_calls};
use roce_tools::cli::{FaultOptions, JsonTarget, LinkOptions, Verb, exit_code, number, parse};
use roce_tools::handlers::{ECHO, SUM};
use roce_tools::output::{Output, init_logging};
use roce_transport::{Config, Mode, SpinPolicy};

/// Calls a function of a service and prints its result: roce-call 127.0.0.1:9000 rpc_increment u8:1,2,3
///
/// Exit code: 0 when every call was answered, and all alike; 1 when not; 2 for options that cannot work. Numbers are
/// decimal or 0x hex.
#[derive(Debug, Parser)]
#[command(name = "roce-call", version, args_override_self = true)]
#[command(mut_arg("device", |device| device.default_value("soft:127.0.0.2")))]
struct Options {
    /// Where the service's rendezvous listens: a name or an address, as 10.0.0.1:9000, that of IPv6 in square brackets.
    /// The calls themselves are RoCEv2 over IPv4, whatever this is.
    #[arg(value_name = "HOST:PORT")]
    service: String,
    /// The function's name.
    function: String,
    /// Arguments, one behind the other: u8, i32, i64, f32 or f64 with one or more values, or bits:0110.
    #[arg(value_name = "TYPE:VALUE")]
    args: Vec<Value>,
    /// How to read the results: TYPExN, as i32x4, or TYPE for as many as there are; may be given more than once [default:
    /// what the known functions give, or bytes].
    #[arg(long = "result", value_name = "TYPE")]
    results: Vec<ResultType>,
    #[command(flatten)]
    link: LinkOptions,
    /// Slots of each ring, as the service's.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "8")]
    slots: u32,
    /// Bytes of a slot, and of a message, as the service's.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "256")]
    slot_size: u32,
    /// How requests travel: write puts each into its slot; send takes the service's next receive.
    #[arg(long, value_enum, default_value_t = Verb::Write)]
    tx_mode: Verb,
    /// Speak the 12-byte form of the rendezvous, as older services do.
    #[arg(long)]
    plain: bool,
    /// How often to call.
    #[arg(long, value_name = "N", value_parser = number::<u64>, default_value = "1")]
    repeat: u64,
    /// How many calls in flight at once, at most --slots.
    #[arg(long, value_name = "D", value_parser = number::<u32>, default_value = "1")]
    depth: u32,
    /// For the service to turn up, and for each call.
    #[arg(long, value_name = "T", value_parser = number::<u64>, default_value = "5000")]
    timeout_ms: u64,
    /// Print a report as JSON instead.
    #[arg(long)]
    json: bool,
    /// Never give the core away while waiting.
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    faults: FaultOptions,
}

fn main() -> ExitCode {
    init_logging();
    exit_code::<Options>(run(&parse()))
}

fn run(options: &Options) -> Result<bool, Error> {
    let plan = options.plan()?;
    let session = Session::connect(options.session()?)?;
    let report = make_calls(session.caller(), &plan).map_err(|error| session.explain(error))?;
    session.leave();
    options.print(&report)?;
    Ok(report.is_good())
}

impl Options {
    fn print(&self, report: &Report) -> Result<(), Error> {
        if self.json {
            return Output::new(Some(JsonTarget::Stdout)).report(report);
        }
        let text = report.for_people();
        if report.answers > 0 {
            Output::default().say(&text);
        } else {
            // Nobody is left to tell where standard error is closed.
            let _ = writeln!(io::stderr(), "{text}");
        }
        Ok(())
    }

    fn plan(&self) -> Result<Plan, Error> {
        if !(1..=self.slots).contains(&self.depth) {
            let problem = format!("--depth {}: take 1 to {}, the slots of the ring", self.depth, self.slots);
            return Err(Error::Options(problem));
        }
        Ok(Plan {
            function: self.function.clone(),
            args: self.args.clone(),
            results: self.result_types(),
            repeat: self.repeat,
            depth: self.depth as usize,
            timeout: self.timeout(),
        })
    }

    /// As asked for, or what the functions give that every service has.
    fn result_types(&self) -> Vec<ResultType> {
        match self.function.as_str() {
            _ if !self.results.is_empty() => self.results.clone(),
            SUM => vec![ResultType::INT64],
            ECHO => self.args.iter().map(Value::result_type).collect(),
            _ => Vec::new(),
        }
    }

    fn session(&self) -> Result<SessionConfig, Error> {
        Ok(SessionConfig {
            service: self.resolve()?,
            form: if self.plain { Form::Plain } else { Form::Json },
            timeout: self.timeout(),
            transceiver: self.transceiver()?,
        })
    }

    fn resolve(&self) -> Result<SocketAddr, Error> {
        let found = self.service.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let chosen = found.and_then(|addresses| {
            // A name may stand for both kinds, and most services listen on IPv4 alone.
            let chosen = addresses.iter().find(|a| a.is_ipv4()).or(addresses.first());
            chosen.copied().ok_or_else(|| io::ErrorKind::NotFound.into())
        });
        chosen.map_err(|source| Error::Resolve { name: self.service.clone(), source })
    }

    fn transceiver(&self) -> Result<Config, Error> {
        let mut config = self
            .link
            .config(&self.faults)
            .num_pages(self.slots)
            .page_size(self.slot_size)
            .mode(Mode::Unified)
            .tx_mode(self.tx_mode.into());
        if self.spin {
            config = config.spin(SpinPolicy::Spin);
        }
        config.build().map_err(|e| Error::Options(e.to_string()))
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}
