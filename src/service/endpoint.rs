//! Where a service is found.

use std::fmt;
use std::str::FromStr;

use crate::{Rejection, Request, Route};

/// A path that a service answers at: one path, or with `/...` at its end that path and all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    path: String,
    subtree: bool,
}

impl Endpoint {
    /// Whether a request's path belongs to this endpoint.
    pub fn matches(&self, path: &str) -> bool {
        if !self.subtree {
            return path == self.path;
        }
        path.strip_prefix(self.path.trim_end_matches('/'))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The same path with all below it.
    pub fn with_subtree(self) -> Self {
        Self {
            subtree: true,
            ..self
        }
    }

    /// What of a request's path lies below this endpoint: nothing, or a path; `None` if it does not belong to it.
    pub(crate) fn below<'a>(&self, path: &'a str) -> Option<&'a str> {
        self.matches(path)
            .then(|| &path[self.path.trim_end_matches('/').len()..])
    }

    /// Takes requests to this endpoint as handshakes.
    pub(crate) fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        if self.matches(request.path()) {
            Ok(Route::WebSocket)
        } else {
            Err(Rejection::not_found())
        }
    }

    /// The path to connect to.
    pub fn path(&self) -> &str {
        &self.path
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

    #[test]
    fn an_endpoint_matches_its_path_or_all_below_it() {
        let matches = |endpoint: &str, path| {
            endpoint
                .parse::<Endpoint>()
                .expect("an endpoint")
                .matches(path)
        };
        assert!(matches("/", "/") && !matches("/", "/x"));
        assert!(matches("/a", "/a") && !matches("/a", "/a/") && !matches("/a", "/ab"));
        assert!(matches("/...", "/") && matches("/...", "/x/y"));
        assert!(matches("/a/...", "/a") && matches("/a/...", "/a/b") && !matches("/a/...", "/ab"));
        for bad in ["", "a", "/a b", "/a?b", "/a#b", "...", "/\u{e9}"] {
            assert_eq!(bad.parse::<Endpoint>(), Err(ParseEndpointError), "{bad:?}");
        }
    }
}
