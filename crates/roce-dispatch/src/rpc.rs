//! The RPC frame: a 24-byte header, then arguments or results. Everything is little-endian.
//!
//! | offset | request | response |
//! | --- | --- | --- |
//! | 0 | u32 magic | u32 magic |
//! | 4 | u32 function id | i32 status |
//! | 8 | u32 argument bytes | u32 result bytes |
//! | 12 | u32 request id | u32 request id, echoed |
//! | 16 | u64 PTP timestamp (0 = unused) | u64 PTP timestamp, echoed |
//! | 24 | arguments | results |
//!
//! Contract: `parse` looks at the header alone and never panics; `payload` checks the length that the header
//! claims; `emit` panics on a buffer shorter than [`HEADER_LEN`], which is a bug of the caller.

#![forbid(unsafe_code)]

use std::fmt;

use zerocopy::little_endian::{I32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of either header.
pub const HEADER_LEN: usize = 24;
/// Words of either header.
pub(crate) const HEADER_WORDS: usize = HEADER_LEN / size_of::<u64>();
/// The first word of a request.
pub const REQUEST_MAGIC: u32 = 0x4355_5152;
/// The first word of a response.
pub const RESPONSE_MAGIC: u32 = 0x4355_5153;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestWire {
    magic: U32,
    function_id: U32,
    arg_len: U32,
    request_id: U32,
    ptp_timestamp: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ResponseWire {
    magic: U32,
    status: I32,
    result_len: U32,
    request_id: U32,
    ptp_timestamp: U64,
}

const _: () = assert!(size_of::<RequestWire>() == HEADER_LEN);
const _: () = assert!(size_of::<ResponseWire>() == HEADER_LEN);

/// Bytes that are no frame of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not even a header.
    #[error("{len} bytes hold no RPC header of {HEADER_LEN}")]
    Short {
        /// Bytes at hand.
        len: usize,
    },
    /// Another kind of message, or none.
    #[error("magic {found:#010x} where {expected:#010x} was expected")]
    Magic {
        /// The magic of this kind of frame.
        expected: u32,
        /// What the bytes begin with.
        found: u32,
    },
    /// The header claims more payload than there is.
    #[error("the header claims {claimed} payload bytes, {available} are there")]
    Length {
        /// Payload bytes by the header.
        claimed: u32,
        /// Payload bytes at hand.
        available: usize,
    },
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// Which function: [`function_id`] of its name.
    pub function_id: u32,
    /// Bytes of arguments that follow the header.
    pub arg_len: u32,
    /// The caller's number for this call; the response carries it back.
    pub request_id: u32,
    /// Opaque here, by convention {seconds: high half, nanoseconds: low half}; the response carries it back.
    pub ptp_timestamp: u64,
}

impl Request {
    /// Reads the header at the start of `frame`.
    ///
    /// # Errors
    /// [`FrameError::Short`], [`FrameError::Magic`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, FrameError> {
        let (wire, _) =
            RequestWire::ref_from_prefix(frame).map_err(|_| FrameError::Short { len: frame.len() })?;
        check_magic(REQUEST_MAGIC, wire.magic)?;
        Ok(Self {
            function_id: wire.function_id.get(),
            arg_len: wire.arg_len.get(),
            request_id: wire.request_id.get(),
            ptp_timestamp: wire.ptp_timestamp.get(),
        })
    }

    /// As [`parse`](Self::parse), from the header's three words.
    #[inline]
    pub(crate) fn from_words(words: [u64; HEADER_WORDS]) -> Option<Self> {
        let [first, second, ptp_timestamp] = words.map(u64::from_le);
        let [(magic, function_id), (arg_len, request_id)] = [first, second].map(halves);
        (magic == REQUEST_MAGIC).then_some(Self { function_id, arg_len, request_id, ptp_timestamp })
    }

    /// Writes the header to the start of `frame`, which has at least [`HEADER_LEN`] bytes.
    #[inline]
    pub fn emit(&self, frame: &mut [u8]) {
        let wire = RequestWire {
            magic: REQUEST_MAGIC.into(),
            function_id: self.function_id.into(),
            arg_len: self.arg_len.into(),
            request_id: self.request_id.into(),
            ptp_timestamp: self.ptp_timestamp.into(),
        };
        frame[..HEADER_LEN].copy_from_slice(wire.as_bytes());
    }

    /// The arguments in `frame`, which begins with this header.
    ///
    /// # Errors
    /// [`FrameError::Length`] when they do not fit the frame.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> Result<&'a [u8], FrameError> {
        payload(frame, self.arg_len)
    }
}

