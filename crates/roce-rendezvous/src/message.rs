//! What the two ends tell each other, and its two wire forms.
//!
//! Plain form, 12 bytes: QP number, rkey, IPv4 address, each a big-endian `u32`. A QP number has 24 bits, so
//! the first byte is 0x00. JSON form: one object on one line, ended by `\n`; it begins with `{`, carries the
//! geometry and the wish for a lease too, and can carry `{"error": "…"}` or `{"connected": true}` instead of an offer.

use std::net::Ipv4Addr;

use roce_core::{LocalEndpoint, Mtu, PeerEndpoint, Qpn, Rkey};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::MessageError;
use crate::rendezvous::Peer;

/// The version of the JSON form.
pub const VERSION: u32 = 1;

/// Bytes of the plain form.
pub const PLAIN_LEN: usize = 12;

/// The longest JSON line, its `\n` included, in bytes.
pub const MAX_LINE: usize = 4096;

/// Characters of a refusal's reason that are sent. JSON escapes one to six bytes, which stays below [`MAX_LINE`].
const MAX_REASON: usize = 512;

/// One end as it offers itself to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The key of its RX ring.
    pub rkey: Rkey,
    /// Its RoCE address.
    pub ip: Ipv4Addr,
    /// Its rings, where told. The plain form cannot tell them.
    pub geometry: Option<Geometry>,
    /// Whether it would keep the connection as a [`Lease`](crate::socket::Lease). The plain form cannot tell.
    pub lease: bool,
}

/// The shape of an end's rings and of what it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Slots of each ring, at least 1.
    pub slots: u32,
    /// Bytes from one slot to the next.
    pub slot_size: u32,
    /// Bytes of each message it sends, 1 to `slot_size`.
    pub frame_size: u32,
    /// Its path MTU.
    pub mtu: Mtu,
    /// How it sends.
    pub tx_mode: TxMode,
}

/// The verb an end sends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxMode {
    /// UC SEND: the receiver chooses the slot.
    Send,
    /// UC RDMA WRITE WITH IMMEDIATE: the sender chooses the slot and writes it by address.
    WriteWithImm,
}

impl TxMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::WriteWithImm => "write_with_imm",
        }
    }
}

impl From<LocalEndpoint> for Offer {
    fn from(local: LocalEndpoint) -> Self {
        Self { qpn: local.qpn, rkey: local.rkey, ip: local.ip, geometry: None, lease: false }
    }
}

impl Offer {
    /// The same offer with its rings told.
    #[must_use]
    pub const fn with_geometry(self, geometry: Geometry) -> Self {
        Self { geometry: Some(geometry), ..self }
    }

    /// The same offer, with or without the wish for a lease.
    #[must_use]
    pub const fn with_lease(self, lease: bool) -> Self {
        Self { lease, ..self }
    }

    /// The end that made this offer, as its peer sees it.
    pub const fn peer(&self) -> Peer {
        let endpoint = PeerEndpoint { qpn: self.qpn, rkey: Some(self.rkey), ip: self.ip };
        Peer { endpoint, geometry: self.geometry }
    }

    /// The plain form; drops the geometry and the lease.
    pub fn to_plain(&self) -> [u8; PLAIN_LEN] {
        let mut bytes = [0; PLAIN_LEN];
        bytes[..4].copy_from_slice(&self.qpn.get().to_be_bytes());
        bytes[4..8].copy_from_slice(&self.rkey.get().to_be_bytes());
        bytes[8..].copy_from_slice(&self.ip.octets());
        bytes
    }

    /// Reads the plain form. Fails on a QP number above 24 bits and on an address that no host has.
    pub fn from_plain(bytes: &[u8; PLAIN_LEN]) -> Result<Self, MessageError> {
        let [q0, q1, q2, q3, k0, k1, k2, k3, a, b, c, d] = *bytes;
        Ok(Self {
            qpn: qpn(u32::from_be_bytes([q0, q1, q2, q3]))?,
            rkey: Rkey::new(u32::from_be_bytes([k0, k1, k2, k3])),
            ip: host_ip(Ipv4Addr::new(a, b, c, d))?,
            geometry: None,
            lease: false,
        })
    }
}

/// What a JSON line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// An end offers itself.
    Offer(Offer),
    /// An end gives up, and why.
    Refusal(String),
    /// A caller that leases is connected: what others say by closing.
    Connected,
}

