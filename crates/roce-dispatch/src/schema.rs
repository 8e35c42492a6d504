//! What a function takes and gives, and the C layout of a table of such functions.
//!
//! Everything here is plain data in the layout that C programs share with the dispatcher (64-bit,
//! little-endian hosts).

#![forbid(unsafe_code)]

use std::ffi::c_void;
use std::mem::offset_of;

use crate::DispatchError;
use crate::rpc::packed_len;

/// Arguments that a schema describes at most.
pub const MAX_ARGS: usize = 8;
/// Results that a schema describes at most.
pub const MAX_RESULTS: usize = 4;

/// The type of one argument or result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PayloadType {
    /// One unsigned byte.
    Uint8 = 0x10,
    /// One 32-bit signed integer.
    Int32 = 0x11,
    /// One 64-bit signed integer.
    Int64 = 0x12,
    /// One 32-bit float.
    Float32 = 0x13,
    /// One 64-bit float.
    Float64 = 0x14,
    /// Unsigned bytes.
    ArrayUint8 = 0x20,
    /// 32-bit signed integers.
    ArrayInt32 = 0x21,
    /// 32-bit floats.
    ArrayFloat32 = 0x22,
    /// 64-bit floats.
    ArrayFloat64 = 0x23,
    /// Bits, least significant first, spare bits zero.
    BitPacked = 0x30,
}

impl PayloadType {
    const ALL: [Self; 10] = [
        Self::Uint8,
        Self::Int32,
        Self::Int64,
        Self::Float32,
        Self::Float64,
        Self::ArrayUint8,
        Self::ArrayInt32,
        Self::ArrayFloat32,
        Self::ArrayFloat64,
        Self::BitPacked,
    ];

    /// The type of an id, `None` for an id that stands for nothing.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.id() == id)
    }

    /// The id in a descriptor.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Bytes that `elements` of it take (bits for [`BitPacked`](Self::BitPacked)); `None` where that overflows
    /// the descriptor's 32 bits, or for a scalar that is not exactly one.
    fn size_of(self, elements: u32) -> Option<u32> {
        match self {
            Self::Uint8 => (elements == 1).then_some(1),
            Self::Int32 | Self::Float32 => (elements == 1).then_some(4),
            Self::Int64 | Self::Float64 => (elements == 1).then_some(8),
            Self::ArrayUint8 => Some(elements),
            Self::ArrayInt32 | Self::ArrayFloat32 => elements.checked_mul(4),
            Self::ArrayFloat64 => elements.checked_mul(8),
            Self::BitPacked => u32::try_from(packed_len(elements as usize)).ok(),
        }
    }
}

/// One argument or result. C layout, 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct TypeDesc {
    /// A [`PayloadType`]'s id; 0 in an unused place.
    pub type_id: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Bytes in all.
    pub size_bytes: u32,
    /// Elements of an array, bits of packed bits, 1 for a scalar.
    pub num_elements: u32,
}

impl TypeDesc {
    /// `elements` of a type: 1 for a scalar, the length of an array, or the number of packed bits.
    ///
    /// # Errors
    /// [`DispatchError::TypeSize`] for a scalar that is not one, or an array of 4 GiB and more.
    pub fn new(payload: PayloadType, elements: u32) -> Result<Self, DispatchError> {
        let size_bytes = payload.size_of(elements).ok_or(DispatchError::TypeSize { payload, elements })?;
        Ok(Self { type_id: payload.id(), reserved: [0; 3], size_bytes, num_elements: elements })
    }
}

/// What a function takes and gives, concatenated without padding. C layout, 148 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct HandlerSchema {
    /// How many of `args` are used.
    pub num_args: u8,
    /// How many of `results` are used.
    pub num_results: u8,
    /// Zero.
    pub reserved: u16,
    /// The arguments in order.
    pub args: [TypeDesc; MAX_ARGS],
    /// The results in order.
    pub results: [TypeDesc; MAX_RESULTS],
}

impl HandlerSchema {
    /// A function of these arguments and results.
    ///
    /// # Errors
    /// [`DispatchError::SchemaSize`] for more than [`MAX_ARGS`] or [`MAX_RESULTS`].
    pub fn new(args: &[TypeDesc], results: &[TypeDesc]) -> Result<Self, DispatchError> {
        let error = DispatchError::SchemaSize { args: args.len(), results: results.len() };
        let (Ok(num_args), Ok(num_results)) = (u8::try_from(args.len()), u8::try_from(results.len())) else {
            return Err(error);
        };
        let mut schema = Self { num_args, num_results, ..Self::default() };
        schema.args.get_mut(..args.len()).ok_or(error.clone())?.copy_from_slice(args);
        schema.results.get_mut(..results.len()).ok_or(error)?.copy_from_slice(results);
        Ok(schema)
    }

