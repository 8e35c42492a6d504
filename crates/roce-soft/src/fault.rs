//! Faults on purpose: packets dropped, doubled, overtaken, late or damaged on their way out.
//!
//! A seed makes the choice of packets the same in every run. Nothing here reads a clock: the time comes in.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::counters::TxCounters;

/// For how long a delayed packet stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// That long.
    Time(Duration),
    /// Until that many later packets have left, or a millisecond has passed without them.
    Packets(u32),
}

/// What to do to packets on their way out. The chances are per packet, from 0 to 1.
///
/// ```
/// use roce_soft::FaultConfig;
/// let faults: FaultConfig = "drop=0.02,dup=0.01,delay=0.01:200us,seed=7".parse()?;
/// assert_eq!(faults.drop, 0.02);
/// # Ok::<(), roce_soft::FaultParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultConfig {
    /// The packet never leaves.
    pub drop: f64,
    /// It leaves twice.
    pub duplicate: f64,
    /// It leaves after the next one, or after a millisecond without one.
    pub reorder: f64,
    /// It leaves later, by [`delay_by`](Self::delay_by).
    pub delay: f64,
    /// How much later.
    pub delay_by: Delay,
    /// One bit is flipped.
    pub corrupt: f64,
    /// Where the sequence of chances starts. Each queue pair of a device has a sequence of its own.
    pub seed: u64,
}

impl Default for FaultConfig {
    /// No fault at all.
    fn default() -> Self {
        Self {
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            delay: 0.0,
            delay_by: Delay::Time(Duration::from_micros(100)),
            corrupt: 0.0,
            seed: 0,
        }
    }
}

/// Why a text describes no faults.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultParseError {
    /// An item that is no `name=value`.
    #[error("`{0}` is no fault; write NAME=VALUE, separated by commas, as in drop=0.02,seed=7")]
    Form(String),
    /// A name that is none.
    #[error("there is no fault `{0}`; there are drop, dup, reorder, delay, corrupt, and seed")]
    Name(String),
    /// A chance that is none.
    #[error("`{value}` is no chance for {name}; write a number from 0 to 1")]
    Chance {
        /// The fault.
        name: String,
        /// What was given.
        value: String,
    },
    /// A delay that is none.
    #[error("`{0}` is no delay; write CHANCE:TIME as in 0.01:200us (ns, us, ms) or CHANCE:N as in 0.01:3p")]
    Delay(String),
    /// A seed that is none.
    #[error("`{0}` is no seed; write a number below 2^64")]
    Seed(String),
}

impl FromStr for FaultConfig {
    type Err = FaultParseError;

    /// `drop=0.02,dup=0.01,reorder=0.01,delay=0.01:200us,corrupt=0.01,seed=7`, in any order, all optional.
    fn from_str(text: &str) -> Result<Self, FaultParseError> {
        let mut config = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| FaultParseError::Form(item.to_owned()))?;
            match name {
                "drop" => config.drop = chance(name, value)?,
                "dup" => config.duplicate = chance(name, value)?,
                "reorder" => config.reorder = chance(name, value)?,
                "corrupt" => config.corrupt = chance(name, value)?,
                "delay" => (config.delay, config.delay_by) = delay(value)?,
                "seed" => {
                    config.seed = value.parse().map_err(|_| FaultParseError::Seed(value.to_owned()))?;
                }
                _ => return Err(FaultParseError::Name(name.to_owned())),
            }
        }
        Ok(config)
    }
}

fn chance(name: &str, value: &str) -> Result<f64, FaultParseError> {
    let error = || FaultParseError::Chance { name: name.to_owned(), value: value.to_owned() };
    value.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(error)
}

fn delay(text: &str) -> Result<(f64, Delay), FaultParseError> {
    let error = || FaultParseError::Delay(text.to_owned());
    let (share, by) = text.split_once(':').ok_or_else(error)?;
    let digits = by.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
    let (number, unit) = by.split_at(digits);
    let number: u32 = number.parse().map_err(|_| error())?;
    let by = match unit {
        "ns" => Delay::Time(Duration::from_nanos(number.into())),
        "us" => Delay::Time(Duration::from_micros(number.into())),
        "ms" => Delay::Time(Duration::from_millis(number.into())),
        "p" => Delay::Packets(number),
        _ => return Err(error()),
    };
    Ok((chance("delay", share)?, by))
}

/// SplitMix64: small, seedable, and good enough to throw dice with.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// True once in `1 / chance` times.
    #[allow(clippy::cast_precision_loss)] // 53 bits are kept
    pub(crate) fn hits(&mut self, chance: f64) -> bool {
        ((self.next() >> 11) as f64) < chance * (1u64 << 53) as f64
    }

    /// Below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap_or(0)
    }
}

