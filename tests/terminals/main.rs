//! `outrigger terminal`, `processes` and `attach`: programs on terminals, and those who attach to them.
#![cfg(feature = "cli")]

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "screen")]
mod a_screen_is_shown_and_waited_for;
#[cfg(feature = "client")]
mod a_terminal_is_attached_from_anywhere;
mod an_upgrade_ends_no_program;
mod attached_clients_know_each_other;
mod clients_of_kernel_images_need_no_change;
mod memory_belongs_to_a_principal;
mod other_terminals_can_attach;
mod processes_are_reached_over_http;
mod processes_have_names;
mod programs_without_a_terminal_are_filters;
#[cfg(feature = "screen")]
mod terminals_are_recorded;
mod terminals_lose_nothing;

use std::net::SocketAddr;

use self::common::program::Program;

/// Starts `outrigger processes`. Returns it with its address.
fn processes(options: &[&str]) -> (Program, SocketAddr) {
    let server = Program::start(&[&["processes"][..], options].concat());
    let address = server.address();
    (server, address)
}
