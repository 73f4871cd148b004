//! Safe functions for what the operating system offers beyond the standard library.
//!
//! This is the only module with `unsafe` code; everywhere else it is denied. It depends on no other module of the crate.

mod account;
mod child_process;
mod clock;
mod descriptors;
mod memory;
mod orphans;
mod process_tree;
mod pty;
mod sockets;
mod text;
mod wide;

pub(crate) use account::Account;
pub(crate) use child_process::{ChildProcess, StartOptions, code_or_signal, exit_descriptor};
pub(crate) use clock::monotonic_millis;
pub use descriptors::NonblockingFd;
pub(crate) use descriptors::{is_exhausted, raise_descriptor_limit, unsent_bytes};
pub(crate) use memory::trim_heap;
pub use orphans::kill_orphans;
pub(crate) use orphans::{
    Reaper, SystemProcessTable, become_subreaper, reap_orphans, signal_orphans, usage,
};
pub(crate) use process_tree::ProcessTrees;
pub use pty::TerminalSize;
pub(crate) use pty::{open_pty, read_output, set_terminal_size};
pub use sockets::keep_from_children;
pub(crate) use sockets::{
    InheritedSocket, take_inherited_socket, tcp_listener, with_private_umask,
};
pub(crate) use text::ascii_text;
pub(crate) use wide::xor_words;
