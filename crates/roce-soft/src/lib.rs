//! RoCEv2 UC queue pairs in userspace, over a UDP socket
