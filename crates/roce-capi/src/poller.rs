//! Shared pollers as C knows them.

use std::ffi::{c_int, c_void};

use roce_ffi::Handles;
use roce_transport::{PollerOptions, SharedPoller};

use crate::error::Refusal;

/// `cpu_roce_poller_t`: never dereferenced.
pub type PollerHandle = *mut c_void;

/// All pollers of the process.
pub(crate) static POLLERS: Handles<SharedPoller, ()> = Handles::new(0xC0DF);

/// On that CPU, -1 for any, and with that priority, 0 for none.
pub(crate) fn start(cpu: c_int, rt_priority: c_int) -> Result<PollerHandle, Refusal> {
    let cpu = match cpu {
        -1 => None,
        _ => {
            Some(cpu.try_into().map_err(|_| Refusal::argument("cpu", cpu, "a CPU's number, or -1 for any"))?)
        }
    };
    let rt_priority = match rt_priority {
        0 => None,
        1..=99 => rt_priority.try_into().ok(),
        _ => return Err(Refusal::argument("rt_priority", rt_priority, "1 to 99, or 0 for none")),
    };
    let poller = SharedPoller::start(PollerOptions { cpu, rt_priority, ..PollerOptions::default() })?;
    POLLERS.insert(poller).ok_or(Refusal::TableFull("pollers"))
}
