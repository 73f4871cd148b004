//! Who may come in: the token, Origin and Host of a request, and the number of clients of an address.

mod access;
mod addresses;
mod principal;

pub use self::access::{Access, Token};
pub(crate) use self::access::{is_token_protocol, without_token};
pub(in crate::server) use self::addresses::Addresses;
pub use self::principal::Principal;
