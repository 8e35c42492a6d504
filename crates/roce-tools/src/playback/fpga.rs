//! The FPGA's player, playback memory and capture, over its register control plane.

use std::net::SocketAddrV4;
use std::time::Duration;

use roce_rendezvous::hsb::ecb::Pair;
use roce_rendezvous::hsb::regs::{self, CAPTURE_RAM, Capture, LoopStats, PLAYBACK_RAM, Player};
use roce_rendezvous::hsb::sample::{BEAT_BYTES, SAMPLE_WORDS, Sample};
use roce_rendezvous::hsb::{BlockingClient, RoceConfig, StartOptions, Timing};
use serde::Serialize;

use crate::Error;

/// An FPGA that is there and runs answers well within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A busy machine may keep a software FPGA waiting for a while.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(3);

/// The windows of one pass: how many, of how many beats each, and the bytes of all of them in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) count: u32,
    pub(super) beats: u32,
    pub(super) bytes: Vec<u8>,
}

impl Windows {
    /// Pads each message to `beats` beats.
    pub(super) fn new(messages: impl Iterator<Item = Vec<u8>>, beats: u32) -> Self {
        let window = beats as usize * BEAT_BYTES;
        let mut windows = Self { count: 0, beats, bytes: Vec::new() };
        for message in messages {
            windows.count += 1;
            windows.bytes.extend(message);
            windows.bytes.resize(windows.count as usize * window, 0);
        }
        windows
    }

    /// By bank of the playback memory: its words.
    fn banks(&self) -> Vec<Vec<u32>> {
        let words = self.bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let mut banks = vec![Vec::new(); PLAYBACK_RAM.banks as usize];
        for (at, word) in words.enumerate() {
            banks[at % PLAYBACK_RAM.banks as usize].push(word);
        }
        banks
    }
}

/// How far the capture is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) samples: u32,
    pub(super) done: bool,
}

/// What a software FPGA counted while it looped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LoopReport {
    /// Windows sent.
    pub windows: u64,
    /// Answers.
    pub responses: u64,
    /// Windows that could not be sent.
    pub send_errors: u32,
    /// Windows without an answer.
    pub timeouts: u32,
    /// Answers that tell of a failure.
    pub response_failures: u32,
}

/// A session with the FPGA.
#[derive(Debug)]
pub(super) struct Fpga {
    client: BlockingClient,
}

impl Fpga {
    pub(super) fn connect(peer: SocketAddrV4, block_access: bool) -> Result<Self, Error> {
        let timing = Timing { first_timeout: CONNECT_TIMEOUT, timeout: ACCESS_TIMEOUT, ..Timing::default() };
        let client = BlockingClient::connect(peer, timing)?;
        Ok(Self { client: client.with_block_access(block_access) })
    }

    /// What a board needs once after it was switched on.
    pub(super) fn start(&mut self, options: &StartOptions) -> Result<(), Error> {
        Ok(self.client.start(options)?)
    }

    /// Takes the bridge's ring from the FPGA: it writes there no more.
    pub(super) fn unconfigure(&mut self, ring: &RoceConfig) -> Result<(), Error> {
        Ok(self.client.unconfigure_roce(ring)?)
    }

    /// Stops whatever an earlier run left going, and tells the FPGA the bridge's ring: last, so that where something else
    /// fails it does not know it.
    pub(super) fn configure(&mut self, ring: &RoceConfig) -> Result<(), Error> {
        self.stop()?;
        self.client.write(regs::SIF_TX_THRESHOLD, regs::SIF_TX_IMMEDIATE)?;
        Ok(self.client.configure_roce(ring)?)
    }

    /// Fills the playback memory and reads it back.
    pub(super) fn load(&mut self, windows: &Windows) -> Result<(), Error> {
        let banks = windows.banks();
        let pairs: Vec<Pair> = (0..).zip(&banks).flat_map(|(bank, words)| bank_pairs(bank, words)).collect();
        self.client.write_pairs(&pairs)?;
        let mut written = pairs.iter();
        for (bank, words) in (0..).zip(&banks) {
            let read = self.client.read_block(bank_address(bank), words.len())?;
            // In this order: a zip takes from its first side before it sees that the second has ended.
            for (read, pair) in read.into_iter().zip(written.by_ref()) {
                if pair.data != read {
                    return Err(Error::Readback { address: pair.address, wrote: pair.data, read });
                }
            }
        }
        Ok(())
    }

    /// Clears the capture, arms it, and plays the windows once, `spacing` from one to the next.
    pub(super) fn play(&mut self, windows: &Windows, spacing: Duration) -> Result<(), Error> {
        let beat_bytes = u32::try_from(BEAT_BYTES).unwrap_or(u32::MAX);
        self.client.write_pairs(&[
            Pair::new(Player::Timer.address(), ticks(spacing)),
            Pair::new(Player::WindowSize.address(), windows.beats * beat_bytes),
            Pair::new(Player::WindowNumber.address(), windows.count),
            Pair::new(Capture::Control.address(), regs::CAPTURE_RESET),
            Pair::new(Capture::Control.address(), regs::CAPTURE_ENABLE),
        ])?;
        Ok(self.client.write(Player::Enable.address(), regs::ENABLE_SINGLE)?)
    }

    pub(super) fn progress(&mut self) -> Result<Progress, Error> {
        let words = self.client.read_block(Capture::Status.address(), 2)?;
        Ok(Progress { samples: words[1].min(CAPTURE_RAM.words), done: words[0] & regs::CAPTURE_DONE != 0 })
    }

    pub(super) fn stop(&mut self) -> Result<(), Error> {
        self.client.write(Player::Enable.address(), regs::ENABLE_OFF)?;
        Ok(self.client.write(Capture::Control.address(), regs::CAPTURE_OFF)?)
    }

