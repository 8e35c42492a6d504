//! How far a plan is, and how long it will take, on a terminal.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

/// Rarely, since it takes a CPU from what is measured for a moment.
const TICK: Duration = Duration::from_millis(500);

/// A bar on standard error, where that is a terminal; nothing elsewhere.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    /// Where the bar is when what runs now has ended.
    end: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    ticker: Option<JoinHandle<()>>,
}

impl Progress {
    /// Of something that will take `total`.
    pub(super) fn new(total: Duration) -> Self {
        let bar = ProgressBar::new(millis(total));
        let style = ProgressStyle::with_template("[{bar:30}] {percent:>3} %, {left} left: {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("left", |state: &ProgressState, out: &mut dyn fmt::Write| {
                // Nobody is told less by a bar that cannot be written.
                let _ = out.write_str(&left(state.pos(), state.len().unwrap_or(0)));
            });
        bar.set_style(style);
        let (end, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let ticker = (!bar.is_hidden()).then(|| {
            let (bar, end, over) = (bar.clone(), Arc::clone(&end), Arc::clone(&over));
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    thread::park_timeout(TICK);
                    bar.set_position((bar.position() + millis(TICK)).min(end.load(Ordering::Relaxed)));
                }
            })
        });
        Self { bar, end, over, ticker }
    }

    /// Something begins that will take so long.
    pub(super) fn begin(&self, what: String, takes: Duration) {
        let before = self.end.fetch_add(millis(takes), Ordering::Relaxed);
        self.bar.set_message(what);
        self.bar.set_position(before);
    }

    /// Prints above the bar.
    pub(super) fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(ticker) = self.ticker.take() {
            ticker.thread().unpark();
            // It has nothing to say.
            let _ = ticker.join();
        }
        self.bar.finish_and_clear();
    }
}

/// What a bar's milliseconds leave: they are times, so nothing has to be guessed from the pace so far.
fn left(position: u64, total: u64) -> String {
    HumanDuration(Duration::from_millis(total.saturating_sub(position))).to_string()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_known_from_the_start() {
        assert_eq!([left(0, 30_000), left(29_000, 30_000)], ["30 seconds", "1 second"]);
        assert_eq!([left(0, 600_000), left(7, 5)], ["10 minutes", "0 seconds"]);
    }
}