/// The header of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Response {
    /// How the call went.
    pub status: Status,
    /// Bytes of results that follow the header.
    pub result_len: u32,
    /// The request's.
    pub request_id: u32,
    /// The request's.
    pub ptp_timestamp: u64,
}

impl Response {
    /// The first word of a good one, as it lies in memory.
    pub(crate) const SUCCESS: u64 = (RESPONSE_MAGIC as u64).to_le();

    /// Says that there are `result_len` bytes of results, which fit a frame.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // a frame's length has 32 bits
    pub(crate) fn success(request: &Request, result_len: usize) -> Self {
        let Request { request_id, ptp_timestamp, .. } = *request;
        Self { status: Status::SUCCESS, result_len: result_len as u32, request_id, ptp_timestamp }
    }

    /// Reads the header at the start of `frame`.
    ///
    /// # Errors
    /// [`FrameError::Short`], [`FrameError::Magic`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, FrameError> {
        let (wire, _) =
            ResponseWire::ref_from_prefix(frame).map_err(|_| FrameError::Short { len: frame.len() })?;
        check_magic(RESPONSE_MAGIC, wire.magic)?;
        Ok(Self {
            status: Status::from_code(wire.status.get()),
            result_len: wire.result_len.get(),
            request_id: wire.request_id.get(),
            ptp_timestamp: wire.ptp_timestamp.get(),
        })
    }

    /// As [`emit`](Self::emit), as the header's three words.
    #[inline]
    pub(crate) fn to_words(self) -> [u64; HEADER_WORDS] {
        let status = self.status.code().cast_unsigned();
        let second = joined(self.result_len, self.request_id);
        [joined(RESPONSE_MAGIC, status), second, self.ptp_timestamp].map(u64::to_le)
    }

    /// Writes the header to the start of `frame`, which has at least [`HEADER_LEN`] bytes.
    #[inline]
    pub fn emit(&self, frame: &mut [u8]) {
        let wire = ResponseWire {
            magic: RESPONSE_MAGIC.into(),
            status: self.status.code().into(),
            result_len: self.result_len.into(),
            request_id: self.request_id.into(),
            ptp_timestamp: self.ptp_timestamp.into(),
        };
        frame[..HEADER_LEN].copy_from_slice(wire.as_bytes());
    }

    /// The results in `frame`, which begins with this header.
    ///
    /// # Errors
    /// [`FrameError::Length`] when they do not fit the frame.
    #[inline]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> Result<&'a [u8], FrameError> {
        payload(frame, self.result_len)
    }
}

/// The first half of a header's word, as that lies in memory.
#[inline]
pub(crate) fn first_half(word: u64) -> u32 {
    halves(u64::from_le(word)).0
}

/// Low and high.
#[inline]
#[allow(clippy::cast_possible_truncation)] // a half
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[inline]
fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline]
fn check_magic(expected: u32, found: U32) -> Result<(), FrameError> {
    if found == expected { Ok(()) } else { Err(FrameError::Magic { expected, found: found.get() }) }
}

#[inline]
fn payload(frame: &[u8], claimed: u32) -> Result<&[u8], FrameError> {
    let rest = frame.get(HEADER_LEN..).unwrap_or_default();
    usize::try_from(claimed)
        .ok()
        .and_then(|len| rest.get(..len))
        .ok_or(FrameError::Length { claimed, available: rest.len() })
}

/// How a call went: 0 = success, positive = the handler's own code, negative = the call never got as far as
/// a handler's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(i32);

