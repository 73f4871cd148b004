//! Clients that resume their connections after any cut.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::resume(data));
