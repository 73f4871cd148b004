//! One stdio JSON-RPC agent, many clients, nothing crosses. (Being built.)

#![allow(dead_code)]

mod envelope;
mod initialize;
mod json;
mod router;