impl Status {
    /// The results are there.
    pub const SUCCESS: Self = Self(0);
    /// No handler has the request's function id.
    pub const UNKNOWN_FUNCTION: Self = Self(-1);
    /// The arguments reach past the slot, or are not as long as the function's schema says.
    pub const BAD_LENGTH: Self = Self(-2);
    /// The handler panicked.
    pub const HANDLER_PANICKED: Self = Self(-3);
    /// The handler's results do not fit a response frame.
    pub const RESULT_TOO_LARGE: Self = Self(-4);
    /// A raw handler returned and left no response header.
    pub const NO_RESPONSE: Self = Self(-5);

    /// From the wire; every number is a status.
    pub const fn from_code(code: i32) -> Self {
        Self(code)
    }

    /// For the wire.
    pub const fn code(self) -> i32 {
        self.0
    }

    /// Whether the results are there.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// The handler's own code, where it is one.
    pub const fn handler_error(self) -> Option<HandlerError> {
        HandlerError::new(self.0)
    }

    /// Whether the call never got as far as a handler's answer.
    pub const fn is_protocol_error(self) -> bool {
        self.0 < 0
    }
}

impl From<HandlerError> for Status {
    fn from(error: HandlerError) -> Self {
        Self(error.code())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SUCCESS => f.write_str("success"),
            Self::UNKNOWN_FUNCTION => f.write_str("unknown function"),
            Self::BAD_LENGTH => f.write_str("bad argument length"),
            Self::HANDLER_PANICKED => f.write_str("handler panicked"),
            Self::RESULT_TOO_LARGE => f.write_str("result too large"),
            Self::NO_RESPONSE => f.write_str("handler left no response"),
            Self(code) if code > 0 => write!(f, "handler error {code}"),
            Self(code) => write!(f, "protocol error {code}"),
        }
    }
}

/// A handler's own error: a positive code, which becomes the response's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("handler error {0}")]
pub struct HandlerError(i32);

impl HandlerError {
    /// `None` for a code that is not positive: 0 is success, and negative ones are the protocol's.
    pub const fn new(code: i32) -> Option<Self> {
        if code > 0 { Some(Self(code)) } else { None }
    }

    /// The code, above 0.
    pub const fn code(self) -> i32 {
        self.0
    }
}

/// The function id of a handler's name: 32-bit FNV-1a over its bytes.
pub const fn function_id(name: &str) -> u32 {
    const OFFSET_BASIS: u32 = 2_166_136_261;
    const PRIME: u32 = 16_777_619;
    let bytes = name.as_bytes();
    let mut hash = OFFSET_BASIS;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(PRIME);
        i += 1;
    }
    hash
}

/// Bytes that `bits` packed bits take.
pub const fn packed_len(bits: usize) -> usize {
    bits.div_ceil(8)
}

/// Packed bits that do not match their buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BitsError {
    /// Too few bytes for that many bits.
    #[error("{bits} packed bits take {} bytes, {len} are there", packed_len(*bits))]
    Short {
        /// Bits wanted.
        bits: usize,
        /// Bytes at hand.
        len: usize,
    },
    /// A bit past the last one is set: the two sides disagree on how many there are.
    #[error("spare bits after bit {bits} are set")]
    SpareBits {
        /// Bits wanted.
        bits: usize,
    },
}

/// Packs `bits` into the start of `out`, the least significant bit first, spare bits zero, and says how many
/// bytes that took.
///
/// # Errors
/// [`BitsError::Short`] when `out` has fewer than [`packed_len`] bytes.
pub fn pack_bits(bits: &[bool], out: &mut [u8]) -> Result<usize, BitsError> {
    let short = BitsError::Short { bits: bits.len(), len: out.len() };
    let packed = out.get_mut(..packed_len(bits.len())).ok_or(short)?;
    for (byte, chunk) in packed.iter_mut().zip(bits.chunks(8)) {
        *byte = chunk.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
    }
    Ok(packed.len())
}

