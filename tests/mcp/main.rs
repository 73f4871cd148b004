//! `outrigger mcp`: MCP servers over Streamable HTTP.
#![cfg(all(feature = "cli", feature = "mcp"))]

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "mcp")]
mod mcp_servers_are_reached_over_http;
