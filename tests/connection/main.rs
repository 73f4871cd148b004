//! WebSocket and HTTP connections over real sockets: what the library does for every service, whatever happens to them.
#![cfg(feature = "cli")]

#[path = "../common/mod.rs"]
mod common;

mod a_cut_loses_nothing;
mod an_upgrade_ends_nothing;
mod bytes_may_come_in_any_pieces;
#[cfg(feature = "deflate")]
mod compression_keeps_to_its_memory;
mod each_limit_is_held_and_counted;
mod every_ending_is_told_exactly_once;
mod http_calls_share_the_listener;
mod other_threads_reach_the_server_through_a_handle;
mod outgoing_connections_come_back;
mod slow_readers_hurt_only_themselves;
mod streams_end_with_their_callers;
mod the_handshake_is_answered_by_the_letter;
mod tungstenite_clients_are_served;
