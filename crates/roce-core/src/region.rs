//! Memory that a device writes, and how this process reads and writes it all the same.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// A block of host memory that a queue pair may read and write.
///
/// No `&[u8]` or `&mut [u8]` is ever made over it: the peer may write at any time. Whoever reads it does so
/// through a [`Memory`] or raw pointers, after the flag or completion that hands the bytes over.
///
/// # Safety
///
/// An implementor promises that [`base`](Self::base) and [`len`](Self::len) never change; that until the value is
/// dropped the `len` bytes at `base` stay allocated, and any thread may read and write them through `base`; and
/// that nobody has a reference meanwhile which says that they do not change.
pub unsafe trait DmaRegion: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;

    /// Bytes.
    fn len(&self) -> usize;

    /// Whether the region holds no byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Which of a queue pair's two regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegionId {
    /// The region that receives; the peer writes it by offset, under its rkey.
    Rx,
    /// The region that messages are sent from; no peer can reach it.
    Tx,
}

/// Bytes that were asked for and do not all exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie in the memory of {memory_len} bytes")]
pub struct OutOfBounds {
    /// The first byte asked for.
    pub offset: u64,
    /// Bytes asked for.
    pub len: usize,
    /// Bytes that there are.
    pub memory_len: usize,
}

/// A region with its place at hand, and access to it that needs no unsafe code.
///
/// Copies are made of relaxed atomic accesses, of words where they are aligned and of single bytes at the edges,
/// so a device or another thread may have the same bytes in its hands. Whoever races gets old bytes, new ones or
/// a mix; the order comes from outside, by the flag or the queue that hands the bytes over.
///
/// Each access is atomic. That racing accesses of *different* sizes to the same bytes (a word here, its bytes
/// there, or a device) give such a mix and nothing worse is the hardware's promise and not the language's.
#[derive(Clone)]
pub struct Memory {
    /// Cached, so that an access calls nothing.
    base: NonNull<u8>,
    len: usize,
    region: Arc<dyn DmaRegion>,
}

// SAFETY: the pointer leads into `region`, which is Send and Sync, outlives it here and allows any thread's access.
unsafe impl Send for Memory {}
// SAFETY: as above; shared use makes only atomic accesses.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).finish_non_exhaustive()
    }
}

#[allow(clippy::len_without_is_empty)] // a region knows that
impl Memory {
    /// Keeps the region alive.
    pub fn new(region: Arc<dyn DmaRegion>) -> Self {
        Self { base: region.base(), len: region.len(), region }
    }

    /// What it was made of.
    pub fn region(&self) -> &Arc<dyn DmaRegion> {
        &self.region
    }

    /// The first byte. Accesses through it must be atomic, or ordered by a flag or a completion.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the `len` bytes at `offset` lie in it.
    #[inline]
    pub fn contains(&self, offset: u64, len: usize) -> bool {
        self.all().locate(offset, len).is_ok()
    }

    /// The `len` bytes at `offset`.
    #[inline]
    pub fn part(&self, offset: u64, len: usize) -> Result<MemoryPart<'_>, OutOfBounds> {
        self.all().part(offset, len)
    }

    /// The line of the `len` bytes at `offset`, unchecked.
    ///
    /// # Safety
    ///
    /// The `offset`th byte is on the boundary of a word, it and the `len - 1` behind it lie in the memory, and `len` is not
    /// below the bytes of [`Line::WORDS`].
    #[inline]
    pub unsafe fn line_unchecked(&self, offset: usize, len: usize) -> Line<'_> {
        debug_assert!(len >= Line::WORDS * WORD, "a line of {len} bytes");
        debug_assert!(self.contains(offset as u64, len), "a line outside of the memory");
        // SAFETY: the caller promises that it is inside.
        Line(MemoryPart { first: unsafe { self.base.add(offset) }, len, memory: PhantomData })
    }

    /// Copies the bytes at `offset` out, as many as `out` takes, or none at all.
    #[inline]
    pub fn load(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.all().load(offset, out)
    }

    /// Copies `from` to the bytes at `offset`, all of it or nothing.
    #[inline]
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        self.all().store(offset, from)
    }

    #[inline]
    fn all(&self) -> MemoryPart<'_> {
        MemoryPart { first: self.base, len: self.len, memory: PhantomData }
    }
}

/// Some bytes of a [`Memory`], with the same access; offsets count from the first of them.
#[derive(Debug, Clone, Copy)]
pub struct MemoryPart<'a> {
    first: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a Memory>,
}

// SAFETY: it is a borrowed part of a `Memory`, which is Sync.
unsafe impl Send for MemoryPart<'_> {}
// SAFETY: as above; shared use makes only atomic accesses.
unsafe impl Sync for MemoryPart<'_> {}

