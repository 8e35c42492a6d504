//! A software FPGA: control plane, player, capture and a RoCEv2 data plane
