//! Who may come in, and what each token, link and proxy permits.
#![cfg(feature = "cli")]

#[path = "../common/mod.rs"]
mod common;

mod clients_learn_where_to_get_a_token;
mod each_scope_opens_its_endpoints;
mod each_token_has_a_name_and_a_scope;
mod links_permit_watching_alone;
mod only_the_invited_come_in;
mod operators_see_and_disconnect_clients;
mod proxies_say_who_the_client_is;
mod the_token_command_edits_a_file;
