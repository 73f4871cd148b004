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
mod each_kind_of_client_has_an_agent;
#[cfg(feature = "client")]
mod editor;
mod one_agent_serves_many_clients;
mod sessions_may_be_observed;
mod sessions_stay_with_their_owners;
