//! The known functions, as `roce_wrapper.h` documents them.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use roce_ffi::{report, text, wall, warnings_to_stderr};
use roce_ring::Ring;

use crate::dispatch::{Callback, Dispatch};
use crate::error::Refusal;
use crate::instance::{Handle, Instance, TRANSCEIVERS, Up};
use crate::port;
use crate::settings::{Arguments, Peer, Settings};

/// `cpu_roce_tx_mode_t`, in which C may put any number.
pub type TxModeNumber = c_uint;

/// Exports functions with C names, each behind the wall. What follows the signature is the value of a refusal.
macro_rules! export {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)?, or $refusal:expr => $body:expr;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// Pointers are NULL or valid for what the header says they point to, for the length of the call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            wall(stringify!($name), $refusal, || $body(stringify!($name), $($arg),*))
        }
    )*};
}
pub(crate) use export;

export! {
    /// Keeps the configuration; NULL where it cannot be.
    #[allow(clippy::too_many_arguments)]
    fn cpu_roce_create_transceiver(
        device_name: *const c_char,
        ib_port: c_int,
        tx_ibv_qp: c_uint,
        frame_size: usize,
        page_size: usize,
        num_pages: c_uint,
        peer_ip: *const c_char,
        forward: c_int,
        rx_only: c_int,
        tx_only: c_int,
        unified: c_int,
        tx_mode: TxModeNumber,
        peer_rx_base_addr: u64,
        peer_rx_rkey: u32,
    ) -> Handle, or ptr::null_mut() => |call, device_name, port, peer_qp, frame_size, page_size, num_pages, peer_ip,
        forward, rx_only, tx_only, unified, tx_mode, peer_rx_base, peer_rkey| create(call, || Ok(Arguments {
            // SAFETY: the caller of the C function vouches for the name.
            device: unsafe { text(device_name, "device_name")? },
            // SAFETY: the caller of the C function vouches for the address.
            peer_ip: unsafe { text(peer_ip, "peer_ip")? },
            forward: forward != 0,
            rx_only: rx_only != 0,
            tx_only: tx_only != 0,
            unified: unified != 0,
            port, peer_qp, frame_size, page_size, num_pages, tx_mode, peer_rx_base, peer_rkey,
        }));

    /// Closes, waits for monitors, frees.
    fn cpu_roce_destroy_transceiver(handle: Handle), or () => destroy;

    /// Set-up, and connect to the peer of the creation.
    fn cpu_roce_start(handle: Handle) -> c_int, or 0 => |call, h| done(call, h, |t| t.start());

    /// Opens the device, makes the rings and the queue pair.
    fn cpu_roce_setup(handle: Handle) -> c_int, or 0 => |call, h| done(call, h, |t| t.setup().map(drop));

    /// Adopts the peer.
    fn cpu_roce_connect(handle: Handle, peer_qp: c_uint, peer_ip: *const c_char, peer_rx_rkey: u32) -> c_int, or 0
        => connect;

    /// Ends everything.
    fn cpu_roce_close(handle: Handle), or () => |call, h| {
        on(call, h, |t| {
            t.close(h);
            Ok(())
        });
    };

    /// Runs the threads of the mode, or the callback's loop, until closed.
    fn cpu_roce_blocking_monitor(handle: Handle), or () => |call, h| {
        on(call, h, |t| t.monitor(h));
    };

    /// Unified mode: the next request.
    fn cpu_roce_rx_poll(handle: Handle, out_slot: *mut u32) -> c_int, or 0
        // SAFETY: the caller of the C function vouches for its pointer.
        => |_, h, out| unsafe { port::rx_poll(h, out) };

    /// Unified mode: sends a slot.
    fn cpu_roce_tx_publish(handle: Handle, slot: u32) -> c_int, or 0
        => |_, h, slot| port::tx_publish(h, slot);

    /// The address to send from.
    fn cpu_roce_set_local_ip(handle: Handle, local_ip: *const c_char), or () => set_local_ip;

    /// The queue pair's number.
    fn cpu_roce_get_qp_number(handle: Handle) -> u32, or 0
        => |call, h| get(call, h, |up| up.endpoint.qpn.get()).unwrap_or(0);

    /// The RX ring's key.
    fn cpu_roce_get_rkey(handle: Handle) -> u32, or 0
        => |call, h| get(call, h, |up| up.endpoint.rkey.get()).unwrap_or(0);

    /// The RX ring is addressed by offset.
    fn cpu_roce_get_buffer_addr(handle: Handle) -> u64, or 0
        => |call, h| on(call, h, |_| Ok(0)).unwrap_or(0);

    /// The first byte of the RX slots.
    fn cpu_roce_get_rx_ring_data_addr(handle: Handle) -> *mut c_void, or ptr::null_mut()
        => |call, h| data(call, h, |up| &up.rx);

    /// The first RX flag.
    fn cpu_roce_get_rx_ring_flag_addr(handle: Handle) -> *mut u64, or ptr::null_mut()
        => |call, h| flags(call, h, |up| &up.rx);

    /// The first byte of the TX slots.
    fn cpu_roce_get_tx_ring_data_addr(handle: Handle) -> *mut c_void, or ptr::null_mut()
        => |call, h| data(call, h, |up| &up.tx);

    /// The first TX flag.
    fn cpu_roce_get_tx_ring_flag_addr(handle: Handle) -> *mut u64, or ptr::null_mut()
        => |call, h| flags(call, h, |up| &up.tx);

    /// Bytes from slot to slot.
    fn cpu_roce_get_page_size(handle: Handle) -> usize, or 0
        => |call, h| on(call, h, |t| Ok(t.geometry().page_size() as usize)).unwrap_or(0);

    /// Slots of each ring.
    fn cpu_roce_get_num_pages(handle: Handle) -> c_uint, or 0
        => |call, h| on(call, h, |t| Ok(t.geometry().num_pages())).unwrap_or(0);

    /// The callback of unified mode; NULL takes it back.
    fn cpu_roce_set_unified_dispatch(handle: Handle, function: Option<Dispatch>, ctx: *mut c_void), or ()
        => set_unified_dispatch;
}