/// A packet on its way out.
#[derive(Debug)]
struct Held {
    bytes: Box<[u8]>,
    len: usize,
    /// It leaves when that many packets have left, ...
    after: u64,
    /// ... or at this time, whichever is first.
    at: Instant,
}

/// The injector of one queue pair. All packets go through it.
#[derive(Debug)]
pub(crate) struct Injector {
    config: FaultConfig,
    rng: Rng,
    held: Box<[Held]>,
    free: Vec<usize>,
    /// Those in use, the oldest first.
    line: VecDeque<usize>,
    left: u64,
}

impl Injector {
    const SLOTS: usize = 64;
    const LONGEST_WAIT: Duration = Duration::from_millis(1);

    /// For packets of at most `packet_len` bytes; `ordinal` tells the queue pairs of a device apart.
    pub(crate) fn new(config: FaultConfig, ordinal: u64, packet_len: usize) -> Self {
        let now = Instant::now();
        let held = || Held { bytes: vec![0; packet_len].into(), len: 0, after: 0, at: now };
        Self {
            config,
            rng: Rng::new(Rng::new(config.seed.wrapping_add(ordinal)).next()),
            held: std::iter::repeat_with(held).take(Self::SLOTS).collect(),
            free: (0..Self::SLOTS).collect(),
            line: VecDeque::with_capacity(Self::SLOTS),
            left: 0,
        }
    }

    /// Whether another packet can be taken, and its double.
    pub(crate) fn has_room(&self) -> bool {
        self.free.len() >= 2
    }

    /// Takes a packet in. Not to be called without [room](Self::has_room).
    pub(crate) fn take(&mut self, packet: &[u8], now: Instant, counters: &TxCounters) {
        if self.rng.hits(self.config.drop) {
            counters.dropped.add(1);
            return;
        }
        let flip = self.rng.hits(self.config.corrupt).then(|| self.rng.below(packet.len() * 8));
        let (after, at) = self.leaves(now, counters);
        let copies = if self.rng.hits(self.config.duplicate) { 2 } else { 1 };
        counters.duplicated.add(copies - 1);
        counters.corrupted.add(u64::from(flip.is_some()));
        for _ in 0..copies {
            let Some(slot) = self.free.pop() else { return };
            let held = &mut self.held[slot];
            held.bytes[..packet.len()].copy_from_slice(packet);
            if let Some(bit) = flip {
                held.bytes[bit / 8] ^= 1 << (bit % 8);
            }
            (held.len, held.after, held.at) = (packet.len(), after, at);
            self.line.push_back(slot);
        }
    }

    fn leaves(&mut self, now: Instant, counters: &TxCounters) -> (u64, Instant) {
        if self.rng.hits(self.config.reorder) {
            counters.reordered.add(1);
            return (self.left + 1, now + Self::LONGEST_WAIT);
        }
        if self.rng.hits(self.config.delay) {
            counters.delayed.add(1);
            return match self.config.delay_by {
                Delay::Time(time) => (u64::MAX, now + time),
                Delay::Packets(n) => (self.left + u64::from(n), now + Self::LONGEST_WAIT),
            };
        }
        (0, now)
    }

    /// Sends what is due at `now`. `send` says whether the link is done with the packet; if not, it stays.
    pub(crate) fn pump<E>(
        &mut self,
        now: Instant,
        mut send: impl FnMut(&[u8]) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut i = 0;
        while let Some(&slot) = self.line.get(i) {
            let held = &self.held[slot];
            if held.after > self.left && held.at > now {
                i += 1;
                continue;
            }
            let taken = send(&held.bytes[..held.len]);
            if matches!(taken, Ok(false)) {
                return Ok(());
            }
            self.line.remove(i);
            self.free.push(slot);
            self.left += 1;
            taken?;
            i = 0;
        }
        Ok(())
    }

