//! The bridge: requests from the wire, through the function table, answers back to the wire.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roce_core::LocalEndpoint;
use roce_dispatch::{DispatchCounts, DispatchStats, FunctionTable, RingLoop, UnifiedLoop};
use roce_transport::{Config, Mode, SpinPolicy, Stats, Transceiver, pin_current_thread};
use serde_json::{Map, Value, json};

use crate::Error;

/// How often the waiting thread looks whether it shall end.
const TICK: Duration = Duration::from_millis(10);

/// A bridge whose queue pair is connected: what the peer sends from now on is not lost.
#[derive(Debug)]
pub struct Bridge {
    transceiver: Transceiver,
    endpoint: LocalEndpoint,
    dispatcher: Dispatcher,
}

/// How the thread runs that calls the functions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dispatcher {
    /// On this CPU alone.
    pub cpu: Option<usize>,
    /// How it waits for the next request.
    pub spin: SpinPolicy,
    /// How many answers it sends at once, at most, in unified mode; 0 and 1: each by itself.
    pub answers_per_flush: u32,
}

/// What came of a bridge.
#[derive(Debug)]
pub struct BridgeReport {
    /// Who moved the messages.
    pub mode: Mode,
    /// The transport's counters.
    pub stats: Stats,
    /// The dispatcher's counters; none in forward mode.
    pub dispatch: Option<DispatchCounts>,
    /// What ended it; nothing when it was told to end.
    pub error: Option<Error>,
}

impl Bridge {
    /// Sets the transceiver up and connects it to the peer of its configuration.
    pub fn connect(config: Config, dispatcher: Dispatcher) -> Result<Self, Error> {
        let transceiver = Transceiver::new(config);
        let endpoint = transceiver.start()?;
        Ok(Self { transceiver, endpoint, dispatcher })
    }

    /// Our end, for the peer.
    pub fn endpoint(&self) -> LocalEndpoint {
        self.endpoint
    }

    /// The lines by which scripts learn how the bridge is reached.
    pub fn handshake(&self) -> String {
        let LocalEndpoint { qpn, rkey, .. } = self.endpoint;
        // The ring is registered by offset: it begins at 0.
        format!(
            "=== Bridge Ready ===\n  QP Number: {:#x}\n  RKey: {}\n  Buffer Addr: {:#x}",
            qpn.get(),
            rkey.get(),
            0
        )
    }

    /// Serves `table` until `stop` is set, `deadline` has come, or the transport fails.
    pub fn run(self, table: FunctionTable, stop: &AtomicBool, deadline: Instant) -> BridgeReport {
        let mode = self.transceiver.config().mode();
        let mut dispatch = None;
        let result = match mode {
            Mode::Forward => self.monitor_until(stop, deadline, &|| false),
            Mode::Unified => self.serve_unified(table, stop, deadline, &mut dispatch),
            _ => self.serve_rings(table, stop, deadline, &mut dispatch),
        };
        let stats = self.transceiver.stats();
        self.transceiver.close();
        BridgeReport { mode, stats, dispatch: dispatch.map(|d| d.snapshot()), error: result.err() }
    }

    fn serve_rings(
        &self,
        table: FunctionTable,
        stop: &AtomicBool,
        deadline: Instant,
        stats: &mut Option<DispatchStats>,
    ) -> Result<(), Error> {
        let ends = self.transceiver.take_ends().ok_or(Error::Taken)?;
        let mut serving = RingLoop::new(ends.rx, ends.tx, table)?;
        *stats = Some(serving.stats());
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let dispatcher = dispatcher_thread().spawn_scoped(scope, || {
                self.pin()?;
                serving.run(&over, self.dispatcher.spin);
                Ok(())
            });
            let dispatcher = dispatcher.map_err(Error::Thread)?;
            let monitored = self.monitor_until(stop, deadline, &|| dispatcher.is_finished());
            over.store(true, Ordering::Relaxed);
            dispatcher.join().map_err(|_| Error::Panicked)?.and(monitored)
        })
    }

    fn serve_unified(
        &self,
        table: FunctionTable,
        stop: &AtomicBool,
        deadline: Instant,
        stats: &mut Option<DispatchStats>,
    ) -> Result<(), Error> {
        let link = self.transceiver.take_unified().ok_or(Error::Taken)?;
        let mut serving = UnifiedLoop::new(link, table)?.answers_per_flush(self.dispatcher.answers_per_flush);
        *stats = Some(serving.stats());
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let dispatcher = dispatcher_thread().spawn_scoped(scope, || {
                self.pin()?;
                Ok(serving.run(&over, self.dispatcher.spin)?)
            });
            let dispatcher = dispatcher.map_err(Error::Thread)?;
            wait_until(stop, deadline, &|| dispatcher.is_finished());
            over.store(true, Ordering::Relaxed);
            // It may be waiting for room to send, which only this ends.
            self.transceiver.close();
            dispatcher.join().map_err(|_| Error::Panicked)?
        })
    }

    /// Runs the transceiver's threads until it is time, or something else has finished.
    fn monitor_until(
        &self,
        stop: &AtomicBool,
        deadline: Instant,
        finished: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        thread::scope(|scope| {
            let monitor = scope.spawn(|| self.transceiver.blocking_monitor());
            wait_until(stop, deadline, &|| monitor.is_finished() || finished());
            self.transceiver.close();
            match monitor.join().map_err(|_| Error::Panicked)? {
                // Closed by us, before the monitor had even begun.
                Err(roce_transport::Error::Closed) => Ok(()),
                ended => Ok(ended?),
            }
        })
    }

    fn pin(&self) -> Result<(), Error> {
        Ok(self.dispatcher.cpu.map_or(Ok(()), pin_current_thread)?)
    }
}

fn dispatcher_thread() -> thread::Builder {
    thread::Builder::new().name("roce-dispatch".to_owned())
}

fn wait_until(stop: &AtomicBool, deadline: Instant, finished: &dyn Fn() -> bool) {
    while !stop.load(Ordering::Relaxed) && Instant::now() < deadline && !finished() {
        thread::sleep(TICK);
    }
}

impl BridgeReport {
    /// Names of the modes in reports.
    pub fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Forward => "forward",
            Mode::Unified => "unified",
            _ => "threads",
        }
    }

    /// Name and value of every counter, group by group.
    fn groups(&self) -> [(&'static str, Vec<(&'static str, u64)>); 3] {
        let dispatch = self.dispatch.map(|d| d.fields().to_vec());
        [
            ("stats", self.stats.fields().to_vec()),
            ("dispatch", dispatch.unwrap_or_default()),
            ("wire", self.stats.wire.clone()),
        ]
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        let error = self.error.as_ref().map(ToString::to_string);
        let mut report = json!({ "mode": self.mode_name(), "error": error });
        for (name, counters) in self.groups() {
            let counters: Map<_, _> = counters.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
            report[name] = counters.into();
        }
        report
    }

    /// The transport's and the dispatcher's counters, and of the wire's those that are not 0.
    pub fn for_people(&self) -> String {
        let mut text = format!("bridge ({})", self.mode_name());
        for (name, counters) in self.groups() {
            let shown = counters.into_iter().filter(|(_, value)| name != "wire" || *value > 0);
            let shown: Vec<_> = shown.map(|(counter, value)| format!("{counter} {value}")).collect();
            if !shown.is_empty() {
                text += &format!("\n  {name}: {}", shown.join(", "));
            }
        }
        text
    }
}
