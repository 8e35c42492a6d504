//! The UDP socket below the queue pairs, and the only system calls on the message path.

mod batch;
mod socket;

pub(crate) use batch::{RecvBatch, RecvPacket};
pub(crate) use socket::{Peer, Socket};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
    use std::time::{Duration, Instant};

    use super::*;

    /// Longer than any packet of RoCE.
    const TOO_LONG: usize = 9000;

    fn loopback(end: u8) -> SocketAddrV4 {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        SocketAddrV4::new(Ipv4Addr::new(127, end + (a & 7), b, c), 0)
    }

    fn open(end: u8) -> (Socket, Peer) {
        let socket = Socket::bind(loopback(end)).unwrap();
        let peer = Peer::new(socket.local_addr().unwrap());
        (socket, peer)
    }

    /// Different bytes in each packet.
    fn packets(lens: &[usize]) -> Vec<Vec<u8>> {
        (0u8..).zip(lens).map(|(n, &len)| vec![n; len]).collect()
    }

    fn send_all(socket: &Socket, to: &Peer, packets: &[Vec<u8>]) {
        let mut rest = packets;
        while !rest.is_empty() {
            rest = &rest[socket.send_many(to, rest.iter().map(Vec::as_slice)).unwrap()..];
        }
    }

    /// So many packets, and with how many datagrams they came.
    fn receive_all(batch: &mut RecvBatch, socket: &Socket, count: usize) -> (Vec<(Vec<u8>, bool)>, usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let (mut received, mut datagrams) = (Vec::new(), 0);
        while received.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} packets came", received.len());
            datagrams += batch.receive(socket).unwrap();
            received.extend(batch.datagrams().flatten().map(|packet| (packet.bytes.to_vec(), packet.cut)));
        }
        (received, datagrams)
    }

    fn whole(packets: &[Vec<u8>]) -> Vec<(Vec<u8>, bool)> {
        packets.iter().map(|packet| (packet.clone(), false)).collect()
    }

    #[test]
    fn runs_come_as_the_packets_that_they_are_of() {
        let ((near, _), (far, to_far)) = (open(40), open(48));
        let mut batch = RecvBatch::new();
        let mixed = [&[84; 20], &[60, 84, 84, 84, 100, 80, 80, 12][..], &[4096; 33], &[1]].concat();
        let mut fewest = usize::MAX;
        for lens in [vec![84; 1], vec![84; 16], vec![84; 100], mixed.clone(), vec![84; 1], mixed] {
            let sent = packets(&lens);
            send_all(&near, &to_far, &sent);
            let (received, datagrams) = receive_all(&mut batch, &far, sent.len());
            assert_eq!(received, whole(&sent));
            fewest = fewest.min(datagrams * 100 / sent.len());
        }
        assert!(fewest < 50 || !near.sends_runs(), "no runs: {fewest} datagrams for 100 packets");
    }

    #[test]
    fn who_does_not_ask_for_runs_gets_packets() {
        let near = open(56).0;
        let far = UdpSocket::bind(loopback(64)).unwrap();
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let std::net::SocketAddr::V4(at) = far.local_addr().unwrap() else { panic!("IPv4") };
        let sent = packets(&[84; 40]);
        send_all(&near, &Peer::new(at), &sent);
        for packet in &sent {
            let mut bytes = [0; 2048];
            let len = far.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], packet);
        }
    }

    #[test]
    fn what_is_too_long_is_cut_and_what_is_empty_is_counted() {
        let ((near, _), (far, to_far)) = (open(72), open(80));
        let mut batch = RecvBatch::new();
        for _ in 0..2 {
            let strange = packets(&[TOO_LONG, 0, 84, 65_507, 0]);
            for packet in &strange {
                near.send(&to_far, packet).unwrap();
            }
            let received = receive_all(&mut batch, &far, strange.len()).0;
            let is_cut: Vec<bool> = received.iter().map(|(_, cut)| *cut).collect();
            assert_eq!(is_cut, [true, false, false, true, false]);
            for ((bytes, _), sent) in received.iter().zip(&strange) {
                assert_eq!(bytes[..], sent[..bytes.len()]);
            }
            let many = packets(&[84; 100]);
            send_all(&near, &to_far, &many);
            assert_eq!(receive_all(&mut batch, &far, many.len()).0, whole(&many));
        }
    }
}
