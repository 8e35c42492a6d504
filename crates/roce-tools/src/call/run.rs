//! One function, called again and again.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use roce_dispatch::UnifiedLink;
use roce_dispatch::caller::{CallError, CallResult, Caller, Dispatched, Frame, Function};
use serde::Serialize;
use serde_json::Value as Json;

use super::{ResultType, Value};
use crate::Error;
use crate::output::table;

/// Longer times count as this one: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// What to call, and how often.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The function's name.
    pub function: String,
    /// Its arguments.
    pub args: Vec<Value>,
    /// How to read its results.
    pub results: Vec<ResultType>,
    /// How many calls.
    pub repeat: u64,
    /// How many of them in flight at once, at most the ring's slots.
    pub depth: usize,
    /// For each of them.
    pub timeout: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The function's name.
    pub function: String,
    /// Results of the first call that was answered with some.
    pub result: Option<Vec<Json>>,
    /// The first error, in words.
    pub error: Option<String>,
    /// Calls made.
    pub calls: u64,
    /// Calls answered with results.
    pub answers: u64,
    /// Calls answered with an error.
    pub errors: u64,
    /// Calls not answered in time.
    pub timeouts: u64,
    /// Answers that differ from the first.
    pub different: u64,
    /// From dispatch to answer, in ns and to three digits: half of the calls took no longer.
    pub p50_ns: u64,
    /// From dispatch to answer, in ns and to three digits: 99 of 100 calls took no longer.
    pub p99_ns: u64,
    /// Answers per second, over all.
    pub calls_per_s: f64,
    /// The result as text.
    #[serde(skip)]
    text: Option<String>,
}

impl Report {
    /// Whether every call was answered, and all alike.
    pub fn is_good(&self) -> bool {
        self.answers == self.calls && self.different == 0
    }

    /// The result, or the first error; and, for more calls than one, a table.
    pub fn for_people(&self) -> String {
        let outcome = self.text.clone().or_else(|| self.error.as_ref().map(|e| format!("error: {e}")));
        let mut text = outcome.unwrap_or_default();
        if self.calls > 1 {
            let rows = [
                ("calls", self.calls.to_string()),
                ("answers", self.answers.to_string()),
                ("errors", self.errors.to_string()),
                ("timeouts", self.timeouts.to_string()),
                ("different", self.different.to_string()),
                ("p50_ns", self.p50_ns.to_string()),
                ("p99_ns", self.p99_ns.to_string()),
                ("calls_per_s", format!("{:.0}", self.calls_per_s)),
            ];
            text = format!("{text}\n{}", table(&rows));
        }
        text
    }
}

/// Makes the calls of `plan`.
///
/// # Errors
/// Arguments that do not fit a frame, and the link's. What befalls a single call is counted.
pub fn run<L: UnifiedLink>(caller: &Caller<L>, plan: &Plan) -> Result<Report, Error> {
    let mut runner = Runner::new(caller, plan);
    let start = Instant::now();
    while runner.made < plan.repeat || !runner.pending.is_empty() {
        runner.fill()?;
        runner.collect()?;
    }
    Ok(runner.report(start.elapsed()))
}

struct Runner<'c, L: UnifiedLink> {
    caller: &'c Caller<L>,
    plan: &'c Plan,
    function: Function<'static>,
    pending: Vec<Frame<'c, L, Dispatched>>,
    /// By slot.
    started: Vec<Instant>,
    /// Nanoseconds. However many calls there are, it grows no more.
    latencies: Histogram<u64>,
    made: u64,
    errors: u64,
    timeouts: u64,
    different: u64,
    first: Option<(Vec<u8>, Vec<Value>)>,
    first_error: Option<CallError>,
}

impl<'c, L: UnifiedLink> Runner<'c, L> {
    fn new(caller: &'c Caller<L>, plan: &'c Plan) -> Self {
        Self {
            caller,
            plan,
            function: Function::new(&plan.function),
            pending: Vec::with_capacity(plan.depth),
            started: vec![Instant::now(); caller.geometry().num_pages() as usize],
            latencies: Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds that a histogram takes"),
            made: 0,
            errors: 0,
            timeouts: 0,
            different: 0,
            first: None,
            first_error: None,
        }
    }

    fn fill(&mut self) -> Result<(), Error> {
        while self.made < self.plan.repeat && self.pending.len() < self.plan.depth {
            let mut frame = self.caller.acquire(&self.function)?;
            for value in &self.plan.args {
                value.put(&mut frame)?;
            }
            let slot = frame.slot() as usize;
            self.started[slot] = Instant::now();
            self.made += 1;
            match frame.stage(self.plan.timeout) {
                Ok(call) => self.pending.push(call),
                Err(error) => return self.note(error),
            }
        }
        Ok(())
    }

    /// Waits for one call, and takes all that are over then.
    fn collect(&mut self) -> Result<(), Error> {
        if let Some((_, outcome)) = self.caller.wait_any(&mut self.pending) {
            self.take(outcome)?;
        }
        self.caller.poll()?;
        while let Some(over) = self.pending.iter().position(Frame::is_over) {
            let call = self.pending.swap_remove(over);
            self.take(call.wait())?;
        }
        Ok(())
    }

    fn take(&mut self, outcome: CallResult<'c, L>) -> Result<(), Error> {
        match outcome {
            Ok(mut answer) => {
                let took = self.started[answer.slot() as usize].elapsed();
                self.latencies.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                let bytes = answer.to_vec();
                match &self.first {
                    None => {
                        self.first = Some((bytes, ResultType::take_all(&self.plan.results, &mut answer)?))
                    }
                    Some((first, _)) if *first != bytes => self.different += 1,
                    Some(_) => {}
                }
                Ok(())
            }
            Err(error) => self.note(error),
        }
    }

    /// Counts a call's error, unless it concerns the others too.
    fn note(&mut self, error: CallError) -> Result<(), Error> {
        match error {
            CallError::Closed | CallError::Link(_) => return Err(error.into()),
            CallError::Timeout { .. } | CallError::NoRoom { .. } => self.timeouts += 1,
            _ => self.errors += 1,
        }
        self.first_error.get_or_insert(error);
        Ok(())
    }

    fn report(self, took: Duration) -> Report {
        let answers = self.latencies.len();
        let values = self.first.map(|(_, values)| values);
        let text = |values: &Vec<Value>| values.iter().map(Value::to_string).collect::<Vec<_>>().join(" ");
        Report {
            function: self.plan.function.clone(),
            text: values.as_ref().map(text),
            result: values.map(|values| values.iter().map(Value::json).collect()),
            error: self.first_error.map(|error| error.to_string()),
            calls: self.made,
            answers,
            errors: self.errors,
            timeouts: self.timeouts,
            different: self.different,
            p50_ns: self.latencies.value_at_quantile(0.5),
            p99_ns: self.latencies.value_at_quantile(0.99),
            calls_per_s: answers as f64 / took.as_secs_f64(),
        }
    }
}