impl Message {
    /// The line, ended by `\n`, at most [`MAX_LINE`] bytes: a longer reason is cut.
    pub fn to_line(&self) -> String {
        let json = match self {
            Self::Offer(offer) => serde_json::to_string(&OfferLine::from(offer)),
            Self::Refusal(reason) => {
                let error: String = reason.chars().take(MAX_REASON).collect();
                serde_json::to_string(&RefusalLine { error })
            }
            Self::Connected => serde_json::to_string(&ConnectedLine { connected: true }),
        };
        json.expect("numbers and strings always serialise") + "\n"
    }

    /// Reads one line, with or without its `\n`. Unknown keys are ignored; the error names the key at fault.
    pub fn from_line(line: &[u8]) -> Result<Self, MessageError> {
        if line.len() > MAX_LINE {
            return Err(MessageError::LineTooLong);
        }
        let object: Map<String, Value> = serde_json::from_slice(line).map_err(MessageError::NotJson)?;
        match object.get("error") {
            Some(Value::String(reason)) => Ok(Self::Refusal(reason.clone())),
            Some(other) => Err(bad("error", format!("must be a string, not {}", shown(other)))),
            None if flag(&object, "connected")? => Ok(Self::Connected),
            None => read_offer(&object).map(Self::Offer),
        }
    }
}

/// Whether the two ends can work together, as far as both told their geometry.
///
/// For each direction, from the end that sends to the end that receives:
///
/// - `frame_size` of the sender must fit `slot_size` of the receiver.
/// - A sender that writes puts slot `k` at `k * slot_size` of its own and names `k` in the immediate, so
///   `slot_size` and `slots` must be the same on both ends.
/// - `mtu` may differ only while a frame fits one packet of either. A longer message is cut into packets of
///   exactly the sender's MTU, and a receiver that counts in another MTU drops them all.
///
/// The error names the field and speaks of caller and service, so that it reads the same on both ends.
pub fn check_compatible(caller: &Offer, service: &Offer) -> Result<(), MessageError> {
    let (Some(from_caller), Some(from_service)) = (caller.geometry, service.geometry) else { return Ok(()) };
    check_direction(("caller", &from_caller), ("service", &from_service))?;
    check_direction(("service", &from_service), ("caller", &from_caller))
}

type Role<'a> = (&'static str, &'a Geometry);

fn check_direction((sender, tx): Role<'_>, (receiver, rx): Role<'_>) -> Result<(), MessageError> {
    let refuse = |field, why| Err(MessageError::Incompatible { field, why });
    if tx.frame_size > rx.slot_size {
        let (frame, slot) = (tx.frame_size, rx.slot_size);
        let why = format!("the {sender} sends {frame} bytes, a slot of the {receiver} holds {slot}");
        return refuse("frame_size", why);
    }
    if tx.tx_mode == TxMode::WriteWithImm && tx.slot_size != rx.slot_size {
        let (ours, theirs) = (tx.slot_size, rx.slot_size);
        let why = format!("the {sender} writes slots of {ours} bytes, those of the {receiver} have {theirs}");
        return refuse("slot_size", why);
    }
    if tx.tx_mode == TxMode::WriteWithImm && tx.slots != rx.slots {
        let (ours, theirs) = (tx.slots, rx.slots);
        return refuse("slots", format!("the {sender} writes {ours} slots, the {receiver} has {theirs}"));
    }
    let one_packet = tx.mtu.min(rx.mtu).bytes();
    if tx.mtu != rx.mtu && tx.frame_size > one_packet {
        let (ours, theirs, frame) = (tx.mtu, rx.mtu, tx.frame_size);
        let why =
            format!("{ours} at the {sender}, {theirs} at the {receiver}, and frames have {frame} bytes");
        return refuse("mtu", why);
    }
    Ok(())
}

/// The offer's keys in the order in which they are written.
#[derive(Serialize)]
struct OfferLine {
    version: u32,
    qp: u32,
    rkey: u32,
    ip: Ipv4Addr,
    #[serde(flatten)]
    geometry: Option<GeometryKeys>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<bool>,
}

#[derive(Serialize)]
struct GeometryKeys {
    slots: u32,
    slot_size: u32,
    frame_size: u32,
    mtu: u32,
    tx_mode: &'static str,
}

