//! Parses any text as a JSON-RPC message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::envelope(data));
