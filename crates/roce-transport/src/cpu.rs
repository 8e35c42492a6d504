//! Puts a thread on its CPU, at its priority.

use std::sync::Arc;

use crate::error::Error;

/// Where a thread runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Placement {
    pub(crate) cpu: Option<usize>,
    pub(crate) rt_priority: Option<u8>,
}

impl Placement {
    /// Places the calling thread.
    pub(crate) fn apply(self) -> Result<(), Error> {
        if let Some(cpu) = self.cpu {
            pin_current_thread(cpu)?;
        }
        if let Some(priority) = self.rt_priority {
            set_fifo(priority)?;
        }
        Ok(())
    }
}

/// Lets the calling thread run on this CPU alone, for threads of yours that serve the rings.
///
/// # Errors
/// [`Error::Cpu`] when the kernel does not allow that CPU; it names those that it does.
pub fn pin_current_thread(cpu: usize) -> Result<(), Error> {
    // Ask the kernel, not the machine: a container may hold fewer CPUs, with any numbers.
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let id = allowed.iter().find(|c| c.id == cpu);
    let pinned = id.is_some_and(|&id| core_affinity::set_for_current(id))
        && core_affinity::get_core_ids().is_some_and(|now| now.len() == 1 && now[0].id == cpu);
    if pinned { Ok(()) } else { Err(Error::Cpu { cpu, allowed: allowed.iter().map(|c| c.id).collect() }) }
}

#[allow(unsafe_code)]
fn set_fifo(priority: u8) -> Result<(), Error> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: `param` is a whole sched_param that lives across the call; the thread is our own.
    let errno =
        unsafe { libc::pthread_setschedparam(libc::pthread_self(), libc::SCHED_FIFO, &raw const param) };
    if errno == 0 {
        Ok(())
    } else {
        Err(Error::RtPriority { priority, source: Arc::new(std::io::Error::from_raw_os_error(errno)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_to_an_allowed_cpu_and_says_which_are() {
        std::thread::spawn(|| {
            let cpu = core_affinity::get_core_ids().expect("some CPU runs this")[0].id;
            Placement { cpu: Some(cpu), rt_priority: None }.apply().expect("an allowed CPU");
            let error = Placement { cpu: Some(100_000), rt_priority: None }.apply().expect_err("no such CPU");
            assert!(error.to_string().contains(&format!("[{cpu}]")), "{error}");
        })
        .join()
        .expect("the thread ends well");
    }
}
