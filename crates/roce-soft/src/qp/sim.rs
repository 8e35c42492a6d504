//! Requester and responder against each other over a bad link, without sockets, and against an oracle.

#![allow(clippy::cast_possible_truncation)]

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use proptest::prelude::*;
use roce_core::{Lead, Mtu, Psn, Qpn, RecvKind, RecvWr, Rkey, Verb};

use super::{Completion, Requester, Responder};
use crate::counters::DropReason;
use crate::fault::Rng;
use crate::wire::{Bth, Flow, Header, MAX_PAYLOAD, Opcode, Packet, Position, Reth, icrc};

const MTU: Mtu = Mtu::B256;
const MAX_LEN: u32 = 5 * 256;
const RKEY: Rkey = Rkey::new(0x1234_5678);
const MESSAGES: u32 = 120;
/// A place of its own for each message, and behind them one for each receive.
const REGION: usize = 3 * MESSAGES as usize * MAX_LEN as usize;

fn flow() -> Flow {
    let at = |last| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 4791);
    Flow { src: at(1), dst: at(2) }
}

fn content(index: u32, len: u32) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(index));
    let mut bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
    bytes[..4.min(len as usize)].copy_from_slice(&index.to_be_bytes()[..4.min(len as usize)]);
    bytes
}

#[derive(Debug, Clone, Copy)]
struct Message {
    verb: Verb,
    len: u32,
}

fn messages(rng: &mut Rng) -> Vec<Message> {
    let one = |i: u32| {
        let len = match rng.below(4) {
            0 => 8 + rng.below(60) as u32,
            1 => rng.below(6) as u32 * 256,
            _ => 8 + rng.below(MAX_LEN as usize - 8) as u32,
        };
        let write = |imm| Verb::Write { addr: u64::from(i * MAX_LEN), rkey: RKEY, imm };
        let verb = match rng.below(4) {
            0 => Verb::Send { imm: None },
            1 => Verb::Send { imm: Some(i) },
            2 => write(None),
            _ => write(Some(i)),
        };
        Message { verb, len }
    };
    (0..MESSAGES).map(one).collect()
}

/// A packet on its way: whose it is, and its bytes.
#[derive(Debug, Clone)]
struct Transit {
    message: u32,
    psn: Psn,
    position: Position,
    bytes: Vec<u8>,
}

fn packets(messages: &[Message], requester: &mut Requester) -> Vec<Transit> {
    let mut all = Vec::new();
    for (message, m) in (0..).zip(messages) {
        let bytes = content(message, m.len);
        for s in requester.message(&m.verb, m.len) {
            all.push(Transit {
                message,
                psn: s.header.bth.psn,
                position: s.header.bth.opcode.position(),
                bytes: s.header.packet(&flow(), &bytes[s.offset as usize..][..s.len as usize]),
            });
        }
    }
    all
}

#[derive(Debug, Clone, Copy, Default)]
struct Badness {
    drop: f64,
    duplicate: f64,
    overtake: f64,
}

fn travel(packets: Vec<Transit>, bad: Badness, rng: &mut Rng) -> Vec<Transit> {
    let mut arrived = Vec::new();
    for packet in packets {
        if rng.hits(bad.drop) {
            continue;
        }
        if rng.hits(bad.duplicate) {
            arrived.push(packet.clone());
        }
        arrived.push(packet);
        let n = arrived.len();
        if n >= 2 && rng.hits(bad.overtake) {
            arrived.swap(n - 2, n - 1);
        }
    }
    arrived
}

/// What UC must deliver: a FIRST or ONLY, and right behind it all the others of its message, whatever came
/// before. Messages that complete nothing are left out.
fn oracle(messages: &[Message], arrived: &[Transit]) -> Vec<u32> {
    let completes = |p: &Transit| !matches!(messages[p.message as usize].verb, Verb::Write { imm: None, .. });
    let starts = arrived.iter().enumerate().filter(|(_, p)| p.position.starts() && completes(p));
    starts
        .filter(|&(at, first)| {
            let run = arrived[at..].iter().zip(0..).take_while(|(p, i)| p.psn == first.psn.add(*i));
            run.take_while(|(p, i)| *i == 0 || !p.position.starts()).any(|(p, _)| p.position.ends())
        })
        .map(|(_, p)| p.message)
        .collect()
}

