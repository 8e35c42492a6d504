//! RPC frames, the function table and the loops that serve them from a ring
