//! Reads requests to an MCP endpoint and changes messages.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::mcp(data));
