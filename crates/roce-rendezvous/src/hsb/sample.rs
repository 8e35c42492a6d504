//! The samples of the capture memory: 585 bits in 19 words.
//!
//! | bits | |
//! | --- | --- |
//! | 511:0 | 64 data bytes, byte `j` in bits `8 j + 7 : 8 j` |
//! | 512 | valid |
//! | 513 | last beat of its message |
//! | 520:514 | write count |
//! | 584:521 | time of capture: seconds in the high word, nanoseconds in the low word |
//!
//! Word `y` holds the bits `32 y + 31 : 32 y`.

/// Data bytes of a sample: what the data path moves at a time.
pub const BEAT_BYTES: usize = 64;

/// Words of a sample.
pub const SAMPLE_WORDS: usize = 19;

/// The word, and so the bank of the capture memory, that holds the valid bit; it is the lowest bit there.
pub const VALID_WORD: u32 = 16;

/// Words of the data; the rest follows.
const DATA_WORDS: usize = BEAT_BYTES / 4;
const _: () = assert!(DATA_WORDS == VALID_WORD as usize);

const COUNT_BITS: u32 = 7;
const TIME_SHIFT: u32 = 2 + COUNT_BITS;

/// One captured beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The bytes; those past the end of a message are 0.
    pub data: [u8; BEAT_BYTES],
    /// Something was captured here.
    pub valid: bool,
    /// The last beat of its message.
    pub last: bool,
    /// Samples written before this one, mod 128.
    pub write_count: u8,
    /// When: seconds since the epoch of the FPGA's clock.
    pub seconds: u32,
    /// When: nanoseconds within the second.
    pub nanoseconds: u32,
}

impl Sample {
    /// The 19 words, the lowest bits first.
    pub fn to_words(&self) -> [u32; SAMPLE_WORDS] {
        let mut words = [0; SAMPLE_WORDS];
        for (word, bytes) in words.iter_mut().zip(self.data.chunks_exact(4)) {
            *word = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
        }
        let count = u128::from(self.write_count & ((1 << COUNT_BITS) - 1));
        let time = u128::from(self.seconds) << 32 | u128::from(self.nanoseconds);
        let mut side = u128::from(self.valid) | u128::from(self.last) << 1 | count << 2 | time << TIME_SHIFT;
        for word in &mut words[DATA_WORDS..] {
            *word = low_word(side);
            side >>= 32;
        }
        words
    }

    /// The sample in 19 words.
    pub fn from_words(words: &[u32; SAMPLE_WORDS]) -> Self {
        let mut data = [0; BEAT_BYTES];
        for (bytes, word) in data.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let side = words[DATA_WORDS..].iter().rev().fold(0_u128, |side, &word| side << 32 | u128::from(word));
        Self {
            data,
            valid: side & 1 != 0,
            last: side & 2 != 0,
            write_count: (low_word(side >> 2) & ((1 << COUNT_BITS) - 1)).to_le_bytes()[0],
            seconds: low_word(side >> (TIME_SHIFT + 32)),
            nanoseconds: low_word(side >> TIME_SHIFT),
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // the low word is what is wanted
fn low_word(value: u128) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY: Sample =
        Sample { data: [0; 64], valid: false, last: false, write_count: 0, seconds: 0, nanoseconds: 0 };

    fn bits_of(sample: &Sample) -> Vec<usize> {
        let words = sample.to_words();
        (0..32 * SAMPLE_WORDS).filter(|bit| words[bit / 32] >> (bit % 32) & 1 != 0).collect()
    }

    #[test]
    fn each_field_sits_on_its_bits() {
        assert!(bits_of(&EMPTY).is_empty());
        for byte in 0..64 {
            let mut data = [0; 64];
            data[byte] = 0x81;
            assert_eq!(bits_of(&Sample { data, ..EMPTY }), [8 * byte, 8 * byte + 7]);
        }
        assert_eq!(bits_of(&Sample { valid: true, ..EMPTY }), [512]);
        assert_eq!(bits_of(&Sample { last: true, ..EMPTY }), [513]);
        assert_eq!(bits_of(&Sample { write_count: 0x41, ..EMPTY }), [514, 520]);
        assert_eq!(bits_of(&Sample { nanoseconds: 1, ..EMPTY }), [521]);
        assert_eq!(bits_of(&Sample { nanoseconds: 1 << 31, ..EMPTY }), [552]);
        assert_eq!(bits_of(&Sample { seconds: 1, ..EMPTY }), [553]);
        assert_eq!(bits_of(&Sample { seconds: 1 << 31, ..EMPTY }), [584]);
    }

    #[test]
    fn the_write_count_has_seven_bits() {
        assert!(bits_of(&Sample { write_count: 0x80, ..EMPTY }).is_empty());
    }

    proptest! {
        #[test]
        fn samples_survive_their_words(
            data in any::<[u8; 32]>(), valid: bool, last: bool, write_count in 0..128_u8, seconds: u32, nanoseconds: u32,
        ) {
            let mut beat = [0; 64];
            beat[16..48].copy_from_slice(&data);
            let sample = Sample { data: beat, valid, last, write_count, seconds, nanoseconds };
            prop_assert_eq!(Sample::from_words(&sample.to_words()), sample);
        }
    }
}