    /// Bytes that the arguments take together.
    pub fn arg_len(&self) -> u64 {
        self.args.iter().take(self.num_args.into()).map(|a| u64::from(a.size_bytes)).sum()
    }

    /// Bytes that the results take together.
    pub fn result_len(&self) -> u64 {
        self.results.iter().take(self.num_results.into()).map(|r| u64::from(r.size_bytes)).sum()
    }
}

/// How a C table wants an entry to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DispatchMode {
    /// By a GPU thread.
    DeviceCall = 0,
    /// As a captured GPU graph.
    GraphLaunch = 1,
    /// By a host thread: the only mode that is served here.
    HostCall = 2,
}

impl DispatchMode {
    /// The number in an entry.
    pub const fn id(self) -> u8 {
        self as u8
    }
}

/// One function of a C table. C layout, 176 bytes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct FunctionEntry {
    /// For HOST_CALL a [`RawHandler`](crate::RawHandler).
    pub handler: *const c_void,
    /// [`function_id`](crate::rpc::function_id) of the handler's name.
    pub function_id: u32,
    /// A [`DispatchMode`]'s number.
    pub dispatch_mode: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// What it takes and gives.
    pub schema: HandlerSchema,
    /// Not used by host calls.
    pub routing_key: u64,
}

/// A C function table.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RawFunctionTable {
    /// `count` entries.
    pub entries: *const FunctionEntry,
    /// How many.
    pub count: u32,
}

const _: () = {
    assert!(size_of::<TypeDesc>() == 12);
    assert!(offset_of!(TypeDesc, size_bytes) == 4);
    assert!(offset_of!(TypeDesc, num_elements) == 8);
    assert!(size_of::<HandlerSchema>() == 148);
    assert!(offset_of!(HandlerSchema, args) == 4);
    assert!(offset_of!(HandlerSchema, results) == 100);
};

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<FunctionEntry>() == 176);
    assert!(offset_of!(FunctionEntry, handler) == 0);
    assert!(offset_of!(FunctionEntry, function_id) == 8);
    assert!(offset_of!(FunctionEntry, dispatch_mode) == 12);
    assert!(offset_of!(FunctionEntry, schema) == 16);
    assert!(offset_of!(FunctionEntry, routing_key) == 168);
    assert!(size_of::<RawFunctionTable>() == 16);
    assert!(offset_of!(RawFunctionTable, count) == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_ids_are_the_known_ones() {
        let ids = [0x10, 0x11, 0x12, 0x13, 0x14, 0x20, 0x21, 0x22, 0x23, 0x30];
        assert_eq!(PayloadType::ALL.map(PayloadType::id), ids);
        for id in 0..=u8::MAX {
            assert_eq!(PayloadType::from_id(id).map(PayloadType::id), ids.contains(&id).then_some(id));
        }
    }

    #[test]
    fn sizes_of_types() {
        let size = |t, n| TypeDesc::new(t, n).map(|d| d.size_bytes).ok();
        assert_eq!(size(PayloadType::Int64, 1), Some(8));
        assert_eq!(size(PayloadType::Int64, 2), None);
        assert_eq!(size(PayloadType::ArrayInt32, 3), Some(12));
        assert_eq!(size(PayloadType::ArrayFloat64, u32::MAX), None);
        assert_eq!(size(PayloadType::BitPacked, 17), Some(3));
        assert_eq!(size(PayloadType::BitPacked, u32::MAX), Some(1 << 29));
        assert_eq!(size(PayloadType::ArrayUint8, 0), Some(0));
    }

    #[test]
    fn schema_sums_its_arguments() {
        let bits = TypeDesc::new(PayloadType::BitPacked, 9).expect("a valid descriptor");
        let int = TypeDesc::new(PayloadType::Int32, 1).expect("a valid descriptor");
        let schema = HandlerSchema::new(&[bits, int], &[int]).expect("a valid schema");
        assert_eq!(schema.arg_len(), 6);
        assert_eq!(schema.results[0], int);
        assert_eq!(
            HandlerSchema::new(&[int; 9], &[]),
            Err(DispatchError::SchemaSize { args: 9, results: 0 })
        );
        assert_eq!(
            HandlerSchema::new(&[], &[int; 5]),
            Err(DispatchError::SchemaSize { args: 0, results: 5 })
        );
        assert!(HandlerSchema::new(&[int; 8], &[int; 4]).is_ok());
    }

    #[test]
    fn a_count_from_c_past_the_array_is_harmless() {
        let schema = HandlerSchema { num_args: 255, ..HandlerSchema::default() };
        assert_eq!(schema.arg_len(), 0);
    }
}
