//! Translates a session for an MCP server of revision 2026-07-28.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::mcp_older(data));
