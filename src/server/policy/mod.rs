//! Decides which clients may connect. Checks the token, Host and Origin of requests, lists trusted proxies, counts
//! connections by address, and determines the principal of a connection.

mod access;
mod addresses;
mod peers;
mod principal;
mod token;

pub use access::Access;
#[cfg(feature = "cli")]
pub(crate) use access::RejectionHints;
pub(in crate::server) use addresses::{Addresses, too_many_clients, too_many_of_address};
pub use peers::{ParsePeersError, Peers};
pub use principal::{ParseScopeError, Principal, Scope};
pub use token::Token;
pub(crate) use token::{is_token_protocol, without_token};
