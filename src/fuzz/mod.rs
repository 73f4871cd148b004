//! The entry points of the fuzz targets, by area. Each takes arbitrary bytes and panics if a property does not hold.
//!
//! | entry point | input | property |
//! |---|---|---|
//! | [`envelope`] | text | the message parser agrees with serde_json |
//! | [`router`] | operations of clients and an agent | every message reaches only its owner, and tables stay bounded |

mod agent;

pub use agent::{envelope, router};

#[cfg(feature = "deflate")]
pub use crate::protocol::deflate::fuzz::deflate;
pub use crate::protocol::fuzz::{calls, connection, frame_header, handshake, proxy_header};
pub use crate::server::fuzz::operations;
pub use crate::service::process::fuzz::{attachments, control, process_calls};
