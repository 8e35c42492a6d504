//! The additions, as `roce_wrapper_ext.h` documents them.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::ptr;

use roce_ffi::{text, wall};
use roce_transport::State;

use crate::api::{create_error, done, export, on};
use crate::error::Refusal;
use crate::instance::{Handle, TRANSCEIVERS};

/// `cpu_roce_stats_t`: grows at its end only. All in messages since creation.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arrived whole.
    pub received: u64,
    /// Handed to the link.
    pub sent: u64,
    /// Never arrived, by the gaps in the slots of WRITEs.
    pub lost: u64,
    /// Overwrote one that was not consumed.
    pub overruns: u64,
    /// Named no slot of the ring.
    pub dropped: u64,
    /// Completed with an error.
    pub completion_errors: u64,
    /// Had to wait for room in the send queue.
    pub tx_stalls: u64,
}

const _: () = assert!(size_of::<Counts>() == 7 * size_of::<u64>());

export! {
    /// The text of the last refusal.
    fn cpu_roce_last_error(handle: Handle) -> *const c_char, or c"".as_ptr() => last_error;

    /// The counters, as many as `out_size` has room for.
    fn cpu_roce_get_stats(handle: Handle, out: *mut Counts, out_size: usize) -> c_int, or 0 => get_stats;

    /// An option by name, before set-up.
    fn cpu_roce_set_option(handle: Handle, key: *const c_char, value: *const c_char) -> c_int, or 0
        => set_option;

    /// How far it has come.
    fn cpu_roce_get_state(handle: Handle) -> c_int, or -1 => |call, h| on(call, h, |t| Ok(number(t.state()))).unwrap_or(-1);
}

thread_local! {
    /// What `cpu_roce_last_error` gave this thread last.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn last_error(_: &str, handle: Handle) -> *const c_char {
    let text = if handle.is_null() {
        create_error()
    } else {
        TRANSCEIVERS.get(handle).map_or_else(|bad| bad.to_string(), |t| t.last_error())
    };
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    LAST_ERROR.with_borrow_mut(|kept| {
        *kept = text;
        kept.as_ptr()
    })
}

fn get_stats(call: &str, handle: Handle, out: *mut Counts, out_size: usize) -> c_int {
    done(call, handle, |t| {
        if out.is_null() {
            return Err(Refusal::Null("out"));
        }
        if out_size < size_of::<u64>() {
            return Err(Refusal::argument("out_size", out_size, "sizeof(cpu_roce_stats_t)"));
        }
        let stats = t.stats();
        let counts = Counts {
            received: stats.received,
            sent: stats.sent,
            lost: stats.lost,
            overruns: stats.overruns,
            dropped: stats.dropped,
            completion_errors: stats.completion_errors,
            tx_stalls: stats.tx_stalls,
        };
        let known = out_size.min(size_of::<Counts>());
        let out: *mut u8 = out.cast();
        // SAFETY: not NULL, and the caller of the C function vouches for `out_size` bytes there.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(&counts).cast(), out, known);
            out.add(known).write_bytes(0, out_size - known);
        }
        Ok(())
    })
}

fn set_option(call: &str, handle: Handle, key: *const c_char, value: *const c_char) -> c_int {
    done(call, handle, |t| {
        // SAFETY: the caller of the C function vouches for its strings.
        let (key, value) = unsafe { (text(key, "key")?, text(value, "value")?) };
        let (key, value) = (key.ok_or(Refusal::Null("key"))?, value.ok_or(Refusal::Null("value"))?);
        t.change(|settings| settings.set_option(&key, &value))
    })
}

/// The numbers of the header; never changed.
fn number(state: State) -> c_int {
    match state {
        State::Created => 0,
        State::SetUp => 1,
        State::Connected => 2,
        State::Running => 3,
        State::Failed => 4,
        State::Closed => 5,
    }
}
