//! Decides which clients may connect, and what they may do. Checks the token, Host and Origin of requests, says where clients get
//! tokens, reads what trusted proxies say about a client, counts connections and wrong tokens by address, and determines the
//! principal of a connection.

mod addresses;
pub(super) mod authorization;
mod check;
mod credential;
mod forwarding;
mod links;
mod principal;
mod protected_resource;
mod tokens;
pub(super) mod trusted_proxies;

pub(super) use addresses::{Addresses, Failures, REJECTION_DELAY};
pub use check::Access;
#[cfg(feature = "cli")]
pub(crate) use check::RejectionHints;
pub(super) use check::RequestSource;
pub(crate) use check::percent_decode;
pub use credential::{Credential, ParseSecretError, Secret, Token};
pub(crate) use credential::{is_token_protocol, without_token};
pub use forwarding::{ParsePeersError, Peers};
pub(super) use forwarding::{client as forwarded_client, is_one_of, user as forwarded_user};
pub use links::LinkTarget;
pub(super) use links::{Link, Links};
#[cfg(feature = "tls")]
pub(super) use principal::is_plain_name;
pub use principal::{ParseScopeError, Principal, Scope};
pub use protected_resource::{ParseResourceError, ProtectedResource};
pub(super) use tokens::CredentialId;
#[cfg(feature = "cli")]
pub(crate) use tokens::words;
pub use tokens::{Tokens, TokensError};
