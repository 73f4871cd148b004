//! Sessions that continue on other connections, with any messages of both sides.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::restoration(data));
