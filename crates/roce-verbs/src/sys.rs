//! libibverbs itself: its types, and its functions looked up at run time.
//!
//! rdma-sys gives the types and constants and is imported here alone. None of its functions is used: the library
//! is opened when the first device is, so a program that links this crate also starts where there is no
//! libibverbs. The calls of the message path never were functions of the library; they go through the table of
//! operations that the device's driver fills in.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::mem::{self, offset_of};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

pub(crate) use rdma_sys::{
    _compat_ibv_port_attr, IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_access_flags,
    ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_global_route, ibv_mr,
    ibv_mtu, ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode, ibv_wr_opcode, imm_data_invalidated_rkey_union_t, rdma_t, verbs_context,
};

use crate::error::VerbsError;

/// `IBV_LINK_LAYER_*`, which the header keeps in an enum without a name.
pub(crate) const LINK_LAYER_INFINIBAND: u8 = 1;
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;

/// `struct ibv_async_event`. rdma-sys has a Rust enum for the event type, and a number that is newer than the
/// enum would be undefined behaviour.
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: AsyncElement,
    pub(crate) event_type: c_int,
}

/// What an event is about.
#[repr(C)]
pub(crate) union AsyncElement {
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) port_num: c_int,
}

/// Declares the table of functions and how it is filled.
macro_rules! verbs {
    ($($name:ident @ $version:literal ($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions of libibverbs that this crate calls, each at the version of its declaration here.
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Verbs {
            fn resolve(library: &Library) -> Result<Self, VerbsError> {
                $(let $name = library.symbol(concat!(stringify!($name), "\0"), concat!($version, "\0"))?;)*
                Ok(Self {
                    // SAFETY: the symbol of this name and version has this type in <infiniband/verbs.h>.
                    $($name: unsafe {
                        mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) -> $ret>($name)
                    },)*
                })
            }
        }
    };
}

verbs! {
    ibv_get_device_list @ "IBVERBS_1.1" (*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list @ "IBVERBS_1.1" (*mut *mut ibv_device) -> ();
    ibv_get_device_name @ "IBVERBS_1.1" (*mut ibv_device) -> *const c_char;
    ibv_open_device @ "IBVERBS_1.1" (*mut ibv_device) -> *mut ibv_context;
    ibv_close_device @ "IBVERBS_1.1" (*mut ibv_context) -> c_int;
    ibv_query_device @ "IBVERBS_1.1" (*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port @ "IBVERBS_1.1" (*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
    _ibv_query_gid_table @ "IBVERBS_1.11" (*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_get_async_event @ "IBVERBS_1.1" (*mut ibv_context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event @ "IBVERBS_1.1" (*mut AsyncEvent) -> ();
    ibv_alloc_pd @ "IBVERBS_1.1" (*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd @ "IBVERBS_1.1" (*mut ibv_pd) -> c_int;
    ibv_reg_mr @ "IBVERBS_1.1" (*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova @ "IBVERBS_1.7" (*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    ibv_dereg_mr @ "IBVERBS_1.1" (*mut ibv_mr) -> c_int;
    ibv_create_cq @ "IBVERBS_1.1" (*mut ibv_context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ibv_cq;
    ibv_destroy_cq @ "IBVERBS_1.1" (*mut ibv_cq) -> c_int;
    ibv_create_qp @ "IBVERBS_1.1" (*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp @ "IBVERBS_1.1" (*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp @ "IBVERBS_1.1" (*mut ibv_qp) -> c_int;
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs").finish_non_exhaustive()
    }
}

/// An open shared library. It is never closed: drivers keep pointers into it.
struct Library(NonNull<c_void>);

impl Library {
    fn open(name: &CStr) -> Result<Self, VerbsError> {
        // SAFETY: a C string; libibverbs does nothing at load time but set up its own state.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| VerbsError::Library { reason: dl_error() })
    }

    /// Both names end in a NUL.
    fn symbol(&self, name: &'static str, version: &'static str) -> Result<NonNull<c_void>, VerbsError> {
        // SAFETY: an open handle, and two strings that end in a NUL.
        let at = unsafe { libc::dlvsym(self.0.as_ptr(), name.as_ptr().cast(), version.as_ptr().cast()) };
        NonNull::new(at).ok_or_else(|| VerbsError::Symbol {
            symbol: name.trim_end_matches('\0'),
            version: version.trim_end_matches('\0'),
        })
    }
}

/// What dlopen says of its failure.
fn dl_error() -> String {
    // SAFETY: dlerror has no requirements; its text is this thread's until the next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: a text that is not null is a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn load(name: &CStr) -> Result<Verbs, VerbsError> {
    Verbs::resolve(&Library::open(name)?)
}

/// The functions of libibverbs, looked up at the first call. A failure is tried again the next time, when the
/// library may have been installed.
pub(crate) fn verbs() -> Result<&'static Verbs, VerbsError> {
    static VERBS: OnceLock<Verbs> = OnceLock::new();
    if let Some(verbs) = VERBS.get() {
        return Ok(verbs);
    }
    let loaded = load(c"libibverbs.so.1")?;
    Ok(VERBS.get_or_init(|| loaded))
}

/// What a verb's return value means: 0, an errno, or -1 and `errno`.
pub(crate) fn check(ret: c_int) -> io::Result<()> {
    match ret {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// What a verb's returned pointer means: an object, or null and `errno`.
pub(crate) fn check_ptr<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// A C structure of integers, nullable pointers and unions of those, for which all zero bytes are a value.
pub(crate) trait Zeroed: Sized {
    fn zeroed() -> Self {
        // SAFETY: every implementor below is a C structure of which all zero bytes are a value.
        unsafe { mem::zeroed() }
    }
}

impl Zeroed for ibv_device_attr {}
impl Zeroed for ibv_port_attr {}
impl Zeroed for ibv_gid_entry {}
impl Zeroed for ibv_qp_attr {}
impl Zeroed for ibv_qp_init_attr {}
impl Zeroed for ibv_send_wr {}
impl Zeroed for ibv_wc {}
impl Zeroed for AsyncEvent {}

/// Reads a port's attributes.
///
/// The library's symbol of this name fills the short structure of old programs. The header has an inline function
/// in front of it, which asks the driver for the whole structure; rdma-sys's copy of that never finds the driver
/// on a 64-bit machine (it compares a pointer with 32 ones). This is the inline function once more.
///
/// # Safety
///
/// `context` is an open context of `verbs`' library.
pub(crate) unsafe fn query_port(
    verbs: &Verbs,
    context: NonNull<ibv_context>,
    port: u8,
) -> io::Result<ibv_port_attr> {
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: the caller gives an open context; each callee writes within `attr`, whose size the first is told
    // and whose beginning is the short structure that the second knows.
    let ret = unsafe {
        match driver_query_port(context) {
            Some(query) => query(context.as_ptr(), port, &raw mut attr, size_of::<ibv_port_attr>()),
            None => (verbs.ibv_query_port)(context.as_ptr(), port, (&raw mut attr).cast()),
        }
    };
    check(ret).map(|()| attr)
}

type QueryPort = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int;

/// The driver's function for a whole port structure, where the driver is new enough to have one.
///
/// # Safety
///
/// `context` is an open context.
unsafe fn driver_query_port(context: NonNull<ibv_context>) -> Option<QueryPort> {
    // SAFETY: an open context is a readable `ibv_context`.
    if unsafe { (*context.as_ptr()).abi_compat } != ptr::without_provenance_mut(usize::MAX) {
        return None;
    }
    // SAFETY: that mark says that the context is the last member of a `verbs_context`.
    let extended = unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    // Members are added at the front, so the library's size tells whether it has this one.
    let needed = size_of::<verbs_context>() - offset_of!(verbs_context, query_port);
    // SAFETY: `sz` lies just before the context in every version; `query_port` is read only where the size says
    // that it is there.
    unsafe {
        let extended = extended.as_ptr();
        if (*extended).sz < needed { None } else { (*extended).query_port }
    }
}

/// `ibv_poll_cq`: how many completions were written to `wc`.
///
/// # Safety
///
/// `cq` is alive, and its context with it.
pub(crate) unsafe fn poll_cq(cq: NonNull<ibv_cq>, wc: &mut [ibv_wc]) -> io::Result<usize> {
    let room = c_int::try_from(wc.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller's promise; the driver writes at most `room` entries, which `wc` has.
    let ret = unsafe {
        let Some(poll) = (*(*cq.as_ptr()).context).ops.poll_cq else { return Err(no_operation()) };
        poll(cq.as_ptr(), room, wc.as_mut_ptr())
    };
    usize::try_from(ret).map_err(|_| io::Error::from_raw_os_error(ret.saturating_neg()))
}

/// `ibv_post_send`. The error comes with the first request that was not posted.
///
/// # Safety
///
/// `qp` is alive, and its context with it; `chain` is a list of valid requests, whose inline data is readable and
/// whose other entries lie in registered regions that outlive the queue pair.
pub(crate) unsafe fn post_send(
    qp: NonNull<ibv_qp>,
    chain: NonNull<ibv_send_wr>,
) -> Result<(), (*mut ibv_send_wr, io::Error)> {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller promises a live queue pair with its context, and a valid chain.
    let ret = unsafe {
        let Some(post) = (*(*qp.as_ptr()).context).ops.post_send else {
            return Err((chain.as_ptr(), no_operation()));
        };
        post(qp.as_ptr(), chain.as_ptr(), &raw mut bad)
    };
    check(ret).map_err(|e| (bad, e))
}

/// `ibv_post_recv` of one request.
///
/// # Safety
///
/// As for [`post_send`]; the entries are writable regions.
pub(crate) unsafe fn post_recv(qp: NonNull<ibv_qp>, wr: &mut ibv_recv_wr) -> io::Result<()> {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller promises a live queue pair with its context, and a valid request.
    let ret = unsafe {
        let Some(post) = (*(*qp.as_ptr()).context).ops.post_recv else { return Err(no_operation()) };
        post(qp.as_ptr(), wr, &raw mut bad)
    };
    check(ret)
}

#[cold]
fn no_operation() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSYS)
}

/// The access that a peer's WRITE needs. Never with `IBV_ACCESS_RELAXED_ORDERING`: slots and completions rely on
/// the order of writes.
pub(crate) const REMOTE_WRITE: c_uint =
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;

/// The access of memory that only we send from.
pub(crate) const LOCAL_WRITE: c_uint = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;

const _: () = assert!(
    (REMOTE_WRITE | LOCAL_WRITE) & ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 == 0,
    "writes must stay in order"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_the_packages() {
        let text =
            load(c"libibverbs-of-no-machine.so.1").err().map(|e| e.to_string()).expect("no such library");
        assert!(text.contains("libibverbs-of-no-machine.so.1"), "{text}");
        assert!(text.contains("libibverbs1") && text.contains("ibverbs-providers"), "{text}");
    }

    #[test]
    fn a_library_without_verbs_names_the_symbol() {
        let text = load(c"libc.so.6").err().map(|e| e.to_string()).expect("libc has no verbs");
        assert!(text.contains("ibv_get_device_list@IBVERBS_1.1"), "{text}");
    }

    #[test]
    fn return_values() {
        assert!(check(0).is_ok());
        assert_eq!(check(libc::EINVAL).map_err(|e| e.raw_os_error()), Err(Some(libc::EINVAL)));
        assert_eq!(check(-libc::ENOMEM).map_err(|e| e.raw_os_error()), Err(Some(libc::ENOMEM)));
        assert!(check_ptr(ptr::null_mut::<u8>()).is_err());
    }
}
