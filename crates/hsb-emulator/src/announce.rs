//! The broadcasts by which the board makes itself known, and what hosts reply to them.
//!
//! A board of the real kind takes the address that a reply gives it. A program cannot give its machine an address,
//! so this one announces the new address and still serves the old one.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roce_rendezvous::hsb::enumeration::{Announcement, BOARD_PORT, FpgaFields, HOST_PORT, LEN, Model, Reply};
use roce_rendezvous::hsb::{Mac, Serial, Uuid, mac_of};

use crate::clock::Timestamp;
use crate::error::EmulatorError;
use crate::interface::broadcast_of;
use crate::personality::Personality;
use crate::regs::Registers;

/// How long the thread may take to see that it shall end, or that the device is up again.
const TICK: Duration = Duration::from_millis(20);
/// The oldest HSB IP whose hosts can work with the one that is played.
const COMPAT_ID: u16 = 0x2603;
/// Where programs on this machine hear a broadcast that leaves no machine.
const LOOPBACK_BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);

/// How the board announces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enumeration {
    /// From one announcement to the next; default 1 s.
    pub interval: Duration,
    /// Whom they go to. Default: port 12267 of the broadcast address of the interface that the board is on, and of
    /// 127.255.255.255 for programs on this machine.
    pub targets: Option<Vec<SocketAddrV4>>,
    /// The UDP port that they come from, at the board's address; default 12268. Port 0 takes a free one.
    pub source_port: u16,
    /// The board's Ethernet address. Default: that of the interface, or one made of the IP address.
    pub mac: Option<Mac>,
    /// The board's serial number. Default: made of the IP address.
    pub serial: Option<Serial>,
    /// The board's design; default: the personality's.
    pub uuid: Option<Uuid>,
    /// The Ethernet port's index; default 0.
    pub data_plane: u8,
}

impl Default for Enumeration {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            targets: None,
            source_port: BOARD_PORT,
            mac: None,
            serial: None,
            uuid: None,
            data_plane: 0,
        }
    }
}

/// What came of the announcements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnumerationCounts {
    /// Announcements sent.
    pub sent: u64,
    /// Announcements that could not be sent.
    pub send_errors: u64,
    /// Replies that gave this board an address.
    pub replies: u64,
    /// Other datagrams that came: foreign, for another board, or in vain.
    pub ignored: u64,
}

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    send_errors: AtomicU64,
    replies: AtomicU64,
    ignored: AtomicU64,
}

/// The thread that announces the board. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Announcer {
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Announcer {
    pub(crate) fn start(
        config: &Enumeration,
        ip: Ipv4Addr,
        personality: Personality,
        hsb_ip_version: u16,
        registers: Arc<Registers>,
    ) -> Result<Self, EmulatorError> {
        let targets = config.targets.clone().unwrap_or_else(|| default_targets(ip, broadcast_of(ip)));
        let source = SocketAddrV4::new(ip, config.source_port);
        let socket = open(source)?;
        // Without a list of the interfaces it takes a made one, as without an interface.
        let known_mac = mac_of(ip).inspect_err(|error| tracing::warn!("{error}")).unwrap_or_default();
        let known_mac = known_mac.filter(|mac| *mac != Mac([0; 6]));
        let board = Board {
            personality,
            hsb_ip_version,
            own_ip: ip,
            told_ip: None,
            mac: config.mac.or(known_mac).unwrap_or_else(|| made_mac(ip)),
            serial: config.serial.unwrap_or_else(|| serial_of(ip)),
            uuid: config.uuid.unwrap_or(personality.uuid()),
            data_plane: config.data_plane,
            packets: 0,
            rounds: 0,
            started: Instant::now(),
        };
        let counters = Arc::new(Counters::default());
        let stop = Arc::new(AtomicBool::new(false));
        let speaker = Speaker {
            socket,
            board,
            targets,
            interval: config.interval,
            registers,
            counters: Arc::clone(&counters),
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new()
            .name("hsb-announce".into())
            .spawn(move || speaker.run())
            .map_err(|error| EmulatorError::Enumeration { call: "spawn", source_address: source, error })?;
        Ok(Self { counters, stop, thread: Some(thread) })
    }

    pub(crate) fn counts(&self) -> EnumerationCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EnumerationCounts {
            sent: load(&self.counters.sent),
            send_errors: load(&self.counters.send_errors),
            replies: load(&self.counters.replies),
            ignored: load(&self.counters.ignored),
        }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the announcing thread panicked");
        }
    }
}

