//! Out-of-band exchange of endpoints: TCP, and the register control plane of an FPGA
