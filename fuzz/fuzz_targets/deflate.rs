//! Any offers of permessage-deflate, and any compressed messages.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::deflate(data));
