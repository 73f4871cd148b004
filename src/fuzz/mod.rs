//! Entry points of the fuzz targets. The unit tests run them too, on random input.

mod process;

#[cfg(feature = "deflate")]
pub use crate::protocol::deflate::fuzz::deflate;
pub use crate::protocol::fuzz::{calls, connection, frame_header, handshake, proxy_header};
pub use crate::server::fuzz::operations;
pub use crate::service::agent::fuzz::{envelope, router};

pub use self::process::{attachments, control, process_calls};
