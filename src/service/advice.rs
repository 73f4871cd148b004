//! Problems that the user of a client can solve with an option. A service knows the problem, and the program knows its options.

use crate::ConnectError;

/// A problem that an option of the program solves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The server requires another token.
    Token,
    /// No trusted authority has signed the server's certificate.
    Untrusted,
    /// The server is not there, and the client tries again.
    Unreachable,
    /// Another client is the writer.
    Conflict,
    /// There is no terminal at the URL.
    NoTerminal,
    /// One side does not send JSON-RPC.
    NotJsonRpc,
}

impl Problem {
    /// The problem behind a failed attempt to connect.
    pub(super) fn of(error: &ConnectError) -> Option<Self> {
        match error.status() {
            Some(401) => Some(Self::Token),
            Some(409) => Some(Self::Conflict),
            _ => error.is_untrusted().then_some(Self::Untrusted),
        }
    }
}

/// Returns what the user can do about a problem, or an empty string.
pub type Advise = fn(Problem) -> &'static str;

/// Adds advice to a string.
pub(super) fn with_advice(text: String, problem: Option<Problem>, advise: Advise) -> String {
    match problem.map_or("", advise) {
        "" => text,
        advice => format!("{text}; {advice}"),
    }
}