#[derive(Serialize)]
struct RefusalLine {
    error: String,
}

#[derive(Serialize)]
struct ConnectedLine {
    connected: bool,
}

impl From<&Offer> for OfferLine {
    fn from(offer: &Offer) -> Self {
        let geometry = offer.geometry.map(|g| GeometryKeys {
            slots: g.slots,
            slot_size: g.slot_size,
            frame_size: g.frame_size,
            mtu: g.mtu.bytes(),
            tx_mode: g.tx_mode.name(),
        });
        let lease = offer.lease.then_some(true);
        Self { version: VERSION, qp: offer.qpn.get(), rkey: offer.rkey.get(), ip: offer.ip, geometry, lease }
    }
}

fn read_offer(object: &Map<String, Value>) -> Result<Offer, MessageError> {
    let version = number(object, "version")?;
    if version != VERSION {
        return Err(bad("version", format!("this end speaks version {VERSION}, not {version}")));
    }
    Ok(Offer {
        qpn: qpn(number(object, "qp")?)?,
        rkey: Rkey::new(number(object, "rkey")?),
        ip: host_ip(parse(object, "ip", "an IPv4 address in a string", |s| s.parse().ok())?)?,
        geometry: read_geometry(object)?,
        lease: flag(object, "lease")?,
    })
}

/// All five keys or none: half a geometry could not be checked.
fn read_geometry(object: &Map<String, Value>) -> Result<Option<Geometry>, MessageError> {
    const KEYS: [&str; 5] = ["slots", "slot_size", "frame_size", "mtu", "tx_mode"];
    if !KEYS.iter().any(|key| object.contains_key(*key)) {
        return Ok(None);
    }
    let slots = number(object, "slots")?;
    let slot_size = number(object, "slot_size")?;
    let frame_size = number(object, "frame_size")?;
    let mtu = number(object, "mtu")?;
    let mtu = Mtu::try_from(mtu).map_err(|e| bad("mtu", e.to_string()))?;
    let tx_mode = parse(object, "tx_mode", "\"send\" or \"write_with_imm\"", |name| {
        [TxMode::Send, TxMode::WriteWithImm].into_iter().find(|mode| mode.name() == name)
    })?;
    if slots == 0 {
        return Err(bad("slots", "must be at least 1".into()));
    }
    if frame_size == 0 || frame_size > slot_size {
        return Err(bad("frame_size", format!("must be 1 to slot_size ({slot_size}), not {frame_size}")));
    }
    Ok(Some(Geometry { slots, slot_size, frame_size, mtu, tx_mode }))
}

fn number(object: &Map<String, Value>, key: &'static str) -> Result<u32, MessageError> {
    let value = present(object, key)?;
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
    number.ok_or_else(|| bad(key, format!("must be a whole number below 2^32, not {}", shown(value))))
}

/// A key that may be missing, which is false.
fn flag(object: &Map<String, Value>, key: &'static str) -> Result<bool, MessageError> {
    match object.get(key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(bad(key, format!("must be true or false, not {}", shown(other)))),
    }
}

