//! `outrigger mcp`: MCP servers over Streamable HTTP.
#![cfg(all(feature = "cli", feature = "mcp"))]

#[path = "../common/mod.rs"]
mod common;

mod client;
mod http_servers_are_reached_over_stdio;
#[cfg(feature = "tls")]
mod http_servers_are_reached_through_tls_and_proxies;
mod mcp_servers_are_reached_over_http;
mod newer_servers_have_sessions;
mod revisions_are_translated;
mod sessions_share_a_process;
