//! Values as they stand in a frame: little-endian, one behind the other, without padding.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::rpc::{pack_bits, packed_len};
use crate::schema::{HandlerSchema, PayloadType, TypeDesc};

use super::CallError;

// Values are sent as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "the frames are little-endian");

/// A number that arguments and results are made of: `u8`, `i32`, `i64`, `f32` or `f64`.
pub trait Scalar: sealed::Number {
    /// The type of one.
    const TYPE: PayloadType;
    /// The type of several. Several `i64` have none: no schema allows them.
    const ARRAY: Option<PayloadType>;
}

/// Something that can be an argument: a [`Scalar`], an array or slice of them, or [`Bits`].
pub trait Payload: sealed::Sealed {
    /// The type that a schema has for it.
    fn payload_type(&self) -> PayloadType;

    /// Numbers or bits.
    fn elements(&self) -> usize;

    /// Bytes in a frame.
    fn byte_len(&self) -> usize;

    /// Hands the bytes over in pieces, each with its offset.
    fn emit(&self, put: &mut dyn FnMut(usize, &[u8]));
}

/// Bits as a [`Payload`]: packed, the least significant bit first, spare bits zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits<'a>(pub &'a [bool]);

mod sealed {
    use super::{Bits, FromBytes, Immutable, IntoBytes};

    pub trait Number: FromBytes + IntoBytes + Immutable + Copy + Default + 'static {}
    pub trait Sealed {}

    impl<T: Number> Sealed for T {}
    impl<T: Number> Sealed for [T] {}
    impl<T: Number, const N: usize> Sealed for [T; N] {}
    impl Sealed for Bits<'_> {}
}

macro_rules! scalars {
    ($($number:ty: $one:ident, $several:expr;)*) => {$(
        impl sealed::Number for $number {}

        impl Scalar for $number {
            const TYPE: PayloadType = PayloadType::$one;
            const ARRAY: Option<PayloadType> = $several;
        }
    )*};
}

scalars! {
    u8: Uint8, Some(PayloadType::ArrayUint8);
    i32: Int32, Some(PayloadType::ArrayInt32);
    i64: Int64, None;
    f32: Float32, Some(PayloadType::ArrayFloat32);
    f64: Float64, Some(PayloadType::ArrayFloat64);
}

/// The type of several; a name for the error where there is none.
pub(super) fn array_type<T: Scalar>() -> PayloadType {
    T::ARRAY.unwrap_or(T::TYPE)
}

impl<T: Scalar> Payload for T {
    fn payload_type(&self) -> PayloadType {
        T::TYPE
    }

    fn elements(&self) -> usize {
        1
    }

    fn byte_len(&self) -> usize {
        size_of::<T>()
    }

    fn emit(&self, put: &mut dyn FnMut(usize, &[u8])) {
        put(0, self.as_bytes());
    }
}

impl<T: Scalar> Payload for [T] {
    fn payload_type(&self) -> PayloadType {
        array_type::<T>()
    }

    fn elements(&self) -> usize {
        self.len()
    }

    fn byte_len(&self) -> usize {
        size_of_val(self)
    }

    fn emit(&self, put: &mut dyn FnMut(usize, &[u8])) {
        put(0, self.as_bytes());
    }
}

impl<T: Scalar, const N: usize> Payload for [T; N] {
    fn payload_type(&self) -> PayloadType {
        self.as_slice().payload_type()
    }

    fn elements(&self) -> usize {
        N
    }

    fn byte_len(&self) -> usize {
        self.as_slice().byte_len()
    }

    fn emit(&self, put: &mut dyn FnMut(usize, &[u8])) {
        self.as_slice().emit(put);
    }
}

impl Payload for Bits<'_> {
    fn payload_type(&self) -> PayloadType {
        PayloadType::BitPacked
    }

    fn elements(&self) -> usize {
        self.0.len()
    }

    fn byte_len(&self) -> usize {
        packed_len(self.0.len())
    }

    fn emit(&self, put: &mut dyn FnMut(usize, &[u8])) {
        let mut packed = [0; 64];
        for (at, bits) in (0..).step_by(packed.len()).zip(self.0.chunks(8 * packed.len())) {
            let len = pack_bits(bits, &mut packed).expect("a chunk fits");
            put(at, &packed[..len]);
        }
    }
}