#[allow(clippy::len_without_is_empty)] // as for `Memory`
impl MemoryPart<'_> {
    /// The first byte, as [`Memory::as_ptr`].
    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// The first `len` bytes, if there are so many.
    #[inline]
    pub fn first(self, len: usize) -> Option<Self> {
        (len <= self.len).then_some(Self { len, ..self })
    }

    /// The `len` bytes at `offset` of these.
    #[inline]
    pub fn part(self, offset: u64, len: usize) -> Result<Self, OutOfBounds> {
        Ok(Self { first: self.locate(offset, len)?, len, ..self })
    }

    /// The 8 bytes at `offset` as a native integer; in one access where they are aligned.
    #[inline]
    pub fn load_word(self, offset: u64) -> Result<u64, OutOfBounds> {
        let at = self.locate(offset, WORD)?.as_ptr();
        if bytes_to_boundary(at) == 0 {
            // SAFETY: `locate` found the word in the region, and it is aligned.
            return Ok(unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed));
        }
        Ok(self.load_split_word(offset))
    }

    #[cold]
    #[inline(never)]
    fn load_split_word(self, offset: u64) -> u64 {
        let mut bytes = [0; WORD];
        self.load(offset, &mut bytes).expect("located before");
        u64::from_ne_bytes(bytes)
    }

    /// As [`load_word`](Self::load_word), the other way.
    #[inline]
    pub fn store_word(self, offset: u64, word: u64) -> Result<(), OutOfBounds> {
        let at = self.locate(offset, WORD)?.as_ptr();
        if bytes_to_boundary(at) == 0 {
            // SAFETY: `locate` found the word in the region, and it is aligned.
            unsafe { AtomicU64::from_ptr(at.cast()) }.store(word, Ordering::Relaxed);
            return Ok(());
        }
        self.store_split_word(offset, word);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn store_split_word(self, offset: u64, word: u64) {
        self.store(offset, &word.to_ne_bytes()).expect("located before");
    }

    /// As [`Memory::load`].
    #[inline]
    pub fn load(self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.locate(offset, out.len())?.as_ptr();
        let (edge, rest) = out.split_at_mut(bytes_to_boundary(at).min(out.len()));
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let middle = at.wrapping_add(edge.len());
        let behind = middle.wrapping_add(words.len() * WORD);
        // SAFETY: `locate` found all these bytes in the region, and `middle` is the boundary of a word where there
        // are words at all.
        unsafe {
            load_edge(at, edge);
            load_words(middle.cast(), words);
            load_edge(behind, tail);
        }
        Ok(())
    }

    /// As [`Memory::store`].
    #[inline]
    pub fn store(self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.locate(offset, from.len())?.as_ptr();
        let (edge, rest) = from.split_at(bytes_to_boundary(at).min(from.len()));
        let (words, tail) = rest.as_chunks::<WORD>();
        let middle = at.wrapping_add(edge.len());
        let behind = middle.wrapping_add(words.len() * WORD);
        // SAFETY: `locate` found all these bytes in the region, and `middle` is the boundary of a word where there
        // are words at all.
        unsafe {
            store_edge(at, edge);
            store_words(middle.cast(), words);
            store_edge(behind, tail);
        }
        Ok(())
    }

    /// The address of the `len` bytes at `offset`.
    #[inline]
    fn locate(self, offset: u64, len: usize) -> Result<NonNull<u8>, OutOfBounds> {
        match usize::try_from(offset) {
            // SAFETY: the guard keeps the address in the region or just behind it.
            Ok(at) if at <= self.len && len <= self.len - at => Ok(unsafe { self.first.add(at) }),
            _ => Err(OutOfBounds { offset, len, memory_len: self.len }),
        }
    }
}

/// Bytes of a [`Memory`] whose first words, as many as a cache line has, are aligned and there: each access to one of
/// them is one instruction.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a>(MemoryPart<'a>);

impl<'a> Line<'a> {
    /// Words that it has at least.
    pub const WORDS: usize = 8;

