//! The functions of the table.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use roce_ffi::{Handles, report, text, wall, warnings_to_stderr};
use roce_transport::Unified;

use crate::abi::{
    BridgeInterface, Dataplane, EMPTY, Handle, INTERNAL, OK, READY, RING_BUFFER, RingDescriptor, UNIFIED,
    VERSION,
};
use crate::error::Refusal;
use crate::options::Options;
use crate::provider::Provider;

static PROVIDERS: Handles<Provider, Unified> = Handles::new(0xB21D);

static INTERFACE: BridgeInterface = BridgeInterface {
    version: VERSION,
    create,
    destroy,
    get_transport_context,
    connect,
    launch,
    disconnect,
    get_cpu_dataplane,
    get_endpoint_info,
    get_ring_geometry,
    set_function_table: None,
};

/// The table of functions; it lives as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn cudaq_realtime_get_bridge_interface() -> *const BridgeInterface {
    &raw const INTERFACE
}

/// Runs a call behind the wall. A refusal is reported, and becomes its status.
fn answer(call: &str, body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    wall(call, INTERNAL, || match body() {
        Ok(()) => OK,
        Err(why) => {
            report(call, &why);
            why.status()
        }
    })
}

macro_rules! call {
    ($name:literal) => {
        concat!("cudaq-realtime-bridge-cpu-roce: ", $name)
    };
}

fn on(call: &str, handle: Handle, body: impl FnOnce(&Arc<Provider>) -> Result<(), Refusal>) -> c_int {
    answer(call, || body(&PROVIDERS.get(handle)?))
}