fn parse<T>(
    object: &Map<String, Value>,
    key: &'static str,
    wanted: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, MessageError> {
    let value = present(object, key)?;
    let parsed = value.as_str().and_then(parse);
    parsed.ok_or_else(|| bad(key, format!("must be {wanted}, not {}", shown(value))))
}

fn present<'a>(object: &'a Map<String, Value>, key: &'static str) -> Result<&'a Value, MessageError> {
    object.get(key).ok_or_else(|| bad(key, "is missing".into()))
}

/// As JSON for a terminal: JSON lets characters stand that control one.
fn shown(value: &Value) -> String {
    let json = value.to_string();
    let show =
        |c: char| if matches!(c, '"' | '\'' | '\\') { c.to_string() } else { c.escape_debug().to_string() };
    json.chars().map(show).collect()
}

fn qpn(value: u32) -> Result<Qpn, MessageError> {
    Qpn::new(value).map_err(|e| bad("qp", e.to_string()))
}

fn host_ip(ip: Ipv4Addr) -> Result<Ipv4Addr, MessageError> {
    if ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() {
        return Err(bad("ip", format!("{ip} is no host's address")));
    }
    Ok(ip)
}

fn bad(field: &'static str, why: String) -> MessageError {
    MessageError::Field { field, why }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GEOMETRY: Geometry =
        Geometry { slots: 64, slot_size: 384, frame_size: 256, mtu: Mtu::B1024, tx_mode: TxMode::Send };
    const OFFER: Offer = Offer {
        qpn: Qpn::from_low_bits(0x01_0203),
        rkey: Rkey::new(0xCAFE_BABE),
        ip: Ipv4Addr::new(10, 0, 0, 1),
        geometry: Some(GEOMETRY),
        lease: false,
    };

    const PLAIN: [u8; 12] = [0x00, 0x01, 0x02, 0x03, 0xCA, 0xFE, 0xBA, 0xBE, 10, 0, 0, 1];
    const LINE: &str = concat!(
        r#"{"version":1,"qp":66051,"rkey":3405691582,"ip":"10.0.0.1","slots":64,"slot_size":384,"#,
        r#""frame_size":256,"mtu":1024,"tx_mode":"send"}"#,
        "\n"
    );

    fn field_of(line: &str) -> &'static str {
        match Message::from_line(line.as_bytes()) {
            Err(MessageError::Field { field, .. }) => field,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn plain_bytes() {
        assert_eq!(OFFER.to_plain(), PLAIN);
        let read = Offer::from_plain(&PLAIN).unwrap();
        assert_eq!(read, Offer { geometry: None, ..OFFER });
    }

    #[test]
    fn json_bytes() {
        assert_eq!(Message::Offer(OFFER).to_line(), LINE);
        assert_eq!(Message::from_line(LINE.as_bytes()).unwrap(), Message::Offer(OFFER));
        let bare = Offer { geometry: None, ..OFFER };
        let line = "{\"version\":1,\"qp\":66051,\"rkey\":3405691582,\"ip\":\"10.0.0.1\"}\n";
        assert_eq!(Message::Offer(bare).to_line(), line);
        assert_eq!(Message::Refusal("a \"b\"\nc".into()).to_line(), "{\"error\":\"a \\\"b\\\"\\nc\"}\n");
        assert_eq!(Message::Connected.to_line(), "{\"connected\":true}\n");
        assert_eq!(Message::from_line(b"{\"connected\":true}").unwrap(), Message::Connected);
    }

    #[test]
    fn a_lease_is_told_only_where_it_is_offered() {
        let line = LINE.replacen("\"send\"", "\"send\",\"lease\":true", 1);
        assert_eq!(Message::Offer(OFFER.with_lease(true)).to_line(), line);
        assert_eq!(Message::from_line(line.as_bytes()).unwrap(), Message::Offer(OFFER.with_lease(true)));
        let no = line.replacen("\"lease\":true", "\"lease\":false", 1);
        assert_eq!(Message::from_line(no.as_bytes()).unwrap(), Message::Offer(OFFER));
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let line = LINE.replacen('{', r#"{"colour":{"deep":[1,2]},"psn":7,"#, 1);
        assert_eq!(Message::from_line(line.as_bytes()).unwrap(), Message::Offer(OFFER));
    }

    #[test]
    fn a_bad_key_is_named() {
        for (good, bad, field) in [
            ("\"version\":1", "\"version\":2", "version"),
            ("\"version\":1,", "", "version"),
            ("66051", "16777216", "qp"),
            ("66051", "-1", "qp"),
            ("66051", "1.5", "qp"),
            ("3405691582", "4294967296", "rkey"),
            ("3405691582", "\"0xCAFEBABE\"", "rkey"),
            ("\"10.0.0.1\"", "\"10.0.0\"", "ip"),
            ("\"10.0.0.1\"", "\"0.0.0.0\"", "ip"),
            ("\"10.0.0.1\"", "167772161", "ip"),
            ("\"slots\":64", "\"slots\":0", "slots"),
            ("\"slots\":64,", "", "slots"),
            ("\"slot_size\":384", "\"slot_size\":255", "frame_size"),
            ("\"frame_size\":256", "\"frame_size\":0", "frame_size"),
            ("\"mtu\":1024", "\"mtu\":1500", "mtu"),
            ("\"send\"", "\"read\"", "tx_mode"),
            (",\"tx_mode\":\"send\"", "", "tx_mode"),
            ("{", "{\"error\":5,", "error"),
            ("{", "{\"lease\":1,", "lease"),
            ("{", "{\"connected\":null,", "connected"),
        ] {
            assert!(LINE.contains(good));
            assert_eq!(field_of(&LINE.replacen(good, bad, 1)), field, "{bad}");
        }
    }

    #[test]
    fn what_the_peer_says_is_shown_without_control_characters() {
        let evil = "\u{1b}[2J\u{7f}\u{9b}31m\u{202e}\"\\é";
        for key in ["version", "qp", "ip", "tx_mode", "lease"] {
            let mut object: Map<String, Value> = serde_json::from_str(LINE).unwrap();
            object.insert(key.to_owned(), evil.into());
            let error =
                Message::from_line(Value::from(object).to_string().as_bytes()).unwrap_err().to_string();
            let said = r#"not "\u001b[2J\u{7f}\u{9b}31m\u{202e}\"\\é""#;
            assert!(error.contains(said), "{key}: {error:?}");
        }
        for line in ["\"\u{9b}\"", "{\"qp\u{9b}\u{202e}"] {
            let error = Message::from_line(line.as_bytes()).unwrap_err().to_string();
            assert!(!error.contains(['\u{9b}', '\u{202e}']), "{error:?}");
        }
    }

    #[test]
    fn what_is_no_object_is_no_message() {
        for line in ["", "\n", "{", "[]", "null", "{} {}", "{\"version\":1"] {
            assert!(matches!(Message::from_line(line.as_bytes()), Err(MessageError::NotJson(_))), "{line}");
        }
        let deep = "{\"a\":".repeat(600) + "1";
        assert!(matches!(Message::from_line(deep.as_bytes()), Err(MessageError::NotJson(_))));
        let long = vec![b' '; MAX_LINE + 1];
        assert!(matches!(Message::from_line(&long), Err(MessageError::LineTooLong)));
    }

    fn verdict(caller: Geometry, service: Geometry) -> Result<(), &'static str> {
        let offer = |g| Offer { geometry: Some(g), ..OFFER };
        check_compatible(&offer(caller), &offer(service)).map_err(|error| match error {
            MessageError::Incompatible { field, .. } => field,
            other => panic!("{other}"),
        })
    }

    #[test]
    fn geometry_that_cannot_work_together() {
        let write = Geometry { tx_mode: TxMode::WriteWithImm, ..GEOMETRY };
        let long = Geometry { slot_size: 8192, frame_size: 1025, ..GEOMETRY };
        for (a, b, expected) in [
            (GEOMETRY, GEOMETRY, Ok(())),
            (GEOMETRY, write, Ok(())),
            // A SEND lands wherever the receiver likes.
            (GEOMETRY, Geometry { slots: 8, slot_size: 512, ..GEOMETRY }, Ok(())),
            (GEOMETRY, Geometry { slot_size: 255, frame_size: 8, ..GEOMETRY }, Err("frame_size")),
            (GEOMETRY, Geometry { slot_size: 256, ..GEOMETRY }, Ok(())),
            (write, Geometry { slot_size: 512, ..GEOMETRY }, Err("slot_size")),
            (write, Geometry { slots: 32, ..GEOMETRY }, Err("slots")),
            // One packet of either MTU carries the frame.
            (GEOMETRY, Geometry { mtu: Mtu::B256, ..GEOMETRY }, Ok(())),
            (long, Geometry { mtu: Mtu::B4096, ..long }, Err("mtu")),
            (long, long, Ok(())),
            // One packet for the sender, more than the receiver's MTU.
            (GEOMETRY, Geometry { frame_size: 384, mtu: Mtu::B256, ..GEOMETRY }, Err("mtu")),
        ] {
            assert_eq!(verdict(a, b), expected, "{a:?} and {b:?}");
            assert_eq!(verdict(b, a), expected, "{b:?} and {a:?}");
        }
    }

    #[test]
    fn an_end_that_tells_no_geometry_fits_any() {
        let bare = Offer { geometry: None, ..OFFER };
        assert!(check_compatible(&bare, &OFFER).is_ok());
        assert!(check_compatible(&OFFER, &bare).is_ok());
    }

    fn any_host() -> impl Strategy<Value = Ipv4Addr> {
        any::<Ipv4Addr>().prop_filter("a host's address", |ip| host_ip(*ip).is_ok())
    }

    fn any_geometry() -> impl Strategy<Value = Geometry> {
        let mtu = prop::sample::select(&Mtu::ALL[..]);
        let tx_mode = prop_oneof![Just(TxMode::Send), Just(TxMode::WriteWithImm)];
        let sizes = (1..u32::MAX).prop_flat_map(|slot| (Just(slot), 1..=slot));
        (1..u32::MAX, sizes, mtu, tx_mode).prop_map(|(slots, (slot_size, frame_size), mtu, tx_mode)| {
            Geometry { slots, slot_size, frame_size, mtu, tx_mode }
        })
    }

    fn any_offer() -> impl Strategy<Value = Offer> {
        let qpn = any::<u32>().prop_map(Qpn::from_low_bits);
        (qpn, any::<u32>(), any_host(), prop::option::of(any_geometry()), any::<bool>()).prop_map(
            |(qpn, rkey, ip, geometry, lease)| Offer { qpn, rkey: Rkey::new(rkey), ip, geometry, lease },
        )
    }

    /// Lines that look like offers: every known key, with values of every kind.
    fn any_object() -> impl Strategy<Value = String> {
        let key = prop::sample::select(
            &[
                "version",
                "qp",
                "rkey",
                "ip",
                "slots",
                "slot_size",
                "frame_size",
                "mtu",
                "tx_mode",
                "error",
                "lease",
                "connected",
                "x",
            ][..],
        );
        let value = prop_oneof![
            any::<u64>().prop_map(Value::from),
            (0u32..3).prop_map(Value::from),
            prop::sample::select(&Mtu::ALL[..]).prop_map(|mtu| Value::from(mtu.bytes())),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            prop::sample::select(&["send", "write_with_imm", "10.0.0.1"][..]).prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
            Just(Value::Array(vec![])),
        ];
        prop::collection::btree_map(key, value, 0..12).prop_map(|map| Value::from_iter(map).to_string())
    }

    proptest! {
        #[test]
        fn any_offer_survives_both_forms(offer in any_offer()) {
            prop_assert_eq!(Offer::from_plain(&offer.to_plain()).unwrap(), Offer { geometry: None, lease: false, ..offer });
            let line = Message::Offer(offer).to_line();
            prop_assert!(line.len() <= MAX_LINE);
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            prop_assert_eq!(Message::from_line(line.as_bytes()).unwrap(), Message::Offer(offer));
        }

        #[test]
        fn any_12_bytes_read_back_or_are_refused(bytes: [u8; 12]) {
            match Offer::from_plain(&bytes) {
                Ok(offer) => prop_assert_eq!(offer.to_plain(), bytes),
                Err(MessageError::Field { field: "qp", .. }) => prop_assert_ne!(bytes[0], 0),
                Err(MessageError::Field { field: "ip", .. }) => prop_assert!(bytes[8] == 0 || bytes[8] >= 224),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }

        #[test]
        fn any_refusal_survives_up_to_its_limit(reason: String, times in 1usize..200) {
            let reason = reason.repeat(times);
            let line = Message::Refusal(reason.clone()).to_line();
            prop_assert!(line.len() <= MAX_LINE);
            let Message::Refusal(read) = Message::from_line(line.as_bytes()).unwrap() else { panic!("{line}") };
            prop_assert!(reason.starts_with(&read));
            prop_assert_eq!(read.chars().count(), reason.chars().count().min(MAX_REASON));
        }

        #[test]
        fn a_reason_of_control_characters_fits_the_line(c in 0u8..32, n in 0usize..9000) {
            let reason = char::from(c).to_string().repeat(n);
            prop_assert!(Message::Refusal(reason).to_line().len() <= MAX_LINE);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::from_line(&bytes);
        }

        #[test]
        fn what_is_accepted_reads_the_same_again(line in any_object()) {
            if let Ok(message) = Message::from_line(line.as_bytes()) {
                let again = Message::from_line(message.to_line().as_bytes()).unwrap();
                match (&message, &again) {
                    (Message::Refusal(whole), Message::Refusal(cut)) => prop_assert!(whole.starts_with(cut)),
                    _ => prop_assert_eq!(&message, &again),
                }
            }
        }

        #[test]
        fn compatibility_does_not_depend_on_who_calls(a in any_geometry(), b in any_geometry()) {
            prop_assert_eq!(verdict(a, b).is_ok(), verdict(b, a).is_ok());
            prop_assert_eq!(verdict(a, a), Ok(()));
        }
    }
}
