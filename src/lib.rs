//! Outrigger
pub mod protocol;
