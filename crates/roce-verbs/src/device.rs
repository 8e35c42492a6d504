//! Which devices there are.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;

use crate::error::VerbsError;
use crate::sys::{self, Verbs, ibv_context, ibv_device};

/// The names of this machine's RDMA devices; none where the kernel has no RDMA at all.
pub fn device_names() -> Result<Vec<String>, VerbsError> {
    Ok(DeviceList::get(sys::verbs()?)?.names())
}

/// Opens the device of that name.
pub(crate) fn open(verbs: &'static Verbs, name: &str) -> Result<NonNull<ibv_context>, VerbsError> {
    let list = DeviceList::get(verbs)?;
    let Some(device) = list.iter().find(|(known, _)| known == name).map(|(_, device)| device) else {
        return Err(VerbsError::NoSuchDevice { device: name.to_owned(), known: list.names() });
    };
    // SAFETY: the device comes from the list, which lives until the end of this function; an open context keeps
    // the device by itself.
    let context = unsafe { (verbs.ibv_open_device)(device) };
    sys::check_ptr(context).map_err(|source| VerbsError::Open { device: name.to_owned(), source })
}

/// The array that `ibv_get_device_list` gives; `None` where the kernel has no RDMA.
struct DeviceList {
    verbs: &'static Verbs,
    array: Option<NonNull<*mut ibv_device>>,
    len: usize,
}

impl DeviceList {
    fn get(verbs: &'static Verbs) -> Result<Self, VerbsError> {
        let mut len: c_int = 0;
        // SAFETY: `len` is a local variable that may be written.
        let array = unsafe { (verbs.ibv_get_device_list)(&raw mut len) };
        match sys::check_ptr(array) {
            Ok(array) => Ok(Self { verbs, array: Some(array), len: usize::try_from(len).unwrap_or(0) }),
            Err(source) if no_rdma_in_kernel(&source) => Ok(Self { verbs, array: None, len: 0 }),
            Err(source) => Err(VerbsError::DeviceList { source }),
        }
    }

    fn names(&self) -> Vec<String> {
        self.iter().map(|(name, _)| name).collect()
    }

    fn iter(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
        let len = if self.array.is_some() { self.len } else { 0 };
        (0..len).filter_map(move |i| {
            // SAFETY: the array has `len` devices and lives as long as `self`.
            let device = unsafe { *self.array?.as_ptr().add(i) };
            // SAFETY: the device is one of the array, which still lives.
            let name = unsafe { (self.verbs.ibv_get_device_name)(device) };
            // SAFETY: where not null, the name is a C string that lives as long as the device.
            let name = unsafe { CStr::from_ptr(NonNull::new(name.cast_mut())?.as_ptr()) };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let Some(array) = self.array {
            // SAFETY: the array comes from `ibv_get_device_list`, and is freed here alone.
            unsafe { (self.verbs.ibv_free_device_list)(array.as_ptr()) };
        }
    }
}

fn no_rdma_in_kernel(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSYS)
}