/// # Safety
///
/// `out` is NULL or valid for a write; `argv` is NULL or has `argc` strings.
unsafe extern "C" fn create(out: *mut Handle, argc: c_int, argv: *mut *mut c_char) -> c_int {
    answer(call!("create"), || {
        warnings_to_stderr("cudaq-realtime-bridge-cpu-roce");
        if out.is_null() {
            return Err(Refusal::Null("the place for the handle"));
        }
        // SAFETY: not NULL, and the caller vouches for the rest.
        unsafe { out.write(ptr::null_mut()) };
        // SAFETY: the caller vouches for its arguments.
        let arguments = unsafe { arguments(argc, argv)? };
        let provider = Provider::new(&Options::parse(&arguments)?)?;
        let handle = PROVIDERS.insert(provider).ok_or(Refusal::TableFull)?;
        // SAFETY: not NULL, which was checked first, and the caller vouches for the rest.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// # Safety
///
/// `argv` is NULL or has `argc` strings.
unsafe fn arguments(argc: c_int, argv: *mut *mut c_char) -> Result<Vec<String>, Refusal> {
    let argc = usize::try_from(argc).unwrap_or(0);
    if argc > 0 && argv.is_null() {
        return Err(Refusal::Null("argv"));
    }
    (0..argc)
        .map(|i| {
            // SAFETY: the caller vouches for `argc` strings.
            let argument = unsafe { text(*argv.add(i), "argument")? };
            argument.ok_or(Refusal::Null("an argument"))
        })
        .collect()
}

unsafe extern "C" fn destroy(handle: Handle) -> c_int {
    on(call!("destroy"), handle, |provider| {
        shut(provider, handle);
        PROVIDERS.remove(handle)?;
        Ok(())
    })
}

unsafe extern "C" fn disconnect(handle: Handle) -> c_int {
    on(call!("disconnect"), handle, |provider| {
        shut(provider, handle);
        Ok(())
    })
}

fn shut(provider: &Provider, handle: Handle) {
    provider.close();
    drop(PROVIDERS.detach(handle));
}

/// # Safety
///
/// `out` is NULL or valid for a write of what `kind` asks for.
unsafe extern "C" fn get_transport_context(handle: Handle, kind: c_int, out: *mut c_void) -> c_int {
    on(call!("get_transport_context"), handle, |provider| {
        if out.is_null() {
            return Err(Refusal::Null("the place for the context"));
        }
        match (kind, provider.is_unified()) {
            (RING_BUFFER, false) => {
                // SAFETY: not NULL, and the caller vouches for a ring descriptor there.
                unsafe { out.cast::<RingDescriptor>().write(provider.rings()) };
                Ok(())
            }
            (UNIFIED, true) => {
                // SAFETY: not NULL, and the caller vouches for a function pointer there.
                unsafe { out.cast::<*const c_void>().write(ptr::null()) };
                Ok(())
            }
            (RING_BUFFER, true) => Err(Refusal::OtherShape("--unified was given")),
            (UNIFIED, false) => Err(Refusal::OtherShape("--unified was not given")),
            _ => Err(Refusal::Kind(kind)),
        }
    })
}

unsafe extern "C" fn connect(handle: Handle) -> c_int {
    on(call!("connect"), handle, |provider| provider.connect())
}

unsafe extern "C" fn launch(handle: Handle) -> c_int {
    on(call!("launch"), handle, |provider| provider.launch())
}

/// # Safety
///
/// `out` is NULL or valid for a write.
unsafe extern "C" fn get_cpu_dataplane(handle: Handle, out: *mut Dataplane) -> c_int {
    on(call!("get_cpu_dataplane"), handle, |provider| {
        if out.is_null() {
            return Err(Refusal::Null("the place for the dataplane"));
        }
        if !provider.is_unified() {
            return Err(Refusal::OtherShape("--unified was not given"));
        }
        let dataplane = Dataplane {
            ctx: handle,
            rings: provider.rings(),
            rx_poll: Some(rx_poll),
            tx_publish: Some(tx_publish),
        };
        // SAFETY: not NULL, and the caller vouches for the rest.
        unsafe { out.write(dataplane) };
        Ok(())
    })
}

/// # Safety
///
/// `buffer` is NULL or valid for `len` bytes.
unsafe extern "C" fn get_endpoint_info(handle: Handle, buffer: *mut c_char, len: usize) -> c_int {
    on(call!("get_endpoint_info"), handle, |provider| {
        if buffer.is_null() {
            return Err(Refusal::Null("the buffer"));
        }
        let info = provider.info();
        if info.len() >= len {
            return Err(Refusal::ShortBuffer(len));
        }
        // SAFETY: not NULL, and the caller vouches for `len` bytes, which are more than the line has.
        unsafe {
            ptr::copy_nonoverlapping(info.as_ptr().cast(), buffer, info.len());
            buffer.add(info.len()).write(0);
        }
        Ok(())
    })
}

/// # Safety
///
/// Both pointers are NULL or valid for a write.
unsafe extern "C" fn get_ring_geometry(handle: Handle, slots: *mut u32, slot_size: *mut u32) -> c_int {
    on(call!("get_ring_geometry"), handle, |provider| {
        if slots.is_null() || slot_size.is_null() {
            return Err(Refusal::Null("a place for the geometry"));
        }
        let geometry = provider.geometry();
        // SAFETY: not NULL, and the caller vouches for the rest.
        unsafe {
            slots.write(geometry.num_pages());
            slot_size.write(geometry.page_size());
        }
        Ok(())
    })
}

/// # Safety
///
/// `slot` is NULL or valid for a write.
unsafe extern "C" fn rx_poll(ctx: *mut c_void, slot: *mut u32) -> c_int {
    let call = call!("rx_poll");
    wall(call, EMPTY, || {
        if slot.is_null() {
            report(call, Refusal::Null("the place for the slot"));
            return EMPTY;
        }
        match drive(call, ctx, Unified::rx_poll) {
            Some(Some(found)) => {
                // SAFETY: not NULL, and the caller vouches for the rest.
                unsafe { slot.write(found) };
                READY
            }
            _ => EMPTY,
        }
    })
}

unsafe extern "C" fn tx_publish(ctx: *mut c_void, slot: u32) -> c_int {
    let call = call!("tx_publish");
    wall(call, INTERNAL, || drive(call, ctx, |port| port.tx_publish(slot)).map_or(INTERNAL, |()| OK))
}

/// Runs `f` on the port of a provider, which the first call after connect brings. `None`: not connected, closed, or
/// failed, which is reported once.
#[inline]
fn drive<R>(
    call: &str,
    ctx: Handle,
    f: impl Fn(&mut Unified) -> Result<R, roce_transport::Error>,
) -> Option<R> {
    let done = match PROVIDERS.port(ctx, &f) {
        None if attach(ctx) => PROVIDERS.port(ctx, &f),
        done => done,
    };
    done?.map_err(|why| complain(call, ctx, &why)).ok()
}

#[cold]
fn attach(ctx: Handle) -> bool {
    PROVIDERS.get(ctx).is_ok_and(|provider| PROVIDERS.attach(ctx, || Some((provider.take_unified()?, &()))))
}

#[cold]
fn complain(call: &str, ctx: Handle, why: &roce_transport::Error) {
    if let Ok(provider) = PROVIDERS.get(ctx)
        && provider.is_first_complaint(why)
    {
        report(call, why);
    }
}
