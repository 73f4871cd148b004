//! A client with any bytes from a server, and a client and a server that talk to each other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::client(data));
