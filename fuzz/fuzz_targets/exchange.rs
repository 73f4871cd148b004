//! The response to an HTTP request of this side, and the server-sent events in it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::exchange(data));
