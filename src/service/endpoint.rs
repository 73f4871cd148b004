//! What a WebSocket service decides about a handshake: its path, and the subprotocol.

use std::fmt;
use std::str::FromStr;

use crate::{Accept, Rejection, Request, Route};

/// The path of a service: a single path, or with `/...` at its end that path and all paths below it.
///
/// ```
/// use outrigger::service::Endpoint;
///
/// let one: Endpoint = "/echo".parse()?;
/// assert!(one.matches("/echo") && !one.matches("/echo/x"));
///
/// let tree: Endpoint = "/files/...".parse()?;
/// assert!(tree.matches("/files") && tree.matches("/files/x/y") && !tree.matches("/filesystem"));
/// assert_eq!(tree.path(), "/files");
/// assert_eq!(tree.to_string(), "/files/...");
/// # Ok::<(), outrigger::service::ParseEndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    path: String,
    subtree: bool,
}

impl Endpoint {
    /// Whether a request path belongs to this endpoint.
    pub fn matches(&self, path: &str) -> bool {
        self.below(path).is_some()
    }

    /// The same path, and all paths below it.
    #[must_use]
    pub fn with_subtree(self) -> Self {
        Self {
            subtree: true,
            ..self
        }
    }

    /// The part of a request path that follows the endpoint's own path: empty, or starting with `/`. `None` if the path
    /// does not belong to the endpoint.
    pub(crate) fn below<'a>(&self, path: &'a str) -> Option<&'a str> {
        if !self.subtree && path != self.path {
            return None;
        }
        path_below(&self.path, path)
    }

    /// Routes a request for this endpoint to the WebSocket handshake.
    pub(crate) fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        if self.matches(request.path()) {
            Ok(Route::web_socket())
        } else {
            Err(Rejection::not_found())
        }
    }

    /// The path that clients connect to, without `/...`.
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// The first subprotocol that the client offers and the service speaks.
pub(super) fn subprotocol<'a>(request: &Request<'_>, spoken: &'a [String]) -> Option<&'a str> {
    let mut offered = request.list("sec-websocket-protocol");
    let found = offered.find_map(|offered| spoken.iter().find(|name| *name == offered));
    found.map(String::as_str)
}

/// Accepts a handshake with this subprotocol.
pub(super) fn accept(request: &Request<'_>, spoken: &[String]) -> Accept {
    match subprotocol(request, spoken) {
        Some(name) => Accept::default().protocol(name),
        None => Accept::default(),
    }
}

/// The part of `path` that follows `base`. `None` if `path` is neither `base` nor below it: `/ab` is not below `/a`. A
/// slash at the end of `base` makes no difference.
fn path_below<'a>(base: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(base.trim_end_matches('/'))
        .filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.subtree, &*self.path) {
            (false, path) => f.write_str(path),
            (true, "/") => f.write_str("/..."),
            (true, path) => write!(f, "{path}/..."),
        }
    }
}

/// The text is not an [`Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseEndpointError;

impl fmt::Display for ParseEndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path begins with '/' and has no spaces, '?' or '#'")
    }
}

impl std::error::Error for ParseEndpointError {}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (path, subtree) = match text.strip_suffix("/...") {
            Some("") => ("/", true),
            Some(path) => (path, true),
            None => (text, false),
        };
        if !path.starts_with('/')
            || path
                .bytes()
                .any(|byte| byte <= b' ' || byte >= 0x7f || b"?#".contains(&byte))
        {
            return Err(ParseEndpointError);
        }
        Ok(Self {
            path: path.to_owned(),
            subtree,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().expect("an endpoint")
    }

    #[test]
    fn an_endpoint_matches_its_path_and_a_subtree_all_paths_below_it() {
        let matches = |text, path| endpoint(text).matches(path);
        assert!(matches("/", "/") && !matches("/", "/x"));
        assert!(matches("/a", "/a") && !matches("/a", "/a/") && !matches("/a", "/ab"));
        assert!(matches("/...", "/") && matches("/...", "/x/y"));
        assert!(matches("/a/...", "/a") && matches("/a/...", "/a/b") && !matches("/a/...", "/ab"));
        for bad in ["", "a", "/a b", "/a?b", "/a#b", "...", "/\u{e9}"] {
            assert_eq!(bad.parse::<Endpoint>(), Err(ParseEndpointError), "{bad:?}");
        }
    }

    #[test]
    fn the_path_below_an_endpoint_is_empty_or_begins_with_a_slash() {
        for (text, path, below) in [
            ("/a", "/a", Some("")),
            ("/a", "/a/b", None),
            ("/a/...", "/a", Some("")),
            ("/a/...", "/a/", Some("/")),
            ("/a/...", "/a/b/c", Some("/b/c")),
            ("/a/...", "/ab", None),
            ("/...", "/b", Some("/b")),
        ] {
            assert_eq!(endpoint(text).below(path), below, "{text} {path}");
        }
    }

    #[test]
    fn an_endpoint_reads_back_as_it_is_written() {
        for text in ["/", "/a", "/a/", "/...", "/a/...", "/a/b/..."] {
            assert_eq!(endpoint(text).to_string(), text);
        }
    }
}
