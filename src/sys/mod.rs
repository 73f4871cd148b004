//! Safe wrappers of system calls, and of the other code that needs `unsafe`.
//!
//! This is the only module with `unsafe` code; everywhere else it is denied. It depends on no other module of the crate.

#[cfg(feature = "server")]
mod account;
#[cfg(feature = "server")]
mod child_process;
#[cfg(feature = "server")]
mod clock;
#[cfg(feature = "server")]
mod command;
#[cfg(feature = "server")]
mod descriptors;
#[cfg(all(test, target_os = "linux"))]
mod leased_program;
#[cfg(feature = "server")]
mod orphans;
#[cfg(feature = "server")]
mod process;
#[cfg(feature = "server")]
mod process_tree;
#[cfg(feature = "server")]
mod pty;
#[cfg(feature = "server")]
mod random;
#[cfg(feature = "server")]
mod sockets;
#[cfg(feature = "client")]
mod terminal;
#[cfg(feature = "server")]
mod upgrade;
mod wide;

#[cfg(feature = "server")]
pub(crate) use account::Account;
#[cfg(feature = "server")]
pub(crate) use child_process::{
    ChildProcess, code_or_signal, end_children, exit_descriptor, own_children,
};
#[cfg(feature = "server")]
pub(crate) use clock::{elapsed_nanos, monotonic_nanos};
#[cfg(feature = "server")]
pub(crate) use command::{Command, StartReport, Stream};
#[cfg(feature = "server")]
pub(crate) use descriptors::{
    NonblockingFd, descriptor_use, is_exhausted, is_unread, raise_descriptor_limit, unsent_bytes,
};
#[cfg(all(test, target_os = "linux"))]
pub(crate) use leased_program::LeasedProgram;
#[cfg(feature = "server")]
pub(crate) use orphans::{
    PROGRAM_ID, Reaper, SystemProcessTable, become_subreaper, kill_orphans, reap_orphans,
    signal_orphans, usage,
};
#[cfg(feature = "cli")]
pub(crate) use process::granted_memory;
#[cfg(feature = "client")]
pub(crate) use process::mask_arguments;
#[cfg(feature = "server")]
pub(crate) use process::{drop_code, terminate_self, trim_heap, unblock_signals};
#[cfg(feature = "cli")]
pub(crate) use process::{unblock_signals_but_usr2, unblock_usr2};
#[cfg(feature = "server")]
pub(crate) use process_tree::ProcessTrees;
#[cfg(feature = "server")]
pub use pty::TerminalSize;
#[cfg(feature = "server")]
pub(crate) use pty::{open_pty, read_output, set_terminal_size};
#[cfg(feature = "server")]
pub(crate) use random::{random_bytes, random_uuid};
#[cfg(feature = "server")]
pub(crate) use sockets::{
    ListeningSocket, check_socket_path, inherited_listener, is_connected, listen_again,
    receive_with_descriptors, send_with_descriptors, set_keepalive, tcp_listener,
    with_private_umask,
};
#[cfg(feature = "cli")]
pub(crate) use sockets::{keep_from_children, take_descriptor};
#[cfg(feature = "client")]
pub(crate) use terminal::{RawMode, is_terminal_raw, restore_terminal, terminal_size};
#[cfg(feature = "server")]
pub(crate) use upgrade::{
    block_signals, memory_file, number_of, replace_program, seal, set_passes, start_thread,
    take_passed,
};
pub(crate) use wide::{ascii_text, xor_words};
#[cfg(feature = "screen")]
pub(crate) use wide::{bytes_between, in_wide_registers};

/// Whether the terminal of this process is in raw mode. A build without `attach` never changes it.
#[cfg(all(feature = "cli", not(feature = "client")))]
pub(crate) fn is_terminal_raw() -> bool {
    false
}
