//! The codec per packet: header and payload into a buffer, the ICRC over it, and all of that back.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce_core::{Psn, Qpn, Rkey};
use roce_soft::wire::icrc::Icrc;
use roce_soft::wire::{Bth, Flow, Header, Opcode, Operation, Packet, Position, Reth, UDP_PORT};

const FRAMES: [usize; 4] = [64, 256, 1024, 4096];

fn flow() -> Flow {
    let end = |last| SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), UDP_PORT);
    Flow { src: end(1), dst: end(2) }
}

fn header(frame: usize) -> Header {
    let opcode = Opcode::new(Operation::Write, Position::Only, true);
    let len = u32::try_from(frame).expect("a frame fits 32 bits");
    Header {
        bth: Bth::new(opcode, Qpn::from_low_bits(0x123), Psn::new(7), frame),
        reth: Some(Reth { addr: 0x80, rkey: Rkey::new(0xCAFE_BABE), len }),
        imm: Some(1),
    }
}

fn codec(c: &mut Criterion) {
    let mut group = c.benchmark_group("codec");
    for frame in FRAMES {
        let (flow, header) = (flow(), header(frame));
        let payload = vec![0x5A; frame];
        let mut packet = header.packet(&flow, &payload);
        let mut icrc = Icrc::new(flow);
        group.throughput(Throughput::Bytes(packet.len() as u64));
        group.bench_function(BenchmarkId::new("build", frame), |b| {
            b.iter(|| {
                let start = header.len();
                black_box(&header).emit(&mut packet);
                packet[start..start + frame].copy_from_slice(black_box(&payload));
                icrc.seal(&mut packet);
            });
        });
        group.bench_function(BenchmarkId::new("verify", frame), |b| {
            b.iter(|| icrc.verify(black_box(&packet)));
        });
        // Of another flow than the packet before, or of another length.
        group.bench_function(BenchmarkId::new("verify the first", frame), |b| {
            b.iter(|| Icrc::new(black_box(flow)).verify(black_box(&packet)));
        });
        // The sender's identification has to be solved for.
        let mut elsewhere = Icrc::new(Flow { src: flow.dst, dst: flow.src });
        group.bench_function(BenchmarkId::new("verify damaged", frame), |b| {
            b.iter(|| elsewhere.verify(black_box(&packet)));
        });
        group.bench_function(BenchmarkId::new("parse", frame), |b| {
            b.iter(|| Packet::parse(black_box(&packet)))
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