fn open(source: SocketAddrV4) -> Result<UdpSocket, EmulatorError> {
    let failed =
        |call| move |error: io::Error| EmulatorError::Enumeration { call, source_address: source, error };
    let socket = UdpSocket::bind(source).map_err(failed("bind"))?;
    socket.set_broadcast(true).map_err(failed("SO_BROADCAST"))?;
    socket.set_read_timeout(Some(TICK)).map_err(failed("SO_RCVTIMEO"))?;
    Ok(socket)
}

fn default_targets(ip: Ipv4Addr, broadcast: Option<Ipv4Addr>) -> Vec<SocketAddrV4> {
    let mut targets = vec![LOOPBACK_BROADCAST];
    if !ip.is_loopback() {
        targets.insert(0, broadcast.unwrap_or(Ipv4Addr::BROADCAST));
    }
    targets.into_iter().map(|target| SocketAddrV4::new(target, HOST_PORT)).collect()
}

/// Locally administered, and another one for each address.
fn made_mac(ip: Ipv4Addr) -> Mac {
    let [a, b, c, d] = ip.octets();
    Mac([0x02, 0x48, a, b, c, d])
}

fn serial_of(ip: Ipv4Addr) -> Serial {
    let [a, b, c, d] = ip.octets();
    Serial([0, 0, 0, a, b, c, d])
}

/// Who is announced.
#[derive(Debug)]
struct Board {
    personality: Personality,
    hsb_ip_version: u16,
    own_ip: Ipv4Addr,
    /// What a host gave it.
    told_ip: Option<Ipv4Addr>,
    mac: Mac,
    serial: Serial,
    uuid: Uuid,
    data_plane: u8,
    /// Sent since the device started.
    packets: u32,
    rounds: u16,
    started: Instant,
}

impl Board {
    #[allow(clippy::cast_possible_truncation)] // seconds wrap in their 16 bits
    fn announcement(&self, now: Timestamp) -> Announcement {
        let common = Announcement {
            xid: self.data_plane.into(),
            seconds: now.seconds as u16,
            flags: 1,
            ip: self.told_ip.unwrap_or(self.own_ip),
            mac: self.mac,
            data_plane: self.data_plane,
            model: Model::Uuid {
                compat_id: COMPAT_ID.min(self.hsb_ip_version),
                uuid: self.uuid,
                packet_count: self.packets,
            },
            serial: self.serial,
            hsb_ip_version: self.hsb_ip_version,
            fpga_crc: self.personality.fpga_crc(),
            fpga: Some(FpgaFields {
                ptp_seconds: now.seconds.into(),
                ptp_nanoseconds: now.nanoseconds,
                sequence: self.rounds,
                ..FpgaFields::default()
            }),
        };
        match self.personality {
            Personality::Fpga => common,
            Personality::Lenient => Announcement {
                // In the order of the machine's bytes.
                seconds: (self.started.elapsed().as_secs() as u16).swap_bytes(),
                flags: 0,
                model: Model::Uuid { compat_id: 0, uuid: self.uuid, packet_count: 0 },
                fpga: None,
                ..common
            },
        }
    }

    /// Whether the reply gave this board its address.
    fn take(&mut self, datagram: &[u8]) -> bool {
        let Ok(reply) = Reply::parse(datagram) else { return false };
        let taken = self.personality == Personality::Fpga && reply.mac == self.mac;
        if taken {
            if self.told_ip != Some(reply.ip) {
                tracing::warn!(
                    ip = %reply.ip, own = %self.own_ip, host = %reply.host_ip,
                    "a host gave the board an address; it is announced, and the board's own is served"
                );
            }
            self.told_ip = Some(reply.ip);
        }
        taken
    }

    fn restart(&mut self) {
        (self.told_ip, self.packets, self.rounds) = (None, 0, 0);
    }
}

/// What the thread has.
struct Speaker {
    socket: UdpSocket,
    board: Board,
    targets: Vec<SocketAddrV4>,
    interval: Duration,
    registers: Arc<Registers>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
}

impl Speaker {
    fn run(mut self) {
        let mut due = Instant::now();
        let mut resets = self.registers.resets();
        while !self.stop.load(Ordering::Relaxed) {
            self.listen();
            if self.registers.resets() != resets {
                resets = self.registers.resets();
                self.board.restart();
                due = Instant::now();
            }
            if !self.registers.is_down() && Instant::now() >= due {
                due = (due + self.interval).max(Instant::now());
                self.announce();
            }
        }
    }

