//! What a client's handshake has said, for the log and the status.

use crate::protocol::Request;
use crate::record::record;

/// The maximum length of each field that is kept, in bytes.
const MAX_FIELD: usize = 128;

/// What the server keeps of a handshake while the client is connected. Clients that say the same share it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Handshake {
    /// The path of the request.
    pub(crate) path: Box<str>,
    /// The beginning of the field User-Agent.
    pub(crate) user_agent: Option<Box<str>>,
    /// The beginning of the field Origin.
    pub(crate) origin: Option<Box<str>>,
}

record!(Handshake {
    path,
    user_agent,
    origin
});

impl Handshake {
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let field = |name| {
            let value = request.header(name)?;
            let text = String::from_utf8_lossy(&value[..value.len().min(MAX_FIELD)]);
            Some(text.into())
        };
        Self {
            path: request.path().into(),
            user_agent: field("user-agent"),
            origin: field("origin"),
        }
    }

    /// The handshake of a connection that this side opens.
    pub(crate) fn to(path: &str) -> Self {
        Self {
            path: path.into(),
            ..Self::default()
        }
    }
}
