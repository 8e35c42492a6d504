//! The UDP socket below the queue pairs, and the only system calls on the message path.

mod batch;
mod control;
mod socket;

pub(crate) use batch::{RecvBatch, RecvPacket};
pub(crate) use socket::{Peer, Socket};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
    use std::time::{Duration, Instant};

    use super::socket::is_about_runs;
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

    /// What the kernel says of runs, asked anew.
    fn kernel_takes_runs() -> bool {
        open(0).0.set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
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
        assert!(fewest < 50 || !kernel_takes_runs(), "no runs: {fewest} datagrams for 100 packets");
        assert_eq!(near.sends_runs(), kernel_takes_runs(), "none was refused");
    }

    #[test]
    fn where_runs_are_refused_their_packets_leave_and_no_run_is_tried_again() {
        let ((near, _), (far, to_far)) = (open(88), open(96));
        // The kernel cuts no datagram that is to have no checksum.
        near.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let mut batch = RecvBatch::new();
        for lens in [&[84; 40][..], &[84, 84, 60, 84, 84, 84]] {
            let sent = packets(lens);
            send_all(&near, &to_far, &sent);
            assert_eq!(receive_all(&mut batch, &far, sent.len()).0, whole(&sent));
        }
        assert!(!near.sends_runs());
        let sent = packets(&[84; 40]);
        assert_eq!(near.send_many(&to_far, sent.iter().map(Vec::as_slice)).unwrap(), 32, "in one call");
    }

    #[test]
    fn a_refusal_that_passes_keeps_runs() {
        let is_about_runs = |errno| is_about_runs(&std::io::Error::from_raw_os_error(errno));
        assert!([libc::EINVAL, libc::EIO, libc::EMSGSIZE, libc::EOPNOTSUPP].into_iter().all(is_about_runs));
        let passing = [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM, libc::ENETUNREACH, libc::EPERM];
        assert!(!passing.into_iter().any(is_about_runs));

        let near = open(104).0;
        let sent = packets(&[84; 5]);
        let nowhere = Peer::new(SocketAddrV4::new(Ipv4Addr::new(127, 255, 255, 255), 9));
        let refused = near.send_many(&nowhere, sent.iter().map(Vec::as_slice)).unwrap_err();
        assert_eq!(
            refused.raw_os_error(),
            Some(libc::EACCES),
            "a broadcast address: of the packet as of the run"
        );
        assert_eq!(near.sends_runs(), kernel_takes_runs());
    }

    #[test]
    fn a_lone_packet_costs_one_call() {
        let ((near, _), (far, to_far)) = (open(120), open(4));
        let mut batch = RecvBatch::new();
        for burst in [0, 100, 0] {
            let many = packets(&vec![84; burst]);
            send_all(&near, &to_far, &many);
            receive_all(&mut batch, &far, many.len());
            // A poll in vain comes between, as where the other end takes a while.
            for _ in 0..10 {
                assert_eq!(batch.receive(&far).unwrap(), 0);
                assert!(!batch.is_more_likely());
                near.send(&to_far, &[0; 84]).unwrap();
                assert_eq!(receive_all(&mut batch, &far, 1), (whole(&packets(&[84])), 1));
                assert!(!batch.is_more_likely(), "and costs another call");
            }
            assert_eq!(batch.receive(&far).unwrap(), 0);
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_by_datagrams() {
        let ((near, _), (far, to_far)) = (open(12), open(20));
        far.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 0).unwrap();
        assert_eq!(far.overflow(), 0);
        let mut sent = 0;
        while far.overflow() == 0 {
            near.send(&to_far, &[7; 84]).unwrap();
            sent += 1;
            assert!(sent < 100, "the smallest room is for a few");
        }
        assert_eq!(far.overflow(), 1);
        near.send(&to_far, &[7; 84]).unwrap();
        assert_eq!(far.overflow(), 2);
        assert!(RecvBatch::new().receive(&far).unwrap() > 0);
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