    /// The word at `at`, as it lies in memory.
    ///
    /// # Panics
    ///
    /// When `at` is not below [`WORDS`](Self::WORDS).
    #[inline]
    pub fn load(self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Replaces the word at `at`.
    ///
    /// # Panics
    ///
    /// As [`load`](Self::load).
    #[inline]
    pub fn store(self, at: usize, word: u64) {
        self.word(at).store(word, Ordering::Relaxed);
    }

    /// Replaces the first 4 bytes of the word at `at`, and leaves the others.
    ///
    /// # Panics
    ///
    /// As [`load`](Self::load).
    #[inline]
    pub fn store_first_half(self, at: usize, half: u32) {
        let word: *const AtomicU64 = self.word(at);
        // SAFETY: a word is as long as two halves, and aligned for them; whoever made the line promised it.
        unsafe { AtomicU32::from_ptr(word.cast_mut().cast()) }.store(half, Ordering::Relaxed);
    }

    /// The bytes behind the first `words`.
    ///
    /// # Panics
    ///
    /// When there are not so many first words.
    #[inline]
    pub fn rest(self, words: usize) -> MemoryPart<'a> {
        assert!(words <= Self::WORDS, "{words} words of a line");
        let offset = words * WORD;
        // A line is not shorter, as whoever made it promised, so nothing wraps.
        let len = self.0.len.wrapping_sub(offset);
        // SAFETY: whoever made the line promised its bytes.
        MemoryPart { first: unsafe { self.0.first.add(offset) }, len, memory: PhantomData }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < Self::WORDS, "word {at} of a line");
        // SAFETY: whoever made the line promised this many aligned words in the memory, which the borrow keeps.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().cast::<u64>().wrapping_add(at)) }
    }
}

/// Bytes from `at` to the next boundary of a word.
#[inline]
fn bytes_to_boundary(at: *mut u8) -> usize {
    at.addr().wrapping_neg() % WORD
}

/// Most copies have no edge: their caller is to be no longer for it.
///
/// # Safety
///
/// As for [`load_bytes`].
#[inline]
unsafe fn load_edge(at: *mut u8, out: &mut [u8]) {
    if !out.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { load_bytes(at, out) };
    }
}

/// As [`load_edge`], the other way.
///
/// # Safety
///
/// As for [`store_bytes`].
#[inline]
unsafe fn store_edge(at: *mut u8, from: &[u8]) {
    if !from.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { store_bytes(at, from) };
    }
}

/// # Safety
///
/// The bytes at `at`, as many as `out` has, lie in a region that is alive.
#[inline(never)]
unsafe fn load_bytes(at: *mut u8, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise covers byte `i`, which has no alignment to keep.
        *byte = unsafe { AtomicU8::from_ptr(at.wrapping_add(i)) }.load(Ordering::Relaxed);
    }
}

