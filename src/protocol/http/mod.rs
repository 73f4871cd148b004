//! HTTP/1.1 as far as a server of a few calls needs it (RFC 9110, RFC 9112): heads, bodies, responses.
//!
//! ```text
//! bytes -> head (Request: method, path, fields, framing) -> body (length or chunks, up to a limit) -> a service
//! a service -> Response, whole or as a stream of events -> bytes
//! ```

mod body;
mod head;
mod response;

pub use body::Body;
pub use head::{Framing, MAX_HEADERS, Request, find_end};
pub use response::{Rejection, Response, StatusCode};

pub(super) use response::{Ending, Terms, write_chunk, write_field, write_stream_head};

/// What a peer is told that waits with its body (RFC 9110 section 15.2.1).
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The end of a chunked body.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
