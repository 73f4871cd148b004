//! Encrypted connections.
#![cfg(all(feature = "cli", feature = "tls"))]

#[path = "../common/mod.rs"]
mod common;

mod connections_may_be_encrypted;
