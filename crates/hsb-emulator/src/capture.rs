//! The capture: a logic analyser that records the SENDs that arrive.

use std::sync::atomic::{AtomicU32, Ordering};

use roce_rendezvous::hsb::regs::{self, CAPTURE_RAM, Capture as Register};
use roce_rendezvous::hsb::sample::{BEAT_BYTES, Sample, VALID_WORD};

use crate::clock::Timestamp;

const WRITE_COUNT_MASK: u32 = 0x7F;

/// Written by the player, controlled and read by the control plane.
pub(crate) struct Capture {
    control: AtomicU32,
    status: AtomicU32,
    /// One more than the highest sample written.
    samples: AtomicU32,
    writes: AtomicU32,
    ram: Box<[AtomicU32]>,
}

impl Capture {
    pub(crate) fn new() -> Self {
        let words = CAPTURE_RAM.banks * CAPTURE_RAM.words;
        Self {
            control: AtomicU32::new(regs::CAPTURE_OFF),
            status: AtomicU32::new(0),
            samples: AtomicU32::new(0),
            writes: AtomicU32::new(0),
            ram: (0..words).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// A register or a word of the memory; `None` for an address that is neither.
    pub(crate) fn read(&self, address: u32) -> Option<u32> {
        if let Some((bank, sample)) = CAPTURE_RAM.locate(address) {
            return Some(self.word(bank, sample).load(Ordering::Relaxed));
        }
        let register = self.register(address)?;
        Some(register.load(Ordering::Acquire)) // pairs with `store` and `complete`
    }

    /// Only the control register can be written.
    pub(crate) fn write(&self, address: u32, value: u32) -> Option<()> {
        if address != Register::Control.address() {
            return None;
        }
        if value & regs::CAPTURE_RESET != 0 {
            self.reset();
        }
        self.control.store(value, Ordering::Release);
        Some(())
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.control.load(Ordering::Acquire) & regs::CAPTURE_ENABLE != 0
    }

    /// Records an answer in the `beats` samples from `first` on. The samples that it does not fill become invalid,
    /// as all do for an empty answer.
    pub(crate) fn store(&self, first: u32, beats: u32, answer: &[u8], time: Timestamp) {
        let mut left = answer;
        for sample in first..first + beats {
            if left.is_empty() {
                self.word(VALID_WORD, sample).store(0, Ordering::Relaxed);
                continue;
            }
            let (beat, rest) = left.split_at(left.len().min(BEAT_BYTES));
            self.store_beat(sample, beat, rest.is_empty(), time);
            left = rest;
        }
    }

    /// Every window of a pass has been played.
    pub(crate) fn complete(&self) {
        self.status.store(regs::CAPTURE_DONE, Ordering::Release);
    }

    fn store_beat(&self, index: u32, bytes: &[u8], last: bool, time: Timestamp) {
        let mut data = [0; BEAT_BYTES];
        data[..bytes.len()].copy_from_slice(bytes);
        let count = self.writes.fetch_add(1, Ordering::Relaxed) & WRITE_COUNT_MASK;
        let sample = Sample {
            data,
            valid: true,
            last,
            write_count: count.to_le_bytes()[0],
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
        };
        for (bank, word) in (0..).zip(sample.to_words()) {
            self.word(bank, index).store(word, Ordering::Relaxed);
        }
        self.samples.fetch_max(index + 1, Ordering::Release);
    }

    /// All is as it was at first.
    pub(crate) fn restart(&self) {
        self.control.store(regs::CAPTURE_OFF, Ordering::Release);
        self.reset();
    }

    fn reset(&self) {
        self.ram.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for register in [&self.samples, &self.writes, &self.status] {
            register.store(0, Ordering::Relaxed);
        }
    }

    fn register(&self, address: u32) -> Option<&AtomicU32> {
        [
            (Register::Control, &self.control),
            (Register::Status, &self.status),
            (Register::SampleAddr, &self.samples),
        ]
        .into_iter()
        .find_map(|(register, word)| (register.address() == address).then_some(word))
    }

    fn word(&self, bank: u32, sample: u32) -> &AtomicU32 {
        &self.ram[(bank * CAPTURE_RAM.words + sample) as usize]
    }
}

#[cfg(test)]
mod tests {
    use roce_rendezvous::hsb::sample::SAMPLE_WORDS;

    use super::*;

    const TIME: Timestamp = Timestamp { seconds: 5, nanoseconds: 6 };

    fn sample(capture: &Capture, index: u32) -> Sample {
        let mut words = [0; SAMPLE_WORDS];
        for (bank, word) in (0..).zip(&mut words) {
            let address = CAPTURE_RAM.address(bank, index).expect("inside");
            *word = capture.read(address).expect("readable");
        }
        Sample::from_words(&words)
    }

    fn samples(capture: &Capture) -> u32 {
        capture.read(Register::SampleAddr.address()).expect("readable")
    }

    #[test]
    fn every_beat_is_a_sample() {
        let capture = Capture::new();
        let answer: Vec<u8> = (0..100).collect();
        capture.store(6, 3, &answer, TIME);
        assert_eq!(samples(&capture), 8);
        let first = sample(&capture, 6);
        assert_eq!(
            (&first.data[..], first.valid, first.last, first.write_count),
            (&answer[..64], true, false, 0)
        );
        let second = sample(&capture, 7);
        assert_eq!((&second.data[..36], second.last, second.write_count), (&answer[64..], true, 1));
        assert_eq!((second.data[36..].iter().max(), second.seconds, second.nanoseconds), (Some(&0), 5, 6));
        assert!(!sample(&capture, 8).valid && !sample(&capture, 5).valid);
    }

    #[test]
    fn an_answer_longer_than_the_window_is_cut_and_not_marked_as_complete() {
        let capture = Capture::new();
        capture.store(2, 1, &[7; 65], TIME);
        assert_eq!((samples(&capture), sample(&capture, 2).last), (3, false));
        capture.store(2, 1, &[7; 64], TIME);
        assert!(sample(&capture, 2).last);
    }

    #[test]
    fn what_is_not_answered_is_invalid() {
        let capture = Capture::new();
        capture.store(0, 2, &[1; 128], TIME);
        capture.store(0, 2, &[1; 10], TIME);
        assert!(sample(&capture, 0).valid && !sample(&capture, 1).valid);
        capture.store(0, 2, &[], TIME);
        assert!(!sample(&capture, 0).valid);
        assert_eq!(samples(&capture), 2);
    }

    #[test]
    fn control() {
        let capture = Capture::new();
        let control = Register::Control.address();
        assert!(!capture.is_armed());
        capture.write(control, regs::CAPTURE_ENABLE).expect("writable");
        assert!(capture.is_armed());
        capture.store(0, 1, &[1; 64], TIME);
        capture.complete();
        assert_eq!(capture.read(Register::Status.address()), Some(regs::CAPTURE_DONE));
        capture.write(control, regs::CAPTURE_OFF).expect("writable");
        assert!(!capture.is_armed() && sample(&capture, 0).valid, "the samples stay");

        capture.write(control, regs::CAPTURE_RESET).expect("writable");
        assert!(!capture.is_armed() && !sample(&capture, 0).valid);
        assert_eq!((samples(&capture), capture.read(Register::Status.address())), (0, Some(0)));
        for address in [Register::Status.address(), CAPTURE_RAM.base, Register::BASE + 4] {
            assert_eq!(capture.write(address, 1), None);
        }
        assert_eq!(capture.read(Register::BASE + 4), None);
    }
}
