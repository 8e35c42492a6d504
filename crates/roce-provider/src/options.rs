//! The arguments that a provider is made from.

use std::net::Ipv4Addr;
use std::str::FromStr;

use roce_core::{PeerEndpoint, Qpn};
use roce_ffi::report;
use roce_transport::{Config, ConfigError, Mode, TxMode};

use crate::error::Refusal;

/// Slots that the queue of an FPGA is deep.
const FPGA_SLOTS: u32 = 64;
/// Where RDMA devices send from by default. A soft device has its own default.
const LOCAL_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// How the peer is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// It calls.
    Rendezvous { port: u16 },
    /// It is known: an FPGA that only receives SENDs.
    Fpga(PeerEndpoint),
}

/// What the arguments say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    device: String,
    local_ip: Option<Ipv4Addr>,
    pub(crate) peer: Peer,
    num_slots: u32,
    slot_size: u32,
    frame_size: u32,
    pub(crate) unified: bool,
}

impl Options {
    /// From `--name=value` and `--name value`; what is not known is passed over.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, Refusal> {
        let given = Given(arguments);
        let peer_ip = given.value("--peer-ip", "an IPv4 address")?;
        let remote_qp = given.parse("--remote-qp", qp_number)?.unwrap_or(Qpn::from_low_bits(2));
        let is_fpga = given.parse("--qp_config", |text| match text {
            "rendezvous" => Ok(false),
            "hsb_fpga" => Ok(true),
            _ => Err("it must be rendezvous or hsb_fpga".to_owned()),
        })?;
        let port = given.value("--port", "a TCP port, 0 for any")?.unwrap_or(0);
        let num_slots = given.value("--num-slots", "a number")?.unwrap_or(8);
        let slot_size = given.value("--slot-size", "a number of bytes")?.unwrap_or(256);
        let is_fpga = is_fpga.unwrap_or(false);
        Ok(Self {
            device: given.text("--device")?.unwrap_or("mlx5_0").to_owned(),
            local_ip: given.value("--local-ip", "an IPv4 address")?,
            peer: if is_fpga {
                let ip = peer_ip.ok_or(Refusal::NoPeerIp)?;
                Peer::Fpga(PeerEndpoint { qpn: remote_qp, rkey: None, ip })
            } else {
                Peer::Rendezvous { port }
            },
            num_slots: if is_fpga { within_fpga(num_slots) } else { num_slots },
            slot_size,
            frame_size: match given.value("--frame-size", "a number of bytes, 0 for the slot's")?.unwrap_or(0)
            {
                0 => slot_size,
                bytes => bytes,
            },
            unified: given.has("--unified"),
        })
    }

    pub(crate) fn config(&self) -> Result<Config, ConfigError> {
        let is_soft = self.device == "soft" || self.device.starts_with("soft:");
        let builder = Config::builder(&self.device)
            .num_pages(self.num_slots)
            .page_size(self.slot_size)
            .frame_size(self.frame_size)
            .mode(if self.unified { Mode::Unified } else { Mode::Threads })
            .tx_mode(TxMode::Send);
        match self.local_ip.or((!is_soft).then_some(LOCAL_IP)) {
            Some(ip) => builder.local_ip(ip).build(),
            None => builder.build(),
        }
    }
}

fn within_fpga(slots: u32) -> u32 {
    if slots > FPGA_SLOTS {
        let why = format_args!("--num-slots {slots}: an FPGA's queue has {FPGA_SLOTS}; taking those");
        report("cudaq-realtime-bridge-cpu-roce: create", why);
    }
    slots.min(FPGA_SLOTS)
}

fn qp_number(text: &str) -> Result<Qpn, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = hex.map_or_else(|| text.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok());
    number
        .and_then(|n| Qpn::new(n).ok())
        .ok_or_else(|| "not a QP number (24 bits, decimal or 0x hex)".to_owned())
}

