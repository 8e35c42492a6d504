//! The transceiver: two rings, one UC queue pair, the threads between them
