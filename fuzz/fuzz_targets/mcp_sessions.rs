//! Lets sessions share a process.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::mcp_sessions(data));