/// The arguments as given. Of a name that is given twice the last one counts.
struct Given<'a>(&'a [String]);

impl<'a> Given<'a> {
    fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|argument| argument == flag)
    }

    fn text(&self, name: &'static str) -> Result<Option<&'a str>, Refusal> {
        for (at, argument) in self.0.iter().enumerate().rev() {
            match argument.strip_prefix(name) {
                Some("") => {
                    let next = self.0.get(at + 1).filter(|next| !next.starts_with("--"));
                    return next.map(|next| Some(next.as_str())).ok_or(Refusal::NoValue(name));
                }
                Some(rest) if rest.starts_with('=') => return Ok(Some(&rest[1..])),
                _ => {}
            }
        }
        Ok(None)
    }

    fn parse<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Refusal> {
        let refused = |value: &str, why| Refusal::Option { option: name, value: value.to_owned(), why };
        self.text(name)?.map(|value| parse(value).map_err(|why| refused(value, why))).transpose()
    }

    fn value<T: FromStr>(&self, name: &'static str, expected: &str) -> Result<Option<T>, Refusal> {
        self.parse(name, |text| text.parse().map_err(|_| format!("it must be {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&arguments).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn the_defaults_are_the_known_ones() {
        let options = parse("program").expect("valid");
        let expected = Options {
            device: "mlx5_0".to_owned(),
            local_ip: None,
            peer: Peer::Rendezvous { port: 0 },
            num_slots: 8,
            slot_size: 256,
            frame_size: 256,
            unified: false,
        };
        assert_eq!(options, expected);
        assert_eq!(options.config().expect("valid").geometry().num_pages(), 8);
    }

    #[test]
    fn both_spellings_are_taken_and_strangers_passed_over() {
        let options = parse(
            "program --device=soft:127.0.0.9 --port 7000 --num-slots=16 --slot-size 512 --frame-size=100 \
             --gpu 3 --timeout=5 --unified --local-ip 127.0.0.9",
        )
        .expect("valid");
        assert_eq!(options.peer, Peer::Rendezvous { port: 7000 });
        assert_eq!((options.num_slots, options.slot_size, options.frame_size), (16, 512, 100));
        assert!(options.unified && options.local_ip == Some(Ipv4Addr::new(127, 0, 0, 9)));
        assert_eq!(options.config().expect("valid").mode(), Mode::Unified);
    }

    #[test]
    fn an_fpga_has_an_address_a_queue_pair_and_a_queue_of_64() {
        let options = parse("--qp_config=hsb_fpga --peer-ip=10.0.0.7 --num-slots=128").expect("valid");
        let fpga =
            |qp| PeerEndpoint { qpn: Qpn::from_low_bits(qp), rkey: None, ip: Ipv4Addr::new(10, 0, 0, 7) };
        assert_eq!((options.peer, options.num_slots), (Peer::Fpga(fpga(2)), 64));
        for (text, qp) in [("18", 18), ("0x12", 18), ("0XFFFFFF", 0xFF_FFFF)] {
            let line = format!("--qp_config hsb_fpga --peer-ip 10.0.0.7 --remote-qp {text}");
            assert_eq!(parse(&line).expect("valid").peer, Peer::Fpga(fpga(qp)));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (line, part) in [
            ("--qp_config=hsb_fpga", "--peer-ip"),
            ("--qp_config=other", "rendezvous or hsb_fpga"),
            ("--remote-qp=0x1000000", "24 bits"),
            ("--port=65536", "--port 65536"),
            ("--local-ip=localhost", "--local-ip localhost"),
            ("--num-slots --unified", "--num-slots needs a value"),
            ("--slot-size", "--slot-size needs a value"),
        ] {
            let refusal = parse(line).expect_err(line);
            assert!(refusal.contains(part), "{line}: {refusal}");
        }
        assert!(parse("--num-slots=12").expect("a number").config().is_err());
        assert!(parse("--frame-size=300").expect("a number").config().is_err());
    }
}
