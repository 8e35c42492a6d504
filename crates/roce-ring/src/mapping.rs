//! Anonymous pages from the kernel.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::libc::RLIM_INFINITY;
use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};
use nix::sys::resource::{Resource, getrlimit};
use roce_core::DmaRegion;

use crate::RingError;

/// What kind of memory a ring lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryOptions {
    /// Put the data into huge pages of 2 MiB, which spares the TLB. An error where the system has too few.
    pub hugepages: bool,
    /// Lock data and flags into RAM, an error where the limit is too low. [`Ring::lock_memory`](crate::Ring::lock_memory)
    /// does it later, for a caller that can go on without.
    pub lock: bool,
}

const HUGE_PAGE: usize = 2 << 20;

/// Zeroed, page-aligned, touched memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    mapped: NonZeroUsize,
}

// SAFETY: a mapping belongs to the process, not to a thread; all that this type does with it is to give out
// its address and to unmap it once, on drop.
unsafe impl Send for Mapping {}
// SAFETY: as above, no method changes anything through `&self`.
unsafe impl Sync for Mapping {}

// SAFETY: base and len are set once; the pages are readable and writable and stay mapped until drop.
unsafe impl DmaRegion for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Mapping {
    /// `len` bytes, more than 0, for data.
    pub(crate) fn for_data(len: usize, options: MemoryOptions) -> Result<Self, RingError> {
        if options.hugepages { Self::new_huge(len) } else { Self::new(len) }
    }

    /// `len` bytes, more than 0, in pages of the usual size.
    pub(crate) fn new(len: usize) -> Result<Self, RingError> {
        Self::map(len, 1, MapFlags::empty()).map_err(|source| RingError::Map { len, source })
    }

    fn new_huge(len: usize) -> Result<Self, RingError> {
        let flags = MapFlags::MAP_HUGETLB | MapFlags::MAP_HUGE_2MB;
        Self::map(len, HUGE_PAGE, flags).map_err(|source| RingError::HugePages {
            len,
            pages: len.div_ceil(HUGE_PAGE),
            source,
        })
    }

    /// Populated at once: a page fault has no place on the message path.
    fn map(len: usize, granule: usize, kind: MapFlags) -> io::Result<Self> {
        let mapped = len
            .checked_next_multiple_of(granule)
            .and_then(NonZeroUsize::new)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE | kind;
        // SAFETY: the kernel chooses the place, so that no existing mapping is touched.
        let base = unsafe { mmap_anonymous(None, mapped, prot, flags) }?;
        Ok(Self { base: base.cast(), len, mapped })
    }

    /// Keeps the pages in RAM until they are unmapped.
    pub(crate) fn lock(&self) -> Result<(), RingError> {
        let len = self.mapped.get();
        // SAFETY: the range is this mapping, and locking changes no byte of it.
        unsafe { mlock(self.start(), len) }.map_err(|errno| RingError::Lock {
            len,
            limit: memlock_limit(),
            source: errno.into(),
        })
    }

    fn start(&self) -> NonNull<c_void> {
        self.base.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and whoever looks into it borrows this value or holds its Arc.
        // It cannot fail on a range that is mapped as a whole, and nothing could be done if it did.
        let _ = unsafe { munmap(self.start(), self.mapped.get()) };
    }
}

/// The soft limit in bytes, `None` for no limit.
fn memlock_limit() -> Option<u64> {
    let (soft, _hard) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != RLIM_INFINITY).then_some(soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_and_keeps_the_length_asked_for() {
        let mapping = Mapping::new(385).unwrap();
        assert_eq!(mapping.base().as_ptr().addr() % 4096, 0);
        assert_eq!(mapping.len(), 385);
        assert!(!mapping.is_empty());
    }

    #[test]
    fn too_much_is_a_typed_error() {
        let len = isize::MAX as usize;
        let error = Mapping::new(len).unwrap_err();
        assert!(matches!(error, RingError::Map { len: l, .. } if l == len), "{error}");
    }

    #[test]
    fn too_few_huge_pages_are_a_typed_error_that_names_the_sysctl() {
        let error = Mapping::new_huge((1 << 40) + 1).unwrap_err();
        assert!(matches!(error, RingError::HugePages { pages: 524_289, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("vm.nr_hugepages") && text.contains("524289"), "{text}");
    }
}