    fn announce(&mut self) {
        for target in &self.targets {
            let bytes = self.board.announcement(Timestamp::now()).encode();
            match self.socket.send_to(&bytes, target) {
                Ok(_) => count(&self.counters.sent),
                Err(error) => {
                    count(&self.counters.send_errors);
                    tracing::debug!(%target, %error, "an announcement could not be sent");
                }
            }
            self.board.packets = self.board.packets.wrapping_add(1);
        }
        self.board.rounds = self.board.rounds.wrapping_add(1);
    }

    /// Waits a while for a reply.
    fn listen(&mut self) {
        let mut datagram = [0; 2 * LEN];
        match self.socket.recv_from(&mut datagram) {
            Ok((len, _)) if self.board.take(&datagram[..len]) => count(&self.counters.replies),
            Ok(_) => count(&self.counters.ignored),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // A target's port is closed, which an earlier announcement learns of here.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => {
                tracing::debug!(%error, "no reply could be received");
                thread::sleep(TICK);
            }
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::testing::hex;

    const IP: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);
    const NOW: Timestamp = Timestamp { seconds: 0x1_2345, nanoseconds: 6 };

    fn board(personality: Personality) -> Board {
        Board {
            personality,
            hsb_ip_version: personality.hsb_ip_version(),
            own_ip: IP,
            told_ip: None,
            mac: Mac([0x1E, 0xB5, 0x79, 0x8B, 0x20, 0x3D]),
            serial: Serial([3, 1, 4, 1, 5, 9, 3]),
            uuid: personality.uuid(),
            data_plane: 0,
            packets: 5,
            rounds: 3,
            started: Instant::now(),
        }
    }

    /// What was caught of the emulator; it leaves rubbish in the fields that it does not set.
    const CAUGHT: &str = "
        01010600 00000000 00000000 c0a80002 00000000 00000000 00000000 1eb5798b203d";
    const CAUGHT_VENDOR: &str = "
        e0044e56444100020000 16af139b9d14482f98053feb72ae0cec 000000 00 03010401050903 0226 a55a";

    #[test]
    fn the_emulators_announcement() {
        let bytes = board(Personality::Lenient).announcement(NOW).encode();
        assert_eq!(
            (bytes.len(), &bytes[..34], &bytes[236..277]),
            (300, &hex(CAUGHT)[..], &hex(CAUGHT_VENDOR)[..])
        );
    }

    #[test]
    fn an_fpgas_announcement() {
        let bytes = board(Personality::Fpga).announcement(NOW).encode();
        let head = "01010600 00000000 23450001 c0a80002 00000000 00000000 00000000 1eb5798b203d";
        let vendor = "
            e0384e56444100020326 889b7ce365a542478b054ff1904c3359 000005 00 03010401050903 0626 0000
            00000000 000000012345 00000006 0003 00 000000000000";
        assert_eq!((&bytes[..34], &bytes[236..]), (&hex(head)[..], &hex(vendor)[..]));
        assert!(bytes[34..236].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_reply_gives_an_fpga_its_address_until_it_restarts() {
        let mut board = board(Personality::Fpga);
        let (new, host) = (Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 1));
        let reply = Reply::to(&board.announcement(NOW), new, host);
        assert!(!board.take(&Reply { mac: Mac([9; 6]), ..reply }.encode()), "for another board");
        assert!(!board.take(&board.announcement(NOW).encode()) && !board.take(&[]) && !board.take(&[2; 20]));
        assert_eq!(board.announcement(NOW).ip, IP);
        assert!(board.take(&reply.encode()));
        assert_eq!(board.announcement(NOW).ip, new);
        board.restart();
        assert_eq!(board.announcement(NOW).ip, IP);
    }

    #[test]
    fn the_emulator_keeps_its_address() {
        let mut board = board(Personality::Lenient);
        let reply = Reply::to(&board.announcement(NOW), Ipv4Addr::new(10, 0, 0, 9), IP);
        assert!(!board.take(&reply.encode()));
        assert_eq!(board.announcement(NOW).ip, IP);
    }

    #[test]
    fn announcements_go_to_the_interface_and_to_this_machine() {
        let at = |ip: [u8; 4]| SocketAddrV4::new(ip.into(), 12267);
        assert_eq!(default_targets([127, 0, 0, 2].into(), None), [at([127, 255, 255, 255])]);
        let lan = Some([192, 168, 0, 255].into());
        assert_eq!(default_targets(IP, lan), [at([192, 168, 0, 255]), at([127, 255, 255, 255])]);
        assert_eq!(default_targets(IP, None)[0], at([255; 4]));
    }
}
