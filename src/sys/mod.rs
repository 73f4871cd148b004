//! What the operating system offers beyond the standard library, behind safe functions.
//!
//! This is the only place for `unsafe` code: everywhere else it is denied.

#[cfg(feature = "server")]
mod account;
#[cfg(feature = "server")]
mod clock;
#[cfg(feature = "server")]
mod descriptors;
#[cfg(feature = "server")]
mod families;
#[cfg(feature = "server")]
mod memory;
#[cfg(feature = "server")]
mod orphans;
#[cfg(feature = "server")]
mod process;
#[cfg(feature = "server")]
mod pty;
#[cfg(feature = "server")]
mod sockets;
mod text;
mod wide;

#[cfg(feature = "server")]
pub(crate) use account::Account;
#[cfg(feature = "server")]
pub(crate) use clock::Clock;
#[cfg(feature = "server")]
pub(crate) use descriptors::NonblockingFd;
#[cfg(feature = "server")]
pub(crate) use descriptors::{is_exhausted, raise_descriptor_limit, unsent_bytes};
#[cfg(feature = "server")]
pub(crate) use families::Families;
#[cfg(feature = "server")]
pub(crate) use memory::trim_heap;
#[cfg(feature = "server")]
pub(crate) use orphans::{
    Reaper, SystemProcesses, become_subreaper, kill_orphans, reap_orphans, signal_orphans, usage,
};
#[cfg(feature = "server")]
pub(crate) use process::{Beginning, Process, code_or_signal, exit_descriptor};
#[cfg(feature = "server")]
pub(crate) use pty::{TerminalSize, open_pty, read_output, set_terminal_size};
#[cfg(feature = "server")]
pub(crate) use sockets::{ListeningSocket, inherited_listener, tcp_listener, with_private_umask};
#[cfg(feature = "cli")]
pub(crate) use sockets::{keep_from_children, take_descriptor};
pub(crate) use text::ascii_text;
pub(crate) use wide::xor_words;