/// The receiving end: a responder, memory and receives, and what came of the packets.
struct Receiver {
    responder: Responder,
    memory: Vec<u8>,
    receives: VecDeque<RecvWr>,
    completions: Vec<(RecvWr, Completion)>,
    drops: Vec<DropReason>,
}

impl Receiver {
    fn new(receives: u32) -> Self {
        let offset = |id: u32| u64::from(MESSAGES * MAX_LEN) + u64::from(id % (2 * MESSAGES) * MAX_LEN);
        Self {
            responder: Responder::new(MTU, RKEY, REGION),
            memory: vec![0; REGION],
            receives: (0..receives).map(|id| RecvWr { id, offset: offset(id), len: MAX_LEN }).collect(),
            completions: Vec::new(),
            drops: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Option<Completion> {
        assert_eq!(icrc::verify(&flow(), bytes), Some(0));
        let packet = Packet::parse(bytes).unwrap();
        let mut last = None;
        let outcome = self.responder.receive(&packet, || {
            last = self.receives.pop_front();
            last
        });
        match outcome {
            Ok(accepted) => {
                let at = accepted.offset as usize;
                self.memory[at..at + packet.payload.len()].copy_from_slice(packet.payload);
                accepted.completion
            }
            Err(reason) => {
                self.drops.push(reason);
                None
            }
        }
    }
}

fn run(seed: u64, bad: Badness, receives: u32) -> (Vec<Message>, Vec<Transit>, Receiver, Vec<u32>) {
    let mut rng = Rng::new(seed);
    let messages = messages(&mut rng);
    let mut requester = Requester::new(Qpn::from_low_bits(2), MTU);
    // Half of the runs cross the end of the sequence numbers.
    if seed % 2 == 1 {
        requester.message(&Verb::Send { imm: None }, (0x100_0000 - 200) * 256);
    }
    let arrived = travel(packets(&messages, &mut requester), bad, &mut rng);
    let mut receiver = Receiver::new(receives);
    let all_receives: Vec<RecvWr> = receiver.receives.iter().copied().collect();
    let mut delivered = Vec::new();
    for packet in &arrived {
        if let Some(completion) = receiver.take(&packet.bytes) {
            let wr = all_receives[completion.id as usize];
            receiver.completions.push((wr, completion));
            check_whole(&receiver.memory, &messages[packet.message as usize], packet.message, wr, completion);
            delivered.push(packet.message);
        }
    }
    (messages, arrived, receiver, delivered)
}

fn check_whole(memory: &[u8], message: &Message, index: u32, wr: RecvWr, completion: Completion) {
    let (at, kind, imm) = match message.verb {
        Verb::Send { imm } => (wr.offset, RecvKind::Send, imm),
        Verb::Write { addr, imm, .. } => (addr, RecvKind::WriteWithImm, imm),
    };
    assert_eq!(completion, Completion { id: wr.id, kind, len: message.len, imm, lead: completion.lead });
    let bytes = &memory[at as usize..][..message.len as usize];
    assert_eq!(bytes, content(index, message.len), "message {index} is not whole");
}

/// Enough for every packet to complete twice.
const PLENTY: u32 = 2 * 2 * MESSAGES;

#[test]
fn a_good_link_delivers_everything_once() {
    for seed in 0..50 {
        let (messages, arrived, receiver, delivered) = run(seed, Badness::default(), PLENTY);
        let expected: Vec<u32> = (0..)
            .zip(&messages)
            .filter(|(_, m)| !matches!(m.verb, Verb::Write { imm: None, .. }))
            .map(|(i, _)| i)
            .collect();
        assert_eq!(delivered, expected);
        assert_eq!(delivered, oracle(&messages, &arrived));
        assert_eq!(receiver.drops, []);
        assert_eq!(
            (receiver.responder.lost(), receiver.responder.late(), receiver.responder.torn()),
            (0, 0, 0)
        );
        let writes = (0..).zip(&messages).filter(|(_, m)| matches!(m.verb, Verb::Write { .. }));
        for (i, m) in writes {
            let at = (i * MAX_LEN) as usize;
            assert_eq!(receiver.memory[at..][..m.len as usize], content(i, m.len));
        }
    }
}

#[test]
fn a_bad_link_delivers_what_uc_delivers() {
    for seed in 0..2000 {
        let bad = Badness {
            drop: [0.0, 0.02, 0.2][seed as usize % 3],
            duplicate: [0.0, 0.05][seed as usize / 3 % 2],
            overtake: [0.0, 0.05][seed as usize / 6 % 2],
        };
        let (messages, arrived, _, delivered) = run(seed, bad, PLENTY);
        assert_eq!(delivered, oracle(&messages, &arrived), "seed {seed}");
    }
}

#[test]
fn pure_loss_is_counted_to_the_packet() {
    for seed in 0..300 {
        let bad = Badness { drop: 0.1, ..Badness::default() };
        let (_, arrived, receiver, _) = run(seed, bad, PLENTY);
        let (first, last) = (arrived.first().unwrap(), arrived.last().unwrap());
        let missing = last.psn.since(first.psn) as usize + 1 - arrived.len();
        assert_eq!(receiver.responder.lost(), missing as u64, "seed {seed}");
        assert_eq!(receiver.responder.late(), 0);
    }
}

#[test]
fn duplicates_are_late_and_never_lost() {
    for seed in 0..100 {
        let bad = Badness { duplicate: 0.2, ..Badness::default() };
        let (_, arrived, receiver, _) = run(seed, bad, PLENTY);
        let doubled = arrived.windows(2).filter(|w| w[0].psn == w[1].psn).count();
        assert!(doubled > 0);
        assert_eq!((receiver.responder.lost(), receiver.responder.late()), (0, doubled as u64));
    }
}

#[test]
fn without_receives_messages_are_dropped_and_the_rest_is_whole() {
    for seed in 0..200 {
        let bad = Badness { drop: 0.02, ..Badness::default() };
        let (messages, arrived, receiver, delivered) = run(seed, bad, 20);
        let expected = oracle(&messages, &arrived);
        assert_eq!(delivered.len(), 20);
        assert!(delivered.iter().all(|m| expected.contains(m)));
        assert!(receiver.drops.contains(&DropReason::NoReceive));
        let ids: Vec<u32> = receiver.completions.iter().map(|(_, c)| c.id).collect();
        assert_eq!(ids, (0..20).collect::<Vec<u32>>(), "receives are consumed in order, each once");
    }
}

/// A packet to the responder, which answers for it.
struct Prober {
    receiver: Receiver,
    psn: Psn,
}

impl Prober {
    fn new() -> Self {
        Self { receiver: Receiver::new(4), psn: Psn::new(7) }
    }

    /// The drop, if there is one, of the next packet in sequence.
    fn send(&mut self, opcode: u8, reth: Option<(u64, u32)>, len: usize) -> Option<DropReason> {
        let opcode = Opcode::from_byte(opcode).unwrap();
        let header = Header {
            bth: Bth::new(opcode, Qpn::from_low_bits(2), self.psn, len),
            reth: reth.map(|(addr, len)| Reth { addr, rkey: RKEY, len }),
            imm: opcode.has_imm().then_some(1),
        };
        self.psn = self.psn.next();
        let drops = self.receiver.drops.len();
        self.receiver.take(&header.packet(&flow(), &vec![0xAB; len]));
        self.receiver.drops.get(drops).copied()
    }
}

#[test]
fn each_wrong_packet_is_dropped_for_its_reason() {
    const END: u64 = REGION as u64;
    let p = &mut Prober::new();
    assert_eq!(p.send(0x2A, Some((END - 8, 8)), 8), None);
    assert_eq!(p.send(0x2A, Some((END - 7, 8)), 8), Some(DropReason::OutOfBounds));
    assert_eq!(p.send(0x2A, Some((u64::MAX, 8)), 8), Some(DropReason::OutOfBounds));
    assert_eq!(p.send(0x2A, Some((u64::MAX - 7, 8)), 8), Some(DropReason::OutOfBounds));
    assert_eq!(p.send(0x26, Some((0, u32::MAX)), 256), Some(DropReason::OutOfBounds));
    assert_eq!(p.send(0x27, None, 256), Some(DropReason::RestOfMessage));
    assert_eq!(p.send(0x28, None, 8), Some(DropReason::RestOfMessage));
    assert_eq!(p.send(0x28, None, 8), Some(DropReason::OpcodeSequence), "nothing is in progress any more");
    assert_eq!(p.send(0x2A, Some((0, 9)), 8), Some(DropReason::BadLength), "less than it says");
    assert_eq!(p.send(0x2A, Some((0, 7)), 8), Some(DropReason::BadLength), "more than it says");
    assert_eq!(p.send(0x26, Some((0, 256)), 256), Some(DropReason::BadLength), "nothing is left for a LAST");
    assert_eq!(p.send(0x26, Some((0, 600)), 255), Some(DropReason::BadLength), "a FIRST is full");
    assert_eq!(p.send(0x20, None, 257), Some(DropReason::BadLength));
    assert_eq!(p.send(0x20, None, 256), None);
    assert_eq!(p.send(0x27, None, 256), Some(DropReason::OpcodeSequence), "a SEND is in progress");
    assert_eq!(p.send(0x20, None, 256), None);
    assert_eq!(p.send(0x22, None, 0), Some(DropReason::BadLength), "a LAST has something");
    assert_eq!(p.send(0x24, None, MAX_LEN as usize + 1), Some(DropReason::BadLength), "beyond the receive");
    assert_eq!(p.send(0x24, None, MAX_LEN as usize), None, "an ONLY may exceed the path MTU");
    assert_eq!(p.receiver.responder.torn(), 2);
    p.psn = p.psn.next();
    assert_eq!(p.send(0x21, None, 256), Some(DropReason::PsnGap));
    assert_eq!(p.receiver.responder.lost(), 1);
}

#[test]
fn a_wrong_key_is_dropped_unless_nothing_is_written() {
    let mut receiver = Receiver::new(1);
    let mut send = |psn, len: usize| {
        let opcode = Opcode::from_byte(0x2B).unwrap();
        let header = Header {
            bth: Bth::new(opcode, Qpn::from_low_bits(2), Psn::new(psn), len),
            reth: Some(Reth { addr: u64::MAX, rkey: Rkey::new(1), len: len as u32 }),
            imm: Some(1),
        };
        let datagram = header.packet(&flow(), &vec![0; len]);
        let packet = Packet::parse(&datagram).unwrap();
        receiver.responder.receive(&packet, || receiver.receives.pop_front()).map(|a| a.completion)
    };
    assert_eq!(send(0, 4), Err(DropReason::WrongRkey));
    let lead = Lead { missed: 1, packets: 0 };
    let empty = Completion { id: 0, kind: RecvKind::WriteWithImm, len: 0, imm: Some(1), lead };
    assert_eq!(send(1, 0), Ok(Some(empty)));
}

#[test]
fn a_sender_that_starts_again_is_no_loss() {
    let mut p = Prober::new();
    p.psn = Psn::new(1_000_000);
    assert_eq!(p.send(0x2A, Some((0, 8)), 8), None);
    p.psn = Psn::new(0);
    assert_eq!(p.send(0x2A, Some((0, 8)), 8), None);
    assert_eq!(p.send(0x2A, Some((0, 8)), 8), None);
    p.psn = p.psn.add(3);
    assert_eq!(p.send(0x2A, Some((0, 8)), 8), None);
    assert_eq!((p.receiver.responder.lost(), p.receiver.responder.late()), (3, 0));
}

/// Messages of a capture of Linux soft-RoCE through a responder with its path MTU.
fn replay(pcap: &[u8], from: Ipv4Addr, region: usize, rkey: Rkey) -> (Vec<Completion>, Vec<u8>) {
    let mut responder = Responder::new(Mtu::B1024, rkey, region);
    let mut memory = vec![0; region];
    let mut completions = Vec::new();
    let mut at = 24;
    let mut ids = 0..;
    while at < pcap.len() {
        let len = u32::from_le_bytes(pcap[at + 8..at + 12].try_into().unwrap()) as usize;
        let frame = &pcap[at + 16..at + 16 + len];
        at += 16 + len;
        if frame[26..30] != from.octets() {
            continue;
        }
        let packet = Packet::parse(&frame[42..]).unwrap();
        let next = || ids.next().map(|id| RecvWr { id, offset: 0, len: region as u32 });
        let accepted = responder.receive(&packet, next).unwrap();
        let offset = accepted.offset as usize;
        if !packet.payload.is_empty() {
            memory[offset..offset + packet.payload.len()].copy_from_slice(packet.payload);
        }
        completions.extend(accepted.completion);
    }
    assert_eq!((responder.lost(), responder.torn()), (0, 0));
    (completions, memory)
}

#[test]
fn messages_of_linux_soft_roce_arrive_whole() {
    let from = Ipv4Addr::new(10, 8, 0, 1);
    let sends = include_bytes!("../../tests/data/uc_send_multi.pcap");
    let (completions, _) = replay(sends, from, 1 << 20, Rkey::new(0));
    let lens: Vec<u32> = completions.iter().map(|c| c.len).collect();
    assert_eq!(lens[..5], [0, 1, 64, 4095, 4096]);
    assert!(completions.iter().all(|c| c.kind == RecvKind::Send));

    let writes = include_bytes!("../../tests/data/uc_write_multi.pcap");
    let (completions, memory) = replay(writes, from, 1 << 20, Rkey::new(0x4E4));
    let lens: Vec<u32> = completions.iter().map(|c| c.len).collect();
    assert_eq!(lens[..5], [0, 1, 64, 4095, 4096]);
    assert!(completions.iter().all(|c| c.kind == RecvKind::WriteWithImm && c.imm.is_some()));
    assert_ne!(memory[0x3039], 0, "written where the packets say");
    assert!(memory[..0x3039].iter().all(|&b| b == 0), "and nowhere else");
}

/// Any packet that can be parsed, likely to get far into the responder.
fn any_packet() -> impl Strategy<Value = (Header, usize)> {
    let len = prop_oneof![Just(0usize), Just(256), 0..=260usize, Just(MAX_PAYLOAD), Just(MAX_PAYLOAD + 1)];
    let addr = prop_oneof![0..600u64, Just(u64::MAX), any::<u64>(), Just(512u64)];
    let dma = prop_oneof![0..1200u32, Just(256), Just(u32::MAX), any::<u32>()];
    let rkey = prop_oneof![9 => Just(RKEY), 1 => any::<u32>().prop_map(Rkey::new)];
    (0x20..=0x2Bu8, 0..6u32, len, addr, dma, rkey, any::<bool>(), 0..4u8).prop_map(
        |(opcode, psn, len, addr, dma, rkey, honest, pad)| {
            let opcode = Opcode::from_byte(opcode).unwrap();
            let mut bth = Bth::new(opcode, Qpn::from_low_bits(2), Psn::new(psn), len);
            if !honest {
                bth.pad = pad;
            }
            let dma = if honest { len as u32 } else { dma };
            let reth = opcode.has_reth().then_some(Reth { addr, rkey, len: dma });
            (Header { bth, reth, imm: opcode.has_imm().then_some(0) }, len)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_packets_write_outside_the_region(
        packets in prop::collection::vec((any_packet(), any::<bool>()), 1..60),
        receives in prop::collection::vec((0..=768u64, 0..=300u32), 0..10),
    ) {
        const LEN: u64 = 768;
        let mut receives: VecDeque<RecvWr> = (0..).zip(receives)
            .map(|(id, (offset, len))| RecvWr { id, offset, len: len.min((LEN - offset) as u32) })
            .collect();
        let posted = receives.len();
        let mut responder = Responder::new(MTU, RKEY, LEN as usize);
        let mut psn = Psn::new(0);
        let mut completed = 0;
        for ((mut header, len), in_sequence) in packets {
            if in_sequence {
                header.bth.psn = psn;
            }
            psn = header.bth.psn.next();
            let bytes = header.packet(&flow(), &vec![1; len]);
            let packet = Packet::parse(&bytes).unwrap();
            if let Ok(accepted) = responder.receive(&packet, || receives.pop_front()) {
                let len = packet.payload.len() as u64;
                prop_assert!(len == 0 || accepted.offset.checked_add(len).is_some_and(|end| end <= LEN));
                if let Some(completion) = accepted.completion {
                    prop_assert_eq!(completion.id, completed);
                    completed += 1;
                }
            }
        }
        prop_assert!(completed as usize <= posted);
    }
}
