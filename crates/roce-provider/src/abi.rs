//! The C structs and numbers that programs and providers share (64-bit hosts).

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

use roce_dispatch::schema::RawFunctionTable;

/// The version of [`BridgeInterface`].
pub const VERSION: c_int = 3;

/// Done.
pub const OK: c_int = 0;
/// An argument is wrong.
pub const INVALID_ARG: c_int = 1;
/// It could not be done; standard error says why.
pub const INTERNAL: c_int = 2;
/// Not for this provider: it was made for the other shape.
pub const UNSUPPORTED: c_int = 4;

/// `rx_poll`: there is a request.
pub const READY: c_int = 0;
/// `rx_poll`: there is none.
pub const EMPTY: c_int = 1;

/// [`BridgeInterface::get_transport_context`] for a [`RingDescriptor`].
pub const RING_BUFFER: c_int = 0;
/// [`BridgeInterface::get_transport_context`] for a launch function, which is NULL here.
pub const UNIFIED: c_int = 1;

/// A provider. Looked up, never dereferenced.
pub type Handle = *mut c_void;

/// Both rings. The second four are the host's view of the first four, and the same here.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RingDescriptor {
    /// One flag per RX slot.
    pub rx_flags: *mut u64,
    /// One flag per TX slot.
    pub tx_flags: *mut u64,
    /// The RX slots.
    pub rx_data: *mut u8,
    /// The TX slots.
    pub tx_data: *mut u8,
    /// Bytes from RX slot to RX slot.
    pub rx_stride: usize,
    /// Bytes from TX slot to TX slot.
    pub tx_stride: usize,
    /// As `rx_flags`.
    pub rx_flags_host: *mut u64,
    /// As `tx_flags`.
    pub tx_flags_host: *mut u64,
    /// As `rx_data`.
    pub rx_data_host: *mut u8,
    /// As `tx_data`.
    pub tx_data_host: *mut u8,
}

/// What a dispatcher needs to drive a provider of the unified shape from one thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Dataplane {
    /// For the two functions.
    pub ctx: *mut c_void,
    /// Where the slots are; the flags are not used.
    pub rings: RingDescriptor,
    /// The slot of the next request: [`READY`] or [`EMPTY`].
    pub rx_poll: Option<unsafe extern "C" fn(ctx: *mut c_void, slot: *mut u32) -> c_int>,
    /// Sends a slot.
    pub tx_publish: Option<unsafe extern "C" fn(ctx: *mut c_void, slot: u32) -> c_int>,
}

/// A function of one handle.
pub type OnHandle = unsafe extern "C" fn(handle: Handle) -> c_int;

/// What the library gives. All functions return a status.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(clippy::type_complexity)] // signatures of C
pub struct BridgeInterface {
    /// [`VERSION`].
    pub version: c_int,
    /// Makes a provider from arguments and brings it up to where its end is known.
    pub create: unsafe extern "C" fn(*mut Handle, argc: c_int, argv: *mut *mut c_char) -> c_int,
    /// Disconnects and frees.
    pub destroy: OnHandle,
    /// The shape that the provider was made for.
    pub get_transport_context: unsafe extern "C" fn(Handle, kind: c_int, out: *mut c_void) -> c_int,
    /// Waits for the peer.
    pub connect: OnHandle,
    /// Starts the threads between wire and rings.
    pub launch: OnHandle,
    /// Ends them, and the connection.
    pub disconnect: OnHandle,
    /// Since version 2: the unified shape.
    pub get_cpu_dataplane: unsafe extern "C" fn(Handle, *mut Dataplane) -> c_int,
    /// Since version 2: one line about our end.
    pub get_endpoint_info: unsafe extern "C" fn(Handle, *mut c_char, usize) -> c_int,
    /// Since version 2: the number of slots and their bytes.
    pub get_ring_geometry: unsafe extern "C" fn(Handle, *mut u32, *mut u32) -> c_int,
    /// Since version 3; NULL here: the program's own dispatcher calls the functions.
    pub set_function_table: Option<unsafe extern "C" fn(Handle, *const RawFunctionTable) -> c_int>,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<RingDescriptor>() == 80);
    assert!(offset_of!(RingDescriptor, rx_stride) == 32);
    assert!(offset_of!(RingDescriptor, rx_flags_host) == 48);
    assert!(size_of::<Dataplane>() == 104);
    assert!(offset_of!(Dataplane, rings) == 8);
    assert!(offset_of!(Dataplane, rx_poll) == 88);
    assert!(size_of::<BridgeInterface>() == 88);
    assert!(offset_of!(BridgeInterface, create) == 8);
    assert!(offset_of!(BridgeInterface, get_cpu_dataplane) == 56);
    assert!(offset_of!(BridgeInterface, set_function_table) == 80);
};
