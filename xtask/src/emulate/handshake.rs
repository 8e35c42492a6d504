//! The lines by which emulator and bridge say how they are reached. Read strictly: a line that is nearly right
//! is a fault to see, not one to guess at.

/// The emulator's queue pair, from `  QP Number: 0x<hex>`.
pub(super) fn qp_number(line: &str) -> Option<u32> {
    hex(line.strip_prefix("  QP Number: ")?).and_then(|qpn| u32::try_from(qpn).ok())
}

/// How the bridge is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BridgeEnd {
    pub(super) qpn: u32,
    pub(super) rkey: u32,
    pub(super) buffer: u64,
}

/// Gathers the bridge's lines until all are there.
#[derive(Debug, Default)]
pub(super) struct BridgeLines {
    ready: bool,
    qpn: Option<u32>,
    rkey: Option<u32>,
    buffer: Option<u64>,
}

impl BridgeLines {
    /// The bridge's end once this line completes it.
    pub(super) fn take(&mut self, line: &str) -> Option<BridgeEnd> {
        self.ready |= line == "=== Bridge Ready ===";
        self.qpn = self.qpn.or_else(|| qp_number(line));
        self.rkey = self.rkey.or_else(|| decimal(line.strip_prefix("  RKey: ")?));
        self.buffer = self.buffer.or_else(|| hex(line.strip_prefix("  Buffer Addr: ")?));
        let (Some(qpn), Some(rkey), Some(buffer), true) = (self.qpn, self.rkey, self.buffer, self.ready)
        else {
            return None;
        };
        Some(BridgeEnd { qpn, rkey, buffer })
    }
}

fn hex(value: &str) -> Option<u64> {
    let digits = value.strip_prefix("0x")?;
    let all_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    if all_hex { u64::from_str_radix(digits, 16).ok() } else { None }
}

fn decimal(value: &str) -> Option<u32> {
    if value.bytes().all(|b| b.is_ascii_digit()) { value.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulators_line() {
        assert_eq!(qp_number("  QP Number: 0x12"), Some(0x12));
        for bad in [
            "QP Number: 0x12",
            "  QP Number: 12",
            "  QP Number: 0x",
            "  QP Number: 0x12 ",
            "  QP Number: 0x+1",
        ] {
            assert_eq!(qp_number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_bridge_is_reached_once_all_lines_are_there() {
        let mut lines = BridgeLines::default();
        for line in ["starting", "=== Bridge Ready ===", "  QP Number: 0xab", "  RKey: 4294967295"] {
            assert_eq!(lines.take(line), None, "{line:?}");
        }
        let end = BridgeEnd { qpn: 0xab, rkey: u32::MAX, buffer: 0 };
        assert_eq!(lines.take("  Buffer Addr: 0x0"), Some(end));
    }

    #[test]
    fn without_the_ready_line_it_is_not_ready() {
        let mut lines = BridgeLines::default();
        for line in ["  QP Number: 0x1", "  RKey: 2", "  Buffer Addr: 0x3"] {
            assert_eq!(lines.take(line), None);
        }
        assert_eq!(lines.take("=== Bridge Ready ==="), Some(BridgeEnd { qpn: 1, rkey: 2, buffer: 3 }));
    }

    #[test]
    fn an_rkey_in_hex_is_not_taken() {
        let mut lines = BridgeLines::default();
        lines.take("  RKey: 0x10");
        lines.take("  RKey: -1");
        assert_eq!(lines.rkey, None);
    }
}
