//! Slot rings with one flag per slot, in host memory
