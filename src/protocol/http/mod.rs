//! A subset of HTTP/1.1 (RFC 9110, RFC 9112) for handshakes and calls: request heads, bodies and responses.
//!
//! ```text
//! bytes -> head (Request: method, path, fields, framing) -> body (length or chunks, up to a limit) -> service
//! service -> Response, complete or as a stream of events -> bytes
//! ```

mod body;
mod calls;
mod connection;
mod date;
mod forwarded;
mod head;
mod json;
mod response;
mod trace;

pub use body::Body;
pub use connection::{HttpConnection, HttpEvent, HttpState};
pub use date::HttpDate;
pub use forwarded::{forwarded, x_forwarded_for};
pub use head::{Framing, MAX_HEADERS, Request, find_end};
pub use response::{Rejection, Response, StatusCode};
pub use trace::TraceParent;

pub(super) use response::write_field;