    /// Makes all that is held due.
    pub(crate) fn hurry(&mut self) {
        for &slot in &self.line {
            self.held[slot].after = 0;
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;

    /// What leaves of `n` numbered packets, with everything pumped at the end.
    fn run(config: &str, n: u8) -> (Vec<Vec<u8>>, TxCounters) {
        let counters = TxCounters::default();
        let mut injector = Injector::new(config.parse().unwrap(), 0, 8);
        let start = Instant::now();
        let mut out = Vec::new();
        let mut send = |p: &[u8]| {
            out.push(p.to_vec());
            Ok::<_, ()>(true)
        };
        for i in 0..n {
            assert!(injector.has_room());
            injector.take(&[i; 4], start, &counters);
            injector.pump(start, &mut send).unwrap();
        }
        injector.pump(start + Duration::from_secs(1), &mut send).unwrap();
        assert!(injector.is_empty());
        (out, counters)
    }

    fn firsts(packets: &[Vec<u8>]) -> Vec<u8> {
        packets.iter().map(|p| p[0]).collect()
    }

    #[test]
    fn parses_and_refuses() {
        let all = "drop=0.02, dup=0.5,reorder=0.25,delay=0.01:200us,corrupt=1,seed=7".parse::<FaultConfig>();
        assert_eq!(
            all,
            Ok(FaultConfig {
                drop: 0.02,
                duplicate: 0.5,
                reorder: 0.25,
                delay: 0.01,
                delay_by: Delay::Time(Duration::from_micros(200)),
                corrupt: 1.0,
                seed: 7
            })
        );
        assert_eq!("".parse(), Ok(FaultConfig::default()));
        assert_eq!("delay=1:3p".parse::<FaultConfig>().unwrap().delay_by, Delay::Packets(3));
        for (text, part) in [
            ("drop", "NAME=VALUE"),
            ("lose=1", "`lose`"),
            ("drop=2", "from 0 to 1"),
            ("drop=-0.1", "from 0 to 1"),
            ("dup=NaN", "from 0 to 1"),
            ("delay=0.1", "CHANCE:TIME"),
            ("delay=0.1:5", "CHANCE:TIME"),
            ("delay=0.1:5h", "CHANCE:TIME"),
            ("delay=9:5us", "chance for delay"),
            ("seed=x", "seed"),
        ] {
            let error = text.parse::<FaultConfig>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn without_faults_nothing_changes() {
        let (out, _) = run("seed=1", 200);
        assert_eq!(firsts(&out), (0..200).collect::<Vec<u8>>());
    }

    #[test]
    fn each_fault_does_what_it_says() {
        assert!(run("drop=1", 9).0.is_empty());
        assert_eq!(firsts(&run("dup=1", 3).0), [0, 0, 1, 1, 2, 2]);
        let (out, counters) = run("corrupt=1", 9);
        for (i, packet) in out.iter().enumerate() {
            let flipped: u32 = packet.iter().map(|&b| (b ^ i as u8).count_ones()).sum();
            assert_eq!(flipped, 1);
        }
        assert_eq!(counters.corrupted.get(), 9);
    }

    #[test]
    fn overtaken_packets_are_not_lost() {
        for config in ["reorder=0.3,seed=3", "delay=0.3:5p,seed=3", "delay=0.3:10us,seed=3"] {
            let (out, counters) = run(config, 60);
            let mut order = firsts(&out);
            assert_ne!(order, (0..60).collect::<Vec<u8>>(), "{config}");
            order.sort_unstable();
            assert_eq!(order, (0..60).collect::<Vec<u8>>(), "{config}");
            assert!(counters.reordered.get() + counters.delayed.get() > 5);
        }
    }

    #[test]
    fn a_reordered_packet_leaves_right_after_the_next() {
        let counters = TxCounters::default();
        let mut injector = Injector::new("reorder=1".parse().unwrap(), 0, 1);
        let now = Instant::now();
        let mut out = Vec::new();
        injector.take(&[0], now, &counters);
        injector.config.reorder = 0.0;
        for i in 1..4 {
            injector.take(&[i], now, &counters);
            injector
                .pump(now, |p| {
                    out.push(p[0]);
                    Ok::<_, ()>(true)
                })
                .unwrap();
        }
        assert_eq!(out, [1, 0, 2, 3]);
    }

    #[test]
    fn a_full_link_keeps_packets() {
        let counters = TxCounters::default();
        let mut injector = Injector::new(FaultConfig::default(), 0, 1);
        let now = Instant::now();
        while injector.has_room() {
            injector.take(&[9], now, &counters);
            injector.pump(now, |_| Ok::<_, ()>(false)).unwrap();
        }
        let mut sent = 0;
        injector
            .pump(now, |_| {
                sent += 1;
                Ok::<_, ()>(true)
            })
            .unwrap();
        assert_eq!(sent, Injector::SLOTS - 1);
    }

    #[test]
    fn seeds_repeat_and_differ() {
        let drops = |seed: u32| firsts(&run(&format!("drop=0.5,seed={seed}"), 100).0);
        assert_eq!(drops(1), drops(1));
        assert_ne!(drops(1), drops(2));
    }
}
