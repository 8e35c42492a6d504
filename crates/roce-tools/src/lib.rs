//! The parts of the programs `hsb-bridge-cpu`, `hsb-fpga-emulator` and `hsb-fpga-playback`.
//!
//! - [`decoder`]: real decoding of real syndromes, from a detector error model.

#![forbid(unsafe_code)]

pub mod decoder;
