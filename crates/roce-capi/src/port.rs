//! The message path from C: one frame of the stack per call, whatever the type of the link.
//!
//! The C functions jump to [`Entries`] that were made for the type of the port behind the handle. Those take the port,
//! if the calling thread is the one that uses it all the time, and drive it. All that is rare is out of line.

use std::ffi::c_int;
use std::fmt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use roce_ffi::{BadHandle, Favourite, report, wall};

use crate::engine::{Failed, Port};
use crate::error::Refusal;
use crate::instance::{Handle, Instance, TRANSCEIVERS};

const RX_POLL: &str = "cpu_roce_rx_poll";
const TX_PUBLISH: &str = "cpu_roce_tx_publish";

/// The message path for one type of port. To be tried with any handle whose place has them, and with that place.
pub(crate) struct Entries {
    rx_poll: unsafe extern "C" fn(Handle, *mut u32, &'static Place) -> c_int,
    tx_publish: unsafe extern "C" fn(Handle, u32, &'static Place) -> c_int,
}

type Place = roce_ffi::Place<Instance, AnyPort, Entries>;

impl roce_ffi::Entries for Entries {
    const NOBODYS: &'static Self = &Self { rx_poll: poll_slowly, tx_publish: publish_slowly };
}

/// A port of any type, with the entries for it.
pub(crate) struct AnyPort {
    port: Box<dyn Port>,
    entries: &'static Entries,
}

impl AnyPort {
    pub(crate) fn new<P: Port + 'static>(port: P) -> Self {
        let entries = const { &Entries { rx_poll: rx_poll_on::<P>, tx_publish: tx_publish_on::<P> } };
        Self { port: Box::new(port), entries }
    }

    pub(crate) fn entries(&self) -> &'static Entries {
        self.entries
    }

    pub(crate) fn get(&mut self) -> &mut dyn Port {
        self.port.as_mut()
    }

    /// The port.
    ///
    /// # Safety
    ///
    /// It is a `P`.
    #[inline]
    unsafe fn typed<P: Port>(&mut self) -> &mut P {
        // SAFETY: what the caller vouches for.
        unsafe { &mut *ptr::from_mut(self.port.as_mut()).cast::<P>() }
    }
}

impl fmt::Debug for AnyPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyPort").finish_non_exhaustive()
    }
}

/// `cpu_roce_rx_poll`.
///
/// # Safety
///
/// `out_slot` is NULL or valid for a write.
#[inline]
pub(crate) unsafe fn rx_poll(handle: Handle, out_slot: *mut u32) -> c_int {
    let place = TRANSCEIVERS.place_of(handle);
    // SAFETY: the caller vouches for `out_slot`; the place and the entries are those of the handle.
    unsafe { (place.entries().rx_poll)(handle, out_slot, place) }
}

/// `cpu_roce_tx_publish`.
#[inline]
pub(crate) fn tx_publish(handle: Handle, slot: u32) -> c_int {
    let place = TRANSCEIVERS.place_of(handle);
    // SAFETY: the place and the entries are those of the handle.
    unsafe { (place.entries().tx_publish)(handle, slot, place) }
}

/// # Safety
///
/// As [`rx_poll`]; `place` is that of the handle, and its entries were those for `P`.
unsafe extern "C" fn rx_poll_on<P: Port>(handle: Handle, out_slot: *mut u32, place: &'static Place) -> c_int {
    wall(RX_POLL, 0, || {
        // SAFETY: the caller vouches for the place.
        let favourite = unsafe { place.favourite(handle) };
        let Some(mut favourite) = favourite.filter(|_| !out_slot.is_null()) else {
            // SAFETY: the caller vouches for `out_slot`.
            return unsafe { poll_slowly(handle, out_slot, place) };
        };
        // SAFETY: the caller vouches for the entries, and this thread has called nothing since.
        let port = unsafe { port_of::<P>(&mut favourite) };
        match port.rx_poll() {
            Ok(Some(slot)) => {
                // SAFETY: not NULL, and the caller vouches for the rest.
                unsafe { out_slot.write(slot) };
                1
            }
            Ok(None) => 0,
            Err(Failed) => {
                let (handle, why) = (port.handle(), port.error());
                drop(favourite);
                refuse(RX_POLL, handle, why.into())
            }
        }
    })
}

