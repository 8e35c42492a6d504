//! Functions that work in the slots themselves: nothing is copied but what they read and write.

#![forbid(unsafe_code)]

use std::fmt;

use roce_core::{MemoryPart, OutOfBounds};

use crate::rpc::{REQUEST_MAGIC, Status, first_half};

const WORD: usize = size_of::<u64>();

/// A function as the dispatcher calls it.
pub(crate) type InPlaceHandler = Box<dyn FnMut(Arguments<'_>, &mut Results<'_>) -> Result<(), Status> + Send>;

/// Functions by the first word of their requests, so that one look tells that a message is a request and for whom.
///
/// All but a few of very many have a bucket to themselves, for the multiplier is chosen so that they do.
pub(crate) struct InPlaceFunctions {
    multiplier: u64,
    near: Box<[InPlaceFunction; BUCKETS]>,
    /// Those that no multiplier found a bucket for.
    far: Vec<InPlaceFunction>,
}

struct InPlaceFunction {
    /// Of its requests, as it lies in memory; where there is no function, a word of another bucket, so that no message
    /// is for it.
    first_word: u64,
    handler: InPlaceHandler,
}

impl InPlaceFunction {
    /// Holds a bucket.
    fn nobody(bucket: usize) -> Self {
        // Whatever odd number they are multiplied by, the one is in the first bucket, the other in the middle.
        let first_word = if bucket == 0 { 1 << 63 } else { 0 };
        Self { first_word, handler: Box::new(|_, _| Err(Status::UNKNOWN_FUNCTION)) }
    }

    fn is_taken(&self) -> bool {
        first_half(self.first_word) == REQUEST_MAGIC
    }
}

const BUCKETS: usize = 64;
/// Multipliers that are tried; enough for some 25 functions.
const TRIES: u64 = 1000;

impl InPlaceFunctions {
    pub(crate) fn new() -> Self {
        Self { multiplier: nth_multiplier(0), near: empty_buckets(), far: Vec::new() }
    }

    /// Adds a function whose id is not there yet.
    pub(crate) fn insert(&mut self, id: u32, handler: InPlaceHandler) {
        let function = InPlaceFunction { first_word: first_word(id), handler };
        let taken = self.near.iter().filter(|near| near.is_taken());
        let mut words: Vec<u64> = taken.map(|near| near.first_word).collect();
        words.push(function.first_word);
        let Some(multiplier) = (0..TRIES).map(nth_multiplier).find(|&by| are_apart(&words, by)) else {
            self.far.push(function);
            return;
        };
        let functions = std::mem::replace(&mut self.near, empty_buckets());
        self.multiplier = multiplier;
        for function in functions.into_iter().filter(InPlaceFunction::is_taken).chain([function]) {
            let bucket = bucket(function.first_word, multiplier);
            self.near[bucket] = function;
        }
    }

    /// The function of requests that begin so, if it is one of those that are found at once.
    #[inline]
    pub(crate) fn near(&mut self, first_word: u64) -> Option<&mut InPlaceHandler> {
        let near = &mut self.near[bucket(first_word, self.multiplier)];
        (near.first_word == first_word).then_some(&mut near.handler)
    }

    /// The function of that id, wherever it is.
    pub(crate) fn find(&mut self, id: u32) -> Option<&mut InPlaceHandler> {
        let word = first_word(id);
        let mut all = self.near.iter_mut().chain(&mut self.far);
        all.find(|function| function.first_word == word).map(|function| &mut function.handler)
    }
}

fn first_word(id: u32) -> u64 {
    (u64::from(REQUEST_MAGIC) | u64::from(id) << 32).to_le()
}

fn nth_multiplier(n: u64) -> u64 {
    (2 * n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) // odd, and spreads
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // a bucket
fn bucket(first_word: u64, multiplier: u64) -> usize {
    (first_word.wrapping_mul(multiplier) >> (u64::BITS - BUCKETS.ilog2())) as usize
}

fn are_apart(words: &[u64], multiplier: u64) -> bool {
    let mut taken = 0u64; // a bit for each bucket
    words.iter().all(|&word| {
        let bit = 1 << bucket(word, multiplier);
        let is_free = taken & bit == 0;
        taken |= bit;
        is_free
    })
}

fn empty_buckets() -> Box<[InPlaceFunction; BUCKETS]> {
    Box::new(std::array::from_fn(InPlaceFunction::nobody))
}

/// The arguments of a request, where they were received.
///
/// There is no slice of them, for a peer that laps the ring may write them at any time. So read each byte once and
/// check what was read: a second read may give something else. What was overwritten while flags guard the slot is
/// noticed and not answered; see [`RingLoop`](crate::RingLoop).
///
/// Methods panic when they reach past the end, which costs the caller the answer, as any panic of a handler does.
#[derive(Clone, Copy)]
pub struct Arguments<'a>(MemoryPart<'a>);

impl<'a> Arguments<'a> {
    #[inline]
    pub(crate) fn new(bytes: MemoryPart<'a>) -> Self {
        Self(bytes)
    }

