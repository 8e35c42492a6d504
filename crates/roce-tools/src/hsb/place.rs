//! Which stream of a board is meant.

use clap::Args;
use roce_rendezvous::hsb::{Board, Place, regs};

use crate::Error;
use crate::cli::number;

/// Which stream of a board is meant: by sensor and data plane, or by the addresses of the registers.
#[derive(Debug, Clone, Default, Args)]
pub struct PlaceOptions {
    /// The sensor.
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value = "0")]
    pub sensor: u32,
    /// The board's Ethernet port [default: the one that is spoken to, where it was discovered, else 0].
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    pub data_plane: Option<u32>,
    /// Sensor interfaces of each sensor [default: as the board's kind has it, where it was discovered].
    #[arg(long, value_name = "N", value_parser = number::<u32>)]
    pub sifs_per_sensor: Option<u32>,
    /// The virtual port's registers, instead of those of the sensor.
    #[arg(long, value_name = "ADDR", value_parser = number::<u32>)]
    pub vp_address: Option<u32>,
    /// The host interface's registers, instead of those of the data plane.
    #[arg(long, value_name = "ADDR", value_parser = number::<u32>)]
    pub hif_address: Option<u32>,
}

impl PlaceOptions {
    /// Where the registers lie, on `board` where it was discovered.
    pub fn place(&self, board: Option<&Board>) -> Result<Place, Error> {
        let mut place = self.by_number(board)?;
        if let Some(address) = self.vp_address {
            (place.vp_address, place.vp_mask) = (address, mask_at(address)?);
        }
        place.hif_address = self.hif_address.unwrap_or(place.hif_address);
        Ok(place)
    }

    fn by_number(&self, board: Option<&Board>) -> Result<Place, Error> {
        let data_plane = self.data_plane.unwrap_or_else(|| board.map_or(0, Board::data_plane));
        let kind = board.and_then(|board| board.kind);
        match (self.sifs_per_sensor, kind) {
            (Some(sifs), _) => Ok(Place::new(self.sensor, sifs, data_plane)?),
            (None, Some(kind)) => Ok(kind.place(self.sensor, data_plane)?),
            (None, None) if self.sensor == 0 => Ok(Place::new(0, 1, data_plane)?),
            (None, None) => Err(Error::Options(format!(
                "--sensor {} of a board whose kind is not known; give --sifs-per-sensor too, or leave out --hsb-ip to \
                 have the board discovered",
                self.sensor
            ))),
        }
    }
}

/// The bit of the virtual port at `address`; `None` where an FPGA has none.
pub(crate) fn port_mask(address: u32) -> Option<u32> {
    let offset = address.checked_sub(regs::VP_ADDRESS)?;
    let port = offset / regs::VP_STRIDE;
    (offset.is_multiple_of(regs::VP_STRIDE) && port < regs::VP_COUNT).then(|| 1 << port)
}

fn mask_at(address: u32) -> Result<u32, Error> {
    port_mask(address).ok_or_else(|| {
        Error::Options(format!(
            "--vp-address {address:#x} is no virtual port: they lie at {:#x}, {:#x}, and so on, {} of them",
            regs::VP_ADDRESS,
            regs::VP_ADDRESS + regs::VP_STRIDE,
            regs::VP_COUNT
        ))
    })
}

#[cfg(test)]
mod tests {
    use roce_rendezvous::hsb::Uuid;

    use super::*;
    use crate::hsb::tests::heard;

    const LITE: Uuid = Uuid::from_u128(0x889b7ce3_65a5_4247_8b05_4ff1904c3359);

    #[test]
    fn a_discovered_board_knows_its_sensors() {
        let board = heard(&[(1, 1)], LITE).remove(0);
        let sensor = |sensor| PlaceOptions { sensor, ..PlaceOptions::default() };
        let place = sensor(1).place(Some(&board)).unwrap();
        assert_eq!((place.vp_address, place.vp_mask, place.hif_address), (0x1080, 4, 0x0201_0300));
        assert!(sensor(3).place(Some(&board)).unwrap_err().to_string().contains("hololink-lite"));
        let error = sensor(1).place(None).unwrap_err().to_string();
        assert!(error.contains("--sifs-per-sensor"), "{error}");
        assert_eq!(sensor(0).place(None).unwrap(), Place::FIRST);
    }

    #[test]
    fn what_is_told_goes_before_what_is_known() {
        let options = PlaceOptions {
            sensor: 1,
            data_plane: Some(1),
            sifs_per_sensor: Some(1),
            ..PlaceOptions::default()
        };
        let place = options.place(None).unwrap();
        assert_eq!((place.vp_address, place.vp_mask, place.hif_address), (0x1040, 2, 0x0201_0300));
        let elsewhere = PlaceOptions { vp_address: Some(0x10C0), hif_address: Some(0x800), ..options };
        let place = elsewhere.place(None).unwrap();
        assert_eq!((place.vp_address, place.vp_mask, place.hif_address), (0x10C0, 8, 0x800));
        for bad in [0, 0x1004, 0x1800] {
            let options = PlaceOptions { vp_address: Some(bad), ..PlaceOptions::default() };
            assert!(options.place(None).unwrap_err().to_string().contains("--vp-address"));
        }
    }
}
