//! `outrigger agent` and `outrigger connect`: agents that many clients share, and editors that reach them.
#![cfg(feature = "cli")]

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "client")]
mod a_bad_server_of_an_editor;
#[cfg(feature = "client")]
mod an_editor_continues_its_sessions;
mod an_editor_never_notices_a_cut;
mod an_upgrade_ends_no_turn;
mod durable;
mod each_kind_of_client_has_an_agent;
#[cfg(feature = "client")]
mod editor;
mod one_agent_serves_many_clients;
#[cfg(target_os = "linux")]
mod page;
mod sessions_may_be_observed;
mod sessions_stay_with_their_owners;
mod the_draft_of_resumable_connections;
#[cfg(target_os = "linux")]
mod the_server_has_files_and_terminals_for_pages;