    /// Bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The 8 bytes from `8 * at` on as a little-endian integer. Of a last word that is not whole, what is missing
    /// reads 0.
    #[inline]
    pub fn word(self, at: usize) -> u64 {
        match self.0.load_word(at.saturating_mul(WORD) as u64) {
            Ok(word) => u64::from_le(word),
            Err(_) => self.last_word(at),
        }
    }

    /// All of them by the [`word`](Self::word).
    pub fn words(self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        (0..self.len().div_ceil(WORD)).map(move |at| self.word(at))
    }

    /// The `N` bytes at `offset`, for the `from_le_bytes` of a number for instance.
    #[inline]
    pub fn read<const N: usize>(self, offset: usize) -> [u8; N] {
        let mut out = [0; N];
        self.copy_to(offset, &mut out);
        out
    }

    /// Copies the `out.len()` bytes at `offset` out.
    #[inline]
    pub fn copy_to(self, offset: usize, out: &mut [u8]) {
        self.0.load(offset as u64, out).unwrap_or_else(|refused| past_the_end(refused));
    }

    #[cold]
    fn last_word(self, at: usize) -> u64 {
        let (offset, mut out) = (at.saturating_mul(WORD), [0; WORD]);
        let len = self.len().saturating_sub(offset).max(1); // past the end there is not even one
        self.copy_to(offset, &mut out[..len]);
        u64::from_le_bytes(out)
    }
}

impl fmt::Debug for Arguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of arguments", self.len())
    }
}

/// The results of a call, written one behind the other to where they are sent from.
///
/// What is put behind the end of a response frame is counted and goes nowhere: the caller then learns that the result
/// was too large.
pub struct Results<'a> {
    room: MemoryPart<'a>,
    len: usize,
}

impl<'a> Results<'a> {
    #[inline]
    pub(crate) fn new(room: MemoryPart<'a>) -> Self {
        Self { room, len: 0 }
    }

    /// Bytes put so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing has been put yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that a response frame has for results.
    #[inline]
    pub fn room(&self) -> usize {
        self.room.len()
    }

    /// Appends a little-endian integer of 8 bytes.
    #[inline]
    pub fn put_word(&mut self, word: u64) {
        match self.room.store_word(self.len as u64, word.to_le()) {
            Ok(()) => self.len += WORD,
            Err(_) => self.overflow(WORD),
        }
    }

    /// Appends `bytes`.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        match self.room.store(self.len as u64, bytes) {
            Ok(()) => self.len += bytes.len(),
            Err(_) => self.overflow(bytes.len()),
        }
    }

    /// Too many are known by their length, and none of what follows fits.
    #[cold]
    fn overflow(&mut self, len: usize) {
        self.len = self.len.saturating_add(len);
    }
}

impl fmt::Debug for Results<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of results of {}", self.len, self.room())
    }
}

#[cold]
fn past_the_end(OutOfBounds { offset, len, memory_len }: OutOfBounds) -> ! {
    panic!("{len} bytes at offset {offset} of {memory_len} bytes of arguments")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::function_id;

    fn answers(number: u64) -> InPlaceHandler {
        Box::new(move |_, results| {
            results.put_word(number);
            Ok(())
        })
    }

    fn ids() -> impl Iterator<Item = u32> {
        (0..).map(|n| function_id(&format!("f{n}")))
    }

    #[test]
    fn a_few_functions_have_a_bucket_each() {
        let mut functions = InPlaceFunctions::new();
        for (n, id) in (0..24).zip(ids()) {
            assert!(functions.near(first_word(id)).is_none());
            functions.insert(id, answers(n));
        }
        assert!(functions.far.is_empty());
        for id in ids().take(24) {
            assert!(functions.near(first_word(id)).is_some());
        }
        assert!(functions.near(first_word(function_id("nobody"))).is_none());
    }

    #[test]
    fn no_message_is_for_an_empty_bucket() {
        let mut functions = InPlaceFunctions::new();
        for id in ids().take(24) {
            for bit in 0..64 {
                assert!(functions.near(0).is_none() && functions.near(1 << bit).is_none());
            }
            functions.insert(id, answers(1));
        }
    }

    /// An empty bucket's word is no function's, and takes no bucket from one.
    #[test]
    fn a_lone_function_may_have_any_bucket() {
        for id in ids().take(1000) {
            let mut functions = InPlaceFunctions::new();
            functions.insert(id, answers(1));
            assert_eq!(functions.multiplier, nth_multiplier(0));
        }
    }

    #[test]
    fn many_functions_are_all_found() {
        let mut functions = InPlaceFunctions::new();
        for (n, id) in (0..1000).zip(ids()) {
            functions.insert(id, answers(n));
        }
        assert!(!functions.far.is_empty());
        assert!(ids().take(1000).all(|id| functions.find(id).is_some()));
        assert!(functions.find(function_id("nobody")).is_none());
    }
}