thread_local! {
    /// Why this thread's last create was refused.
    static CREATE_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

pub(crate) fn create_error() -> String {
    CREATE_ERROR.with_borrow(String::clone)
}

fn create(call: &str, arguments: impl FnOnce() -> Result<Arguments, Refusal>) -> Handle {
    made(call, || {
        let instance = Instance::by_name(Settings::of_arguments(&arguments()?)?)?;
        TRANSCEIVERS.insert(instance).ok_or(Refusal::TableFull("transceivers"))
    })
}

/// What `make` makes. A refusal is reported, kept for this thread, and NULL.
pub(crate) fn made(call: &str, make: impl FnOnce() -> Result<*mut c_void, Refusal>) -> *mut c_void {
    warnings_to_stderr("cpu_roce");
    make().unwrap_or_else(|why| {
        report(call, &why);
        CREATE_ERROR.set(why.to_string());
        ptr::null_mut()
    })
}

fn destroy(call: &str, handle: Handle) {
    on(call, handle, |t| {
        if t.is_served_here() {
            return Err(Refusal::FromCallback);
        }
        t.close(handle);
        TRANSCEIVERS.remove(handle)?;
        Ok(())
    });
}

fn connect(call: &str, handle: Handle, qp: c_uint, ip: *const c_char, rkey: u32) -> c_int {
    let peer = || {
        // SAFETY: the caller of the C function vouches for the string.
        let ip = unsafe { text(ip, "peer_ip")? };
        Peer::new(qp, &ip.ok_or(Refusal::Null("peer_ip"))?, rkey)
    };
    done(call, handle, |t| t.connect(peer))
}

fn set_local_ip(call: &str, handle: Handle, ip: *const c_char) {
    on(call, handle, |t| {
        // SAFETY: the caller of the C function vouches for the string.
        let ip = unsafe { text(ip, "local_ip")? };
        t.change(|settings| settings.set_local_ip(ip))
    });
}

fn set_unified_dispatch(call: &str, handle: Handle, function: Option<Dispatch>, ctx: *mut c_void) {
    // SAFETY: the header asks the caller of the C function for what `Callback::new` asks.
    let callback = function.map(|function| unsafe { Callback::new(function, ctx) });
    on(call, handle, |t| t.set_callback(callback));
}

/// Runs `f` on the object of a handle. A refusal is reported, kept, and `None`.
pub(crate) fn on<R>(
    call: &str,
    handle: Handle,
    f: impl FnOnce(&Arc<Instance>) -> Result<R, Refusal>,
) -> Option<R> {
    match TRANSCEIVERS.get(handle) {
        Err(bad) => {
            report(call, bad);
            None
        }
        Ok(t) => f(&t).map_err(|why| t.tell(call, &why)).ok(),
    }
}

/// As [`on`], 1 for done and 0 for refused.
pub(crate) fn done(
    call: &str,
    handle: Handle,
    f: impl FnOnce(&Arc<Instance>) -> Result<(), Refusal>,
) -> c_int {
    on(call, handle, f).map_or(0, |()| 1)
}

/// From what there is between set-up and close; before and after that nothing is wrong with asking.
fn get<R>(call: &str, handle: Handle, f: impl FnOnce(&Up) -> R) -> Option<R> {
    on(call, handle, |t| Ok(t.up().map(f))).flatten()
}

fn data(call: &str, handle: Handle, ring: impl FnOnce(&Up) -> &Arc<Ring>) -> *mut c_void {
    get(call, handle, |up| ring(up).data_addr().cast()).unwrap_or(ptr::null_mut())
}

fn flags(call: &str, handle: Handle, ring: impl FnOnce(&Up) -> &Arc<Ring>) -> *mut u64 {
    get(call, handle, |up| ring(up).flag_addr()).unwrap_or(ptr::null_mut())
}
