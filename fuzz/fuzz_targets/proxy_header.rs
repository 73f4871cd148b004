//! Any bytes as the header of the PROXY protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::proxy_header(data));
