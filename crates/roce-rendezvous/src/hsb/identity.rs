//! Who a board is: its Ethernet address, its serial number and the UUID of its design.

use std::fmt;
use std::str::FromStr;

/// Text that names no Ethernet address or UUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {form}")]
pub struct IdentityError {
    text: String,
    form: &'static str,
}

/// An Ethernet address. Displays and parses as `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let bytes: Option<Vec<u8>> = text.split(':').map(hex_byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| IdentityError {
            text: text.to_owned(),
            form: "an Ethernet address such as 02:00:00:00:00:01",
        })
    }
}

/// A board's serial number: the same on all of its data planes. Displays as 14 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(pub [u8; 7]);

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Which design a board carries. Displays and parses as `889b7ce3-65a5-4247-8b05-4ff1904c3359`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The bytes in the order of the text.
    pub const fn from_u128(value: u128) -> Self {
        Self(value.to_be_bytes())
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let groups: Vec<&str> = text.split('-').collect();
        let shaped = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]);
        let digits = groups.concat();
        let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
        let value = if shaped && hex { u128::from_str_radix(&digits, 16).ok() } else { None };
        value.map(Self::from_u128).ok_or_else(|| IdentityError {
            text: text.to_owned(),
            form: "a UUID such as 889b7ce3-65a5-4247-8b05-4ff1904c3359",
        })
    }
}

/// Exactly two hex digits; `from_str_radix` alone takes a sign too.
fn hex_byte(digits: &str) -> Option<u8> {
    let two = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if two { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses_have_six_bytes_in_hex() {
        assert_eq!("02:00:fe:DC:0a:01".parse(), Ok(Mac([2, 0, 0xFE, 0xDC, 10, 1])));
        assert_eq!(Mac([2, 0, 0xFE, 0xDC, 10, 1]).to_string(), "02:00:fe:dc:0a:01");
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "02-00-00-00-00-01",
            "+2:00:00:00:00:01",
        ] {
            assert!(bad.parse::<Mac>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn uuids_are_five_groups_of_hex() {
        let text = "889b7ce3-65a5-4247-8b05-4ff1904c3359";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!((uuid.0[0], uuid.0[15]), (0x88, 0x59));
        assert_eq!(uuid.to_string(), text);
        for bad in
            ["", "889b7ce365a542478b054ff1904c3359", "+89b7ce3-65a5-4247-8b05-4ff1904c3359", &text[1..]]
        {
            assert!(bad.parse::<Uuid>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn serials_are_hex_without_separators() {
        assert_eq!(Serial([3, 1, 4, 1, 5, 9, 3]).to_string(), "03010401050903");
    }
}
