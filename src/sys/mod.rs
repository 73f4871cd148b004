//! What the operating system offers beyond the standard library, behind safe functions.
//!
//! This is the only place for `unsafe` code: everywhere else it is denied.

mod account;
mod clock;
mod descriptors;
mod families;
mod memory;
mod orphans;
mod process;
mod pty;
mod sockets;
mod text;
mod wide;

pub(crate) use account::Account;
pub(crate) use clock::Clock;
pub use descriptors::NonblockingFd;
pub(crate) use descriptors::{is_exhausted, raise_descriptor_limit, unsent_bytes};
pub(crate) use families::Families;
pub(crate) use memory::trim_heap;
pub use orphans::kill_orphans;
pub(crate) use orphans::{
    Reaper, SystemProcesses, become_subreaper, reap_orphans, signal_orphans, usage,
};
pub(crate) use process::{Beginning, Process, code_or_signal, exit_descriptor};
pub use pty::TerminalSize;
pub(crate) use pty::{open_pty, read_output, set_terminal_size};
pub use sockets::keep_from_children;
pub(crate) use sockets::{
    InheritedSocket, take_inherited_socket, tcp_listener, with_private_umask,
};
pub(crate) use text::ascii_text;
pub(crate) use wide::xor_words;
