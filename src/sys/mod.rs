//! What the operating system offers beyond the standard library, behind safe functions.
//!
//! This is the place for `unsafe` code, and so far it needs none: the crate forbids it.

mod clock;
mod descriptors;
mod process;

pub(crate) use clock::Clock;
pub(crate) use descriptors::{NonblockingGuard, is_exhausted, raise_descriptor_limit};
pub(crate) use process::{exit_descriptor, has_ended, signal_group};
