//! `outrigger app`, `pipe` and `serve`: programs behind a WebSocket.
#![cfg(feature = "cli")]

#[path = "../common/mod.rs"]
mod common;

mod a_program_is_the_server;
mod an_editor_is_found_by_its_companions;
mod an_upgrade_ends_no_program_of_a_service;
mod any_program_may_be_a_service;
mod several_services_share_a_listener;
