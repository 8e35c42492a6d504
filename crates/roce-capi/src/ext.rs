//! The additions, as `roce_wrapper_ext.h` documents them.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::ptr;

use roce_ffi::{report, text, wall};
use roce_transport::{State, frame_metadata};

use crate::api::{create_error, done, export, made, on};
use crate::error::Refusal;
use crate::instance::{Handle, TRANSCEIVERS};
use crate::poller::{self, POLLERS, PollerHandle};

/// `cpu_roce_stats_t`: grows at its end only. All since creation, in messages where nothing else is said.
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
    /// Packets that are missing.
    pub lost_packets: u64,
    /// Frames of which a packet is missing, though the last one came.
    pub torn: u64,
    /// Frames with the metadata of another one.
    pub stale_metadata: u64,
}

const _: () = assert!(size_of::<Counts>() == 10 * size_of::<u64>());

/// `cpu_roce_frame_metadata_t`: grows at its end only.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Bytes of data.
    pub bytes_written: u64,
    /// When the first data came, by the FPGA's clock: seconds.
    pub first_data_seconds: u64,
    /// When this was made: seconds.
    pub created_seconds: u64,
    /// Nanoseconds within the second.
    pub first_data_nanoseconds: u32,
    /// Nanoseconds within the second.
    pub created_nanoseconds: u32,
    /// 1: ended early. 2: ended by its bytes per window alone.
    pub flags: u32,
    /// Of the packet with the immediate.
    pub psn: u32,
    /// Of the data.
    pub crc: u32,
    /// Counts frames in 16 bits.
    pub frame_number: u32,
}

export! {
    /// The text of the last refusal.
    fn cpu_roce_last_error(handle: Handle) -> *const c_char, or c"".as_ptr() => last_error;

    /// The counters, as many as `out_size` has room for.
    fn cpu_roce_get_stats(handle: Handle, out: *mut Counts, out_size: usize) -> c_int, or 0 => get_stats;

    /// What an FPGA tells of the frame in an RX slot, as much as `out_size` has room for.
    fn cpu_roce_get_frame_metadata(handle: Handle, slot: u32, out: *mut Metadata, out_size: usize) -> c_int, or 0
        => get_frame_metadata;

    /// An option by name, before set-up.
    fn cpu_roce_set_option(handle: Handle, key: *const c_char, value: *const c_char) -> c_int, or 0
        => set_option;

    /// How far it has come.
    fn cpu_roce_get_state(handle: Handle) -> c_int, or -1 => |call, h| on(call, h, |t| Ok(number(t.state()))).unwrap_or(-1);

    /// One thread for many transceivers; NULL where it cannot be as wanted.
    fn cpu_roce_create_poller(cpu: c_int, rt_priority: c_int) -> PollerHandle, or ptr::null_mut()
        => |call, cpu, rt_priority| made(call, || poller::start(cpu, rt_priority));

    /// The poller moves the messages from here on.
    fn cpu_roce_add_to_poller(handle: Handle, poller: PollerHandle) -> c_int, or 0
        => |call, h, poller| done(call, h, |t| t.join(&*POLLERS.get(poller)?));

    /// Ends the thread.
    fn cpu_roce_destroy_poller(poller: PollerHandle), or () => |call, poller| {
        if let Err(bad) = POLLERS.remove(poller) {
            report(call, bad);
        }
    };
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
            lost_packets: stats.lost_packets,
            torn: stats.torn,
            stale_metadata: stats.stale_metadata,
        };
        // SAFETY: the caller of the C function vouches for them.
        unsafe { hand_over(&counts, out, out_size) };
        Ok(())
    })
}

fn get_frame_metadata(call: &str, handle: Handle, slot: u32, out: *mut Metadata, out_size: usize) -> c_int {
    done(call, handle, |t| {
        if out.is_null() {
            return Err(Refusal::Null("out"));
        }
        let ring = &t.up().ok_or(Refusal::NotSetUp)?.rx;
        if slot >= ring.geometry().num_pages() {
            return Err(Refusal::argument("slot", slot, "a slot of the RX ring"));
        }
        let told = frame_metadata(ring.slot(slot), ring.geometry())?;
        let metadata = Metadata {
            bytes_written: told.bytes_written,
            first_data_seconds: told.first_data.seconds,
            created_seconds: told.created.seconds,
            first_data_nanoseconds: told.first_data.nanoseconds,
            created_nanoseconds: told.created.nanoseconds,
            flags: told.flags,
            psn: told.psn.get(),
            crc: told.crc,
            frame_number: told.frame_number.into(),
        };
        // SAFETY: the caller of the C function vouches for them.
        unsafe { hand_over(&metadata, out, out_size) };
        Ok(())
    })
}

/// Copies as much of `from` as there is room for, and zeros behind it, for a caller that knows more members.
///
/// # Safety
/// `out` is not NULL and has `out_size` bytes that nobody else uses.
unsafe fn hand_over<T: Copy>(from: &T, out: *mut T, out_size: usize) {
    let known = out_size.min(size_of::<T>());
    let out: *mut u8 = out.cast();
    // SAFETY: at most the bytes of `from` and the `out_size` bytes that there are; the two are not the same memory.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast(), out, known);
        out.add(known).write_bytes(0, out_size - known);
    }
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
