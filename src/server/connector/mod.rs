//! Outgoing connections: URLs, settings, name resolution, proxies, and the state of a connection until it is open.
//! [`connecting`](super::connecting) opens them in the loop.

mod answer;
mod error;
mod outgoing;
mod proxies;
mod resolver;
mod settings;
mod target;

pub(super) use self::answer::handle_answer;
pub use self::error::ConnectError;
pub(super) use self::outgoing::{Failures, Outgoing, Phase, Returning};
pub use self::proxies::Proxies;
pub(super) use self::resolver::{Resolved, Resolver};
pub use self::settings::{Connect, Retry};
pub(super) use self::target::Place;
pub use self::target::{ParseTargetError, Target};
