//! How many slots, and how large.

/// A shape that no ring can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Slots are found by masking, so their number is a power of two.
    #[error("a ring of {0} pages cannot be: the number of pages must be a power of two (1, 2, 4, ...)")]
    NumPages(u32),
    /// A frame lives in one page.
    #[error("a frame of {frame_size} bytes does not fit a page of {page_size} bytes (0 < frame <= page)")]
    FrameSize {
        /// Bytes on the wire per message.
        frame_size: u32,
        /// Bytes from slot to slot.
        page_size: u32,
    },
}

/// The shape of a ring, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    num_pages: u32,
    page_size: u32,
    frame_size: u32,
}

// A flag is an address in 64 bits, and the largest ring (2^31 pages of 2^32 - 1 bytes) must fit an isize.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

impl Geometry {
    /// `num_pages` slots (a power of two, 1 included) of `page_size` bytes, of which `frame_size` go on the wire
    /// (0 < `frame_size` <= `page_size`).
    pub const fn new(num_pages: u32, page_size: u32, frame_size: u32) -> Result<Self, GeometryError> {
        if !num_pages.is_power_of_two() {
            return Err(GeometryError::NumPages(num_pages));
        }
        if frame_size == 0 || frame_size > page_size {
            return Err(GeometryError::FrameSize { frame_size, page_size });
        }
        Ok(Self { num_pages, page_size, frame_size })
    }

    /// Slots: a power of two.
    pub const fn num_pages(self) -> u32 {
        self.num_pages
    }

    /// Bytes from slot to slot.
    pub const fn page_size(self) -> u32 {
        self.page_size
    }

    /// Bytes on the wire per message.
    pub const fn frame_size(self) -> u32 {
        self.frame_size
    }

    /// Bytes of all slots.
    pub const fn data_len(self) -> usize {
        self.num_pages as usize * self.page_size as usize
    }

    /// Bytes from the start of the data to `slot`, which the caller keeps below [`num_pages`](Self::num_pages).
    pub const fn slot_offset(self, slot: u32) -> u64 {
        slot as u64 * self.page_size as u64
    }

    /// The slot that lies `distance` behind `slot` in ring order.
    pub(crate) const fn slot_after(self, slot: u32, distance: u32) -> u32 {
        slot.wrapping_add(distance) & (self.num_pages - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_be() {
        for pages in [0, 3, 48, u32::MAX] {
            assert_eq!(Geometry::new(pages, 384, 256), Err(GeometryError::NumPages(pages)));
        }
        for (page_size, frame_size) in [(384, 0), (384, 385), (0, 0), (0, 1)] {
            let refused = GeometryError::FrameSize { frame_size, page_size };
            assert_eq!(Geometry::new(64, page_size, frame_size), Err(refused));
        }
        let text = GeometryError::NumPages(48).to_string();
        assert!(text.contains("48") && text.contains("power of two"), "{text}");
    }

    #[test]
    fn offsets_follow_the_stride() {
        let geometry = Geometry::new(64, 384, 256).unwrap();
        assert_eq!(geometry.data_len(), 64 * 384);
        assert_eq!(geometry.slot_offset(63), 63 * 384);
        assert_eq!(geometry.slot_after(63, 2), 1);

        let largest = Geometry::new(1 << 31, u32::MAX, 1).unwrap();
        assert!(isize::try_from(largest.data_len()).is_ok());
        assert_eq!(largest.slot_offset((1 << 31) - 1), ((1 << 31) - 1) * u64::from(u32::MAX));

        let single = Geometry::new(1, 1, 1).unwrap();
        assert_eq!(single.slot_after(0, 1), 0);
    }
}
