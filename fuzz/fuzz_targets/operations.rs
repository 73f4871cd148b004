//! Any operations on a whole server in memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::operations(data));