/// # Safety
///
/// The words at `at`, as many as `out` has, are aligned and lie in a region that is alive.
#[inline]
unsafe fn load_words(at: *mut u64, out: &mut [[u8; WORD]]) {
    for (i, word) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise covers word `i`.
        *word = unsafe { AtomicU64::from_ptr(at.wrapping_add(i)) }.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// # Safety
///
/// The bytes at `at`, as many as `from` has, lie in a region that is alive.
#[inline(never)]
unsafe fn store_bytes(at: *mut u8, from: &[u8]) {
    for (i, byte) in from.iter().enumerate() {
        // SAFETY: the caller's promise covers byte `i`, which has no alignment to keep.
        unsafe { AtomicU8::from_ptr(at.wrapping_add(i)) }.store(*byte, Ordering::Relaxed);
    }
}

/// # Safety
///
/// The words at `at`, as many as `from` has, are aligned and lie in a region that is alive.
#[inline]
unsafe fn store_words(at: *mut u64, from: &[[u8; WORD]]) {
    for (i, word) in from.iter().enumerate() {
        let value = u64::from_ne_bytes(*word);
        // SAFETY: the caller's promise covers word `i`.
        unsafe { AtomicU64::from_ptr(at.wrapping_add(i)) }.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use proptest::prelude::*;

    use super::*;

    const LEN: usize = 80;

    struct Block(Box<Aligned>);

    #[repr(align(8))]
    struct Aligned(UnsafeCell<[u8; LEN]>);

    // SAFETY: the box keeps its bytes in place until the value is dropped, and nobody makes references to them.
    unsafe impl DmaRegion for Block {
        fn base(&self) -> NonNull<u8> {
            NonNull::new(self.0.0.get()).expect("a box is not null").cast()
        }
        fn len(&self) -> usize {
            LEN
        }
    }
    // SAFETY: the bytes are reached through `Memory` alone, and so by atomics.
    unsafe impl Send for Block {}
    // SAFETY: shared use makes only the accesses named above.
    unsafe impl Sync for Block {}

    fn memory() -> Memory {
        Memory::new(Arc::new(Block(Box::new(Aligned(UnsafeCell::new([0; LEN]))))))
    }

    fn all_of(memory: &Memory) -> [u8; LEN] {
        let mut all = [0; LEN];
        memory.load(0, &mut all).expect("all of it");
        all
    }

    /// An offset that may lie outside, near or far.
    fn offset() -> impl Strategy<Value = u64> {
        prop_oneof![9 => 0..LEN as u64 + 9, 1 => (0..90u64).prop_map(|n| u64::MAX - n)]
    }

    /// Where `len` bytes at `offset` are, as a slice would have it.
    fn range(offset: u64, len: usize, of: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        (end <= of).then_some(start..end)
    }

    proptest! {
        /// Whatever is stored and loaded, it behaves as a slice does, and touches nothing else.
        #[test]
        fn behaves_as_a_slice(
            steps in prop::collection::vec((offset(), prop::collection::vec(any::<u8>(), 0..LEN + 9)), 1..20)
        ) {
            let (memory, mut model) = (memory(), [0; LEN]);
            for (offset, bytes) in steps {
                let refused = OutOfBounds { offset, len: bytes.len(), memory_len: LEN };
                let range = range(offset, bytes.len(), LEN);
                prop_assert_eq!(memory.contains(offset, bytes.len()), range.is_some());
                let (mut loaded, before) = (bytes.clone(), model);
                let result = memory.load(offset, &mut loaded);
                match range {
                    Some(range) => {
                        prop_assert_eq!(result, Ok(()));
                        prop_assert_eq!(&loaded, &before[range.clone()]);
                        prop_assert_eq!(memory.store(offset, &bytes), Ok(()));
                        model[range].copy_from_slice(&bytes);
                    }
                    None => {
                        prop_assert_eq!(result, Err(refused));
                        prop_assert_eq!(&loaded, &bytes, "nothing is loaded");
                        prop_assert_eq!(memory.store(offset, &bytes), Err(refused));
                        prop_assert_eq!(memory.part(offset, bytes.len()).err(), Some(refused));
                    }
                }
                prop_assert_eq!(all_of(&memory), model);
            }
        }

        /// A part is as good as the whole, within its own bounds.
        #[test]
        fn a_part_ends_where_it_should(
            (start, len) in (0..=LEN).prop_flat_map(|start| (Just(start), 0..=LEN - start)),
            offset in offset(),
            bytes in prop::collection::vec(1..=u8::MAX, 0..LEN + 9),
        ) {
            let (memory, mut model) = (memory(), [0; LEN]);
            let part = memory.part(start as u64, len).expect("inside");
            prop_assert_eq!((part.len(), part.as_ptr().addr()), (len, memory.as_ptr().addr() + start));
            let stored = part.store(offset, &bytes);
            prop_assert_eq!(stored.is_ok(), range(offset, bytes.len(), len).is_some());
            if let Some(range) = range(offset, bytes.len(), len) {
                model[start..start + len][range].copy_from_slice(&bytes);
                let mut loaded = vec![0; bytes.len()];
                prop_assert_eq!(part.load(offset, &mut loaded), Ok(()));
                prop_assert_eq!(loaded, bytes);
            }
            prop_assert_eq!(all_of(&memory), model);
        }
    }

    fn line(memory: &Memory) -> Line<'_> {
        // SAFETY: the memory begins on the boundary of a word, and has more bytes than a line's words.
        unsafe { memory.line_unchecked(8, LEN - 8) }
    }

    #[test]
    fn a_line_ends_where_its_memory_does() {
        let memory = memory();
        let line = line(&memory);
        line.store(Line::WORDS - 1, u64::MAX);
        assert_eq!(all_of(&memory)[64..], [[0xFF; 8], [0; 8]].concat());
        for words in 0..=Line::WORDS {
            let rest = line.rest(words);
            assert_eq!(rest.len(), LEN - 8 - 8 * words);
            assert_eq!(rest.as_ptr().addr(), memory.as_ptr().addr() + 8 + 8 * words);
        }
    }

    #[test]
    #[should_panic(expected = "word 8 of a line")]
    fn a_line_has_no_ninth_word() {
        line(&memory()).load(Line::WORDS);
    }

    #[test]
    #[should_panic(expected = "9 words of a line")]
    fn nothing_is_behind_a_ninth_word() {
        let _ = line(&memory()).rest(Line::WORDS + 1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a line of 63 bytes")]
    fn a_line_is_no_shorter_than_its_words() {
        let memory = memory();
        // SAFETY: this is refused before there is a line; the bytes of its words are there all the same.
        let _ = unsafe { memory.line_unchecked(0, 63) };
    }

    /// Writers of whole words and readers of whole words: a word is never torn.
    #[test]
    fn aligned_words_are_whole() {
        let memory = memory();
        std::thread::scope(|scope| {
            for fill in [0x11, 0x22] {
                let memory = &memory;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        memory.store(0, &[fill; LEN]).expect("all of it");
                    }
                });
            }
            for _ in 0..20_000 {
                for word in all_of(&memory).as_chunks::<WORD>().0 {
                    assert!(word.iter().all(|b| *b == word[0]), "{word:x?} is torn");
                }
            }
        });
    }
}
