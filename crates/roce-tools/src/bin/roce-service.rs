//! A service of functions that callers call over RoCEv2.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use roce_rendezvous::socket::Timeouts;
use roce_tools::cli::{FaultOptions, LinkOptions, Verb, exit_code, number, parse};
use roce_tools::output::{announce, init_logging};
use roce_tools::service::{Plugin, Service, ServiceConfig};
use roce_tools::workload::load_graph;
use roce_tools::{Error, signal};
use roce_transport::{Config, Mode, SpinPolicy};

/// Serves functions to callers that come over the socket rendezvous: rpc_increment, sum, echo, with --dem mwpm_decode,
/// and those of C plug-ins.
///
/// Each caller has a transceiver, rings and a dispatcher of its own. Prints a line once callers may come, runs until a
/// signal, and then prints how many calls it answered. Numbers are decimal or 0x hex.
#[derive(Debug, Parser)]
#[command(name = "roce-service", version, args_override_self = true)]
struct Options {
    #[command(flatten)]
    link: LinkOptions,
    /// The TCP port of the rendezvous; 0: any.
    #[arg(long, value_name = "P", value_parser = number::<u16>, default_value = "0")]
    port: u16,
    /// The address that the rendezvous listens on.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    listen: IpAddr,
    /// ring: threads move the messages between the wire and a ring beside the dispatcher's; unified: the dispatcher
    /// does it all.
    #[arg(long, value_enum, default_value_t = Dispatch::Ring)]
    dispatch: Dispatch,
    /// With --dispatch unified: send up to N answers at once, where as many requests came together; for functions faster than a send. A lone
    /// answer waits for nothing.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "1")]
    answers_per_flush: u32,
    /// Slots of each ring, a power of two; the callers' too.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "8")]
    slots: u32,
    /// Bytes of a slot, and of a message; 24 of them are a header.
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>, default_value = "256")]
    slot_size: u32,
    /// How answers travel: write puts each into the slot of its request; send takes the caller's next receive.
    #[arg(long, value_enum, default_value_t = Verb::Write)]
    tx_mode: Verb,
    /// A detector error model to decode with: serves mwpm_decode.
    #[arg(long, value_name = "FILE")]
    dem: Option<PathBuf>,
    /// A shared library with a table of functions; may be given more than once. Trusted: it runs in this process.
    #[arg(long = "plugin", value_name = "FILE")]
    plugins: Vec<PathBuf>,
    /// Serve the counters over HTTP, as text that Prometheus reads.
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// Callers at a time; one more takes the place of the one that is silent longest.
    #[arg(long, value_name = "N", value_parser = number::<u16>, default_value = "64")]
    max_peers: u16,
    /// Let a caller without a lease go that is silent for so long: nothing else tells that it died. 0: never.
    #[arg(long, value_name = "MS", value_parser = number::<u64>, default_value = "300000")]
    idle_timeout_ms: u64,
    /// Never give a core away while waiting; only where each thread has one.
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    faults: FaultOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dispatch {
    Ring,
    Unified,
}

/// How long a thread that connects or closes queue pairs stays for the next one.
const CONNECTOR_REST: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    init_logging();
    exit_code::<Options>(run(parse()))
}

fn run(options: Options) -> Result<bool, Error> {
    let stop = signal::stop_flag()?;
    let config = options.config()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(CONNECTOR_REST)
        .build()
        .map_err(Error::Runtime)?;
    runtime.block_on(async {
        let service = Service::bind(config).await?;
        if let Some(addr) = service.metrics_addr() {
            announce(&format!("metrics on http://{addr}/metrics"));
        }
        announce(&options.ready_line(&service));
        let answered = service.run(&stop).await;
        announce(&format!("CUDAQ_REALTIME_SERVER_PROCESSED count={answered}"));
        Ok(true)
    })
}

impl Options {
    fn ready_line(&self, service: &Service) -> String {
        format!(
            "CUDAQ_REALTIME_SERVER_READY transport=cpu_roce port={} roce_ip={} dispatch={} slots={} slot_size={}",
            service.rendezvous_addr().port(),
            service.roce_ip(),
            match self.dispatch {
                Dispatch::Ring => "ring",
                Dispatch::Unified => "unified",
            },
            self.slots,
            self.slot_size
        )
    }

    fn config(&self) -> Result<ServiceConfig, Error> {
        if self.max_peers == 0 {
            return Err(Error::Options("--max-peers 0 would serve nobody; take at least 1".to_owned()));
        }
        Ok(ServiceConfig {
            transceiver: self.transceiver()?,
            spin: self.spin_policy(),
            answers_per_flush: self.answers_per_flush,
            listen: SocketAddr::new(self.listen, self.port),
            timeouts: Timeouts::default(),
            metrics: self.metrics,
            max_peers: self.max_peers.into(),
            idle_timeout: Some(self.idle_timeout_ms).filter(|&ms| ms > 0).map(Duration::from_millis),
            graph: self.dem.as_deref().map(load_graph).transpose()?,
            plugins: self.plugins.iter().map(|path| Plugin::load(path)).collect::<Result<_, _>>()?,
        })
    }

    fn transceiver(&self) -> Result<Config, Error> {
        let config = self
            .link
            .config(&self.faults)
            .num_pages(self.slots)
            .page_size(self.slot_size)
            .mode(match self.dispatch {
                Dispatch::Ring => Mode::Threads,
                Dispatch::Unified => Mode::Unified,
            })
            .tx_mode(self.tx_mode.into())
            .spin(self.spin_policy());
        config.build().map_err(|e| Error::Options(e.to_string()))
    }

    fn spin_policy(&self) -> SpinPolicy {
        if self.spin { SpinPolicy::Spin } else { SpinPolicy::default() }
    }
}
