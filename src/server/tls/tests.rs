//! Tests of TLS with a client in memory.