/// # Safety
///
/// `place` is that of the handle, and its entries were those for `P`.
unsafe extern "C" fn tx_publish_on<P: Port>(handle: Handle, slot: u32, place: &'static Place) -> c_int {
    wall(TX_PUBLISH, 0, || {
        // SAFETY: the caller vouches for the place.
        let Some(mut favourite) = (unsafe { place.favourite(handle) }) else {
            return publish_slowly(handle, slot, place);
        };
        // SAFETY: the caller vouches for the entries, and this thread has called nothing since.
        let port = unsafe { port_of::<P>(&mut favourite) };
        match port.tx_publish(slot) {
            Ok(()) => 1,
            Err(Failed) => {
                let (handle, why) = (port.handle(), port.error());
                drop(favourite);
                refuse(TX_PUBLISH, handle, why.into())
            }
        }
    })
}

/// # Safety
///
/// The entries at the favourite's place were those for `P`, and this thread has not called `Handles::port` since.
#[inline]
unsafe fn port_of<'a, P: Port>(favourite: &'a mut Favourite<'_, AnyPort>) -> &'a mut P {
    // SAFETY: so they are those of this very port, and `AnyPort::new` put a `P` beside them.
    unsafe { favourite.port().typed() }
}

/// Behind a wall of its own, so that the C function needs no frame for one.
///
/// # Safety
///
/// As [`rx_poll`].
#[cold]
#[inline(never)]
unsafe extern "C" fn poll_slowly(handle: Handle, out_slot: *mut u32, _: &'static Place) -> c_int {
    wall(RX_POLL, 0, || {
        if out_slot.is_null() {
            return refuse(RX_POLL, handle, Refusal::Null("out_slot"));
        }
        let Some(Some(slot)) = drive_slowly(RX_POLL, handle, |port| port.rx_poll()) else { return 0 };
        // SAFETY: not NULL, and the caller vouches for the rest.
        unsafe { out_slot.write(slot) };
        1
    })
}

/// As [`poll_slowly`].
#[cold]
#[inline(never)]
extern "C" fn publish_slowly(handle: Handle, slot: u32, _: &'static Place) -> c_int {
    wall(TX_PUBLISH, 0, || drive_slowly(TX_PUBLISH, handle, |port| port.tx_publish(slot)).map_or(0, |()| 1))
}

/// For a thread that does not use the port all the time, and for the first use, which brings it.
fn drive_slowly<R>(call: &str, handle: Handle, f: impl Fn(&mut dyn Port) -> Result<R, Failed>) -> Option<R> {
    let run = || TRANSCEIVERS.port(handle, |port| f(port.get()));
    let attach = || TRANSCEIVERS.get(handle).map_err(Refusal::from).and_then(|t| t.attach_port(handle));
    let result = match run() {
        Some(result) => result,
        None => match attach() {
            // Between the two another thread may close.
            Ok(()) => run().unwrap_or(Err(Failed)),
            Err(why) => {
                refuse(call, handle, why);
                return None;
            }
        },
    };
    if result.is_err() {
        let error = TRANSCEIVERS.port(handle, |port| port.get().error());
        refuse(call, handle, error.unwrap_or(roce_transport::Error::Closed).into());
    }
    result.ok()
}

/// Reports a refusal of a call that a thread may repeat without end: the same one once. The value to return.
#[cold]
#[inline(never)]
fn refuse(call: &str, handle: Handle, why: Refusal) -> c_int {
    static TOLD: Mutex<Option<BadHandle>> = Mutex::new(None);
    match TRANSCEIVERS.get(handle) {
        Ok(t) => t.tell_once(call, why),
        Err(bad) => {
            let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
            if *told != Some(bad) {
                report(call, bad);
                *told = Some(bad);
            }
        }
    }
    0
}