/// What a schema says of the arguments or the results, if there is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Types<'a> {
    what: &'static str,
    types: Option<&'a [TypeDesc]>,
}

impl<'a> Types<'a> {
    pub(super) fn args(schema: Option<&'a HandlerSchema>) -> Self {
        let types = schema.map(|s| &s.args[..s.args.len().min(s.num_args.into())]);
        Self { what: "argument", types }
    }

    pub(super) fn results(schema: Option<&'a HandlerSchema>) -> Self {
        let types = schema.map(|s| &s.results[..s.results.len().min(s.num_results.into())]);
        Self { what: "result", types }
    }

    /// Whether the value at `index` may be this.
    pub(super) fn check(&self, index: usize, got: PayloadType, elements: usize) -> Result<(), CallError> {
        let Some(types) = self.types else { return Ok(()) };
        let expected = types.get(index).copied();
        let fits = |t: &TypeDesc| t.type_id == got.id() && t.num_elements as usize == elements;
        if expected.as_ref().is_some_and(fits) {
            return Ok(());
        }
        Err(CallError::Type { what: self.what, index, got, elements, expected })
    }

    /// Whether all values together may have this many bytes.
    pub(super) fn check_total(&self, len: usize) -> Result<(), CallError> {
        let Some(types) = self.types else { return Ok(()) };
        let expected = types.iter().map(|t| u64::from(t.size_bytes)).sum();
        if expected == len as u64 {
            Ok(())
        } else {
            Err(CallError::Length { what: self.what, len, expected })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(payload: &(impl Payload + ?Sized)) -> Vec<u8> {
        let mut all = vec![0xEE; payload.byte_len()];
        payload.emit(&mut |at, piece| all[at..at + piece.len()].copy_from_slice(piece));
        all
    }

    #[test]
    fn values_are_little_endian_and_unpadded() {
        assert_eq!(bytes(&7_u8), [7]);
        assert_eq!(bytes(&-2_i32), [0xFE, 0xFF, 0xFF, 0xFF]);
        assert_eq!(bytes(&0x0102_0304_0506_0708_i64), [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes(&1.0_f32), 0x3F80_0000_u32.to_le_bytes());
        assert_eq!(bytes(&[1_i32, 2]), [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes(&[0.5_f64][..]), 0.5_f64.to_le_bytes());
        assert_eq!(bytes(&[0_u8; 0]), [0; 0]);
    }

    #[test]
    fn bits_are_packed_in_any_number() {
        assert_eq!(bytes(&Bits(&[true, false, false, false, false, false, false, false, true])), [1, 1]);
        for n in [0, 511, 512, 513, 2000] {
            let bits: Vec<bool> = (0..n).map(|i| i % 3 == 0).collect();
            let mut expected = vec![0; packed_len(n)];
            pack_bits(&bits, &mut expected).expect("room");
            assert_eq!(bytes(&Bits(&bits)), expected, "{n} bits");
        }
    }

    #[test]
    fn types_are_those_of_schemas() {
        assert_eq!(1_u8.payload_type(), PayloadType::Uint8);
        assert_eq!([1_u8].payload_type(), PayloadType::ArrayUint8);
        assert_eq!([1.0_f64, 2.0].payload_type(), PayloadType::ArrayFloat64);
        assert_eq!(Bits(&[]).payload_type(), PayloadType::BitPacked);
        assert_eq!((Bits(&[true; 9]).elements(), Bits(&[true; 9]).byte_len()), (9, 2));
    }

    #[test]
    fn a_count_from_c_past_the_array_is_harmless() {
        let schema = HandlerSchema { num_args: 255, num_results: 255, ..HandlerSchema::default() };
        assert!(Types::args(Some(&schema)).check(8, PayloadType::Uint8, 1).is_err());
        assert!(Types::results(Some(&schema)).check(4, PayloadType::Uint8, 1).is_err());
    }
}
