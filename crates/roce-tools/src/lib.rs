//! Programs: bridge, software FPGA and playback
