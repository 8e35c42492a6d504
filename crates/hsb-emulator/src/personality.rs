//! Which of the FPGAs that there are is played.

use std::fmt;
use std::str::FromStr;

use roce_core::ImmediateLayout;
use roce_rendezvous::hsb::Uuid;

/// Which FPGA is played. Hosts must get along with both.
///
/// | | [`Fpga`](Self::Fpga) | [`Lenient`](Self::Lenient) |
/// | --- | --- | --- |
/// | sequence check, flags without a meaning | refused | not looked at |
/// | answers | reads always, writes on request | only on request |
/// | a write's answer | data 0 | data repeated |
/// | latched sequence number | told and kept | always 0 |
/// | unknown command in the answer | unchanged | with bit 7 set |
/// | other dword commands (0x01, 0x02, 0x11, 0x12) | refused | carried out as dwords |
/// | registers | those of the RTL; holes read [`UNDEFINED`](crate::UNDEFINED) | those of the emulator; else status 0x03 |
/// | virtual ports | 32 | 1 |
/// | the mask of virtual ports | holds frames back | not looked at |
/// | first page | 0, and then wherever the last frame was | 1 after each configuration |
/// | page arithmetic | 33 bits, as on the wire | 64 bits |
/// | metadata | a packet of its own | in the last data packet where it fits |
/// | PSN in metadata and immediate | 24 bits | 20 bits, where a packet's own has 24 |
/// | device reset | all is lost, silence, then it announces itself anew | no effect |
/// | BOOTP reply | the address is taken over | not looked at |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Personality {
    /// As the RTL of the HSB IP does it.
    #[default]
    Fpga,
    /// As the emulator that comes with the host's libraries does it.
    Lenient,
}

impl Personality {
    /// The version that it tells where no other one is asked for.
    pub const fn hsb_ip_version(self) -> u16 {
        match self {
            Self::Fpga => 0x2606,
            Self::Lenient => 0x2602,
        }
    }

    /// The design that it announces where no other one is asked for.
    pub const fn uuid(self) -> Uuid {
        match self {
            Self::Fpga => Uuid::from_u128(0x889b_7ce3_65a5_4247_8b05_4ff1_904c_3359),
            Self::Lenient => Uuid::from_u128(0x16af_139b_9d14_482f_9805_3feb_72ae_0cec),
        }
    }

    /// The checksum that it tells of its image, which is none.
    pub(crate) const fn fpga_crc(self) -> u16 {
        match self {
            Self::Fpga => 0,
            Self::Lenient => 0x5AA5,
        }
    }

    /// How it writes a frame's immediate, with that version.
    pub(crate) const fn immediate(self, hsb_ip_version: u16) -> ImmediateLayout {
        match self {
            Self::Lenient if !has_old_layout(hsb_ip_version) => ImmediateLayout::Hsb,
            _ => ImmediateLayout::of_version(hsb_ip_version as u32),
        }
    }
}

/// Whether a virtual port of that version has a register per page.
pub(crate) const fn has_old_layout(hsb_ip_version: u16) -> bool {
    hsb_ip_version < 0x2602
}

/// A word that names no personality.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no personality; take fpga or lenient")]
pub struct UnknownPersonality(String);

impl FromStr for Personality {
    type Err = UnknownPersonality;

    fn from_str(name: &str) -> Result<Self, UnknownPersonality> {
        match name {
            "fpga" => Ok(Self::Fpga),
            "lenient" => Ok(Self::Lenient),
            other => Err(UnknownPersonality(other.to_owned())),
        }
    }
}

impl fmt::Display for Personality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fpga => "fpga",
            Self::Lenient => "lenient",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_what_they_stand_for() {
        for personality in [Personality::Fpga, Personality::Lenient] {
            assert_eq!(personality.to_string().parse(), Ok(personality));
        }
        assert!("rtl".parse::<Personality>().is_err_and(|error| error.to_string().contains("lenient")));
        assert_eq!(Personality::Fpga.uuid().to_string(), "889b7ce3-65a5-4247-8b05-4ff1904c3359");
        assert_eq!(Personality::Lenient.uuid().to_string(), "16af139b-9d14-482f-9805-3feb72ae0cec");
    }

    #[test]
    fn the_emulator_names_4096_pages_before_the_hardware_did() {
        let layouts = [0x2510, 0x2602, 0x2606]
            .map(|version| [Personality::Fpga, Personality::Lenient].map(|p| p.immediate(version)));
        let [old, new] = [ImmediateLayout::Hsb2510, ImmediateLayout::Hsb];
        assert_eq!(layouts, [[old, old], [old, new], [new, new]]);
    }
}
