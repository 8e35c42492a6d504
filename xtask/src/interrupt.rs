//! SIGINT, SIGTERM and SIGHUP: noted when they come, looked at between two steps.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static CAUGHT: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// From here on the signals no longer end the process; [`check`] says that one came.
pub(crate) fn install() -> Result<()> {
    let caught = CAUGHT.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_usize(signal, Arc::clone(caught), signal.unsigned_abs() as usize)
            .with_context(|| format!("cannot take signal {signal}"))?;
    }
    Ok(())
}

/// An error once a signal has come.
pub(crate) fn check() -> Result<()> {
    match signal() {
        Some(signal) => bail!("stopped by signal {signal}"),
        None => Ok(()),
    }
}

/// 128 + signal, as shells have it; `None` where none came.
pub(crate) fn exit_code() -> Option<ExitCode> {
    signal().map(|signal| ExitCode::from(128 + signal))
}

fn signal() -> Option<u8> {
    let caught = CAUGHT.get()?.load(Ordering::Relaxed);
    u8::try_from(caught).ok().filter(|signal| *signal != 0)
}