    /// The first `count` samples.
    pub(super) fn samples(&mut self, count: u32) -> Result<Vec<Sample>, Error> {
        let mut words = vec![[0; SAMPLE_WORDS]; count as usize];
        for (bank, at) in (0..CAPTURE_RAM.banks).zip(0..SAMPLE_WORDS) {
            let address = CAPTURE_RAM.base + (bank << CAPTURE_RAM.bank_shift);
            let column = self.client.read_block(address, words.len())?;
            for (sample, word) in words.iter_mut().zip(column) {
                sample[at] = word;
            }
        }
        Ok(words.iter().map(Sample::from_words).collect())
    }

    /// Plays what is loaded over and over. The software FPGA forgets an earlier loop.
    pub(super) fn start_loop(&mut self, emulator: bool) -> Result<(), Error> {
        if emulator {
            self.client.write(LoopStats::State.address(), 0)?;
        }
        Ok(self.client.write(Player::Enable.address(), regs::ENABLE_LOOP)?)
    }

    /// What a software FPGA counted, once it has left the loop.
    pub(super) fn loop_report(&mut self) -> Result<Option<LoopReport>, Error> {
        let words = self.client.read_block(LoopStats::BASE, 10)?;
        let word = |register: LoopStats| words[register as usize / 4];
        if word(LoopStats::Magic) != regs::LOOP_MAGIC || word(LoopStats::State) != regs::LOOP_COMPLETE {
            return Ok(None);
        }
        let wide = |low, high| u64::from(word(high)) << 32 | u64::from(word(low));
        let report = LoopReport {
            windows: wide(LoopStats::WindowsLow, LoopStats::WindowsHigh),
            responses: wide(LoopStats::ResponsesLow, LoopStats::ResponsesHigh),
            send_errors: word(LoopStats::Errors),
            timeouts: word(LoopStats::Timeouts),
            response_failures: word(LoopStats::ResponseFailures),
        };
        self.client.write(LoopStats::Ack.address(), regs::LOOP_MAGIC)?;
        Ok(Some(report))
    }
}

fn bank_address(bank: u32) -> u32 {
    PLAYBACK_RAM.base + (bank << PLAYBACK_RAM.bank_shift)
}

fn bank_pairs(bank: u32, words: &[u32]) -> impl Iterator<Item = Pair> + '_ {
    (bank_address(bank)..).step_by(4).zip(words).map(|(address, &word)| Pair::new(address, word))
}

/// In ticks of the player's clock, as many as its register holds.
fn ticks(spacing: Duration) -> u32 {
    let ticks = spacing.as_nanos() * u128::from(regs::TICKS_PER_MICROSECOND) / 1000;
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::thread;

    use roce_core::{Qpn, Rkey};
    use roce_rendezvous::hsb::ecb::{Request, Response, Status};

    use super::*;

    /// A board without `hole`, and the addresses that are written to it, until an empty datagram comes.
    fn board_without(hole: u32) -> (SocketAddrV4, thread::JoinHandle<Vec<u32>>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
        let serve = move || {
            let (mut written, mut bytes) = (Vec::new(), [0; 2048]);
            loop {
                let (len, from) = socket.recv_from(&mut bytes).unwrap();
                let Ok(request) = Request::parse(&bytes[..len]) else { return written };
                let is_hole = request.pairs[0].address == hole;
                let status = if is_hole { Status::InvalidAddress } else { Status::Success };
                if !request.command.is_read() {
                    written.extend(request.pairs.iter().map(|pair| pair.address));
                }
                let pairs = request.pairs.iter().map(|pair| Pair::new(pair.address, 0x2606)).collect();
                let answer = Response::to(&request, status, pairs, request.sequence).encode();
                socket.send_to(&answer, from).unwrap();
            }
        };
        (address, thread::spawn(serve))
    }

    #[test]
    fn a_board_that_refuses_to_stream_answers_is_not_told_the_ring() {
        let (address, board) = board_without(regs::SIF_TX_THRESHOLD);
        let ring = RoceConfig::new(Qpn::from_low_bits(7), Rkey::new(8), Ipv4Addr::LOCALHOST, 64, 384, 64);
        let error = Fpga::connect(address, true).unwrap().configure(&ring).unwrap_err();
        assert!(error.to_string().contains("0x01200000"), "{error}");
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().send_to(&[], address).unwrap();
        let written = board.join().unwrap();
        assert!(written.contains(&regs::SIF_TX_THRESHOLD), "{written:x?}");
        assert!(!written.iter().any(|at| (0x1000..0x1800).contains(at)), "{written:x?}");
    }

    #[test]
    fn windows_spread_over_the_banks_as_the_memory_has_it() {
        let messages = [vec![1; 70], vec![2; 4]];
        let windows = Windows::new(messages.into_iter(), 2);
        assert_eq!((windows.count, windows.bytes.len()), (2, 256));
        let banks = windows.banks();
        assert_eq!(banks.len(), 16);
        for window in 0..2 {
            for word in 0..32 {
                let (bank, column) = regs::playback_word(window, 2, word);
                let at = (window * 128 + word * 4) as usize;
                let expected = u32::from_le_bytes(windows.bytes[at..at + 4].try_into().unwrap());
                assert_eq!(banks[bank as usize][column as usize], expected);
            }
        }
    }

    #[test]
    fn the_timer_counts_322_ticks_a_microsecond() {
        assert_eq!(ticks(Duration::from_micros(120)), 322 * 120);
        assert_eq!(ticks(Duration::ZERO), 0);
        assert_eq!(ticks(Duration::from_secs(1000)), u32::MAX);
    }
}