/// Unpacks the first `bits.len()` bits of `packed`, the least significant bit first.
///
/// # Errors
/// [`BitsError::Short`] when `packed` has fewer than [`packed_len`] bytes, [`BitsError::SpareBits`] when a
/// spare bit of the last byte is set.
pub fn unpack_bits(packed: &[u8], bits: &mut [bool]) -> Result<(), BitsError> {
    let short = BitsError::Short { bits: bits.len(), len: packed.len() };
    let packed = packed.get(..packed_len(bits.len())).ok_or(short)?;
    for (&byte, chunk) in packed.iter().zip(bits.chunks_mut(8)) {
        for (i, bit) in chunk.iter_mut().enumerate() {
            *bit = byte >> i & 1 != 0;
        }
    }
    let spare = match (packed.last(), bits.len() % 8) {
        (Some(last), used @ 1..) => last >> used,
        _ => 0,
    };
    if spare == 0 { Ok(()) } else { Err(BitsError::SpareBits { bits: bits.len() }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_by_the_word_is_the_header_by_the_byte(
            magic in prop_oneof![Just(REQUEST_MAGIC), any::<u32>()],
            rest in any::<[u8; HEADER_LEN - 4]>(),
            (status, result_len, request_id, ptp_timestamp) in any::<(i32, u32, u32, u64)>(),
        ) {
            let mut bytes = [0; HEADER_LEN];
            bytes[..4].copy_from_slice(&magic.to_le_bytes());
            bytes[4..].copy_from_slice(&rest);
            let words: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
            let words = words.try_into().expect("three words");
            prop_assert_eq!(Request::from_words(words), Request::parse(&bytes).ok());

            let status = Status::from_code(status);
            let response = Response { status, result_len, request_id, ptp_timestamp };
            response.emit(&mut bytes);
            prop_assert_eq!(response.to_words().map(u64::to_ne_bytes).concat(), bytes);
        }
    }

    #[test]
    fn known_function_ids() {
        for (name, id) in [
            ("", 0x811c_9dc5),
            ("rpc_increment", 0x191b_6322),
            ("addThem", 0x5a6c_901e),
            ("noop", 0xa6ab_766d),
            ("accumulate", 0x585e_0593),
            ("sum", 0xdd4e_3aa8),
        ] {
            assert_eq!(function_id(name), id, "{name:?}");
        }
    }

    #[test]
    fn function_id_takes_bytes_as_unsigned() {
        // "é" is C3 A9: both bytes above 0x7F. Worked out by hand from the definition.
        let by_hand =
            [0xC3_u32, 0xA9].iter().fold(2_166_136_261_u32, |h, b| (h ^ b).wrapping_mul(16_777_619));
        assert_eq!(function_id("é"), by_hand);
    }

    #[test]
    fn request_bytes() {
        let request = Request {
            function_id: 0x191b_6322,
            arg_len: 4,
            request_id: 7,
            ptp_timestamp: 0x0102_0304_0506_0708,
        };
        let mut frame = [0xFF; 28];
        request.emit(&mut frame);
        let expected = [
            0x52, 0x51, 0x55, 0x43, 0x22, 0x63, 0x1b, 0x19, 4, 0, 0, 0, 7, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1,
            0xFF, 0xFF, 0xFF, 0xFF,
        ];
        assert_eq!(frame, expected);
        assert_eq!(Request::parse(&frame), Ok(request));
        assert_eq!(request.payload(&frame), Ok(&[0xFF; 4][..]));
    }

    #[test]
    fn response_bytes() {
        let response =
            Response { status: Status::BAD_LENGTH, result_len: 0, request_id: 0xAABB_CCDD, ptp_timestamp: 1 };
        let mut frame = [0; HEADER_LEN];
        response.emit(&mut frame);
        let expected = [
            0x53, 0x51, 0x55, 0x43, 0xFE, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xDD, 0xCC, 0xBB, 0xAA, 1, 0, 0, 0,
            0, 0, 0, 0,
        ];
        assert_eq!(frame, expected);
        assert_eq!(Response::parse(&frame), Ok(response));
    }

    #[test]
    fn a_response_is_no_request() {
        let mut frame = [0; HEADER_LEN];
        Response::default().emit(&mut frame);
        assert_eq!(
            Request::parse(&frame),
            Err(FrameError::Magic { expected: REQUEST_MAGIC, found: RESPONSE_MAGIC })
        );
        assert_eq!(Response::parse(&frame[..23]), Err(FrameError::Short { len: 23 }));
    }

    #[test]
    fn payload_stays_inside_the_frame() {
        let request = Request { arg_len: 5, ..Request::default() };
        assert_eq!(request.payload(&[0; 28]), Err(FrameError::Length { claimed: 5, available: 4 }));
        assert_eq!(request.payload(&[0; 29]).map(<[u8]>::len), Ok(5));
        let huge = Request { arg_len: u32::MAX, ..Request::default() };
        assert_eq!(huge.payload(&[0; 10]), Err(FrameError::Length { claimed: u32::MAX, available: 0 }));
    }

    #[test]
    fn status_classes() {
        assert!(Status::SUCCESS.is_success());
        assert_eq!(Status::from_code(9).handler_error().map(HandlerError::code), Some(9));
        assert_eq!(Status::UNKNOWN_FUNCTION.handler_error(), None);
        assert!(Status::from_code(-77).is_protocol_error());
        assert_eq!(HandlerError::new(0), None);
        assert_eq!(HandlerError::new(-1), None);
        assert_eq!(Status::from_code(-77).to_string(), "protocol error -77");
    }

    #[test]
    fn bits_go_least_significant_first() {
        let bits = [true, false, false, false, false, false, false, true, false, true];
        let mut out = [0xFF; 3];
        assert_eq!(pack_bits(&bits, &mut out), Ok(2));
        assert_eq!(out, [0b1000_0001, 0b10, 0xFF]);
        let mut back = [false; 10];
        assert_eq!(unpack_bits(&out, &mut back), Ok(()));
        assert_eq!(back, bits);
        assert_eq!(unpack_bits(&[0, 0b100], &mut back), Err(BitsError::SpareBits { bits: 10 }));
        assert_eq!(unpack_bits(&[0], &mut back), Err(BitsError::Short { bits: 10, len: 1 }));
        assert_eq!(pack_bits(&bits, &mut [0]), Err(BitsError::Short { bits: 10, len: 1 }));
        assert_eq!(unpack_bits(&[], &mut []), Ok(()));
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(
            function_id: u32, arg_len: u32, request_id: u32, ptp_timestamp: u64, tail in 0..40_usize,
        ) {
            let request = Request { function_id, arg_len, request_id, ptp_timestamp };
            let mut frame = vec![0xA5; HEADER_LEN + tail];
            request.emit(&mut frame);
            prop_assert_eq!(Request::parse(&frame), Ok(request));
            prop_assert_eq!(request.payload(&frame).is_ok(), arg_len as usize <= tail);
        }

        #[test]
        fn responses_survive_the_wire(code: i32, result_len: u32, request_id: u32, ptp_timestamp: u64) {
            let status = Status::from_code(code);
            let response = Response { status, result_len, request_id, ptp_timestamp };
            let mut frame = [0; HEADER_LEN];
            response.emit(&mut frame);
            prop_assert_eq!(Response::parse(&frame), Ok(response));
        }

        #[test]
        fn any_bytes_parse_or_say_why(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            match Request::parse(&bytes) {
                Ok(request) => {
                    let mut again = [0; HEADER_LEN];
                    request.emit(&mut again);
                    prop_assert_eq!(&again[..], &bytes[..HEADER_LEN]);
                }
                Err(FrameError::Short { len }) => prop_assert!(len == bytes.len() && len < HEADER_LEN),
                Err(FrameError::Magic { found, .. }) => prop_assert_ne!(found, REQUEST_MAGIC),
                Err(FrameError::Length { .. }) => prop_assert!(false, "parse looks at no payload"),
            }
        }

        #[test]
        fn bits_survive_packing(bits in prop::collection::vec(any::<bool>(), 0..200)) {
            let mut packed = vec![0xFF; packed_len(bits.len())];
            prop_assert_eq!(pack_bits(&bits, &mut packed), Ok(packed.len()));
            let mut back = vec![false; bits.len()];
            prop_assert_eq!(unpack_bits(&packed, &mut back), Ok(()));
            prop_assert_eq!(back, bits);
        }
    }
}
