//! The calls of the process API, by their methods and paths.

use uuid::Uuid;

use super::fields::bad_request;
use crate::{Rejection, Scope, StatusCode};

/// The maximum length of a name.
const MAX_NAME: usize = 64;

/// The maximum length of a body, except for that of `stdin`.
const MAX_BODY: usize = 1 << 20;

/// A call of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call<'p> {
    List,
    Spawn,
    Exec,
    /// Starts the process of a name, unless there is one.
    Ensure(&'p str),
    /// A call to one process.
    Process(ProcessRef<'p>, Action),
    /// The description of the API.
    Spec(SpecFormat),
}

/// How a call refers to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessRef<'p> {
    Id(Uuid),
    Name(&'p str),
}

/// What a call does to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Status,
    Stdin,
    Kill,
    Resize,
    Stream,
    Attach,
    Delete,
    Screen,
    Wait,
    Input,
    Recording,
}

/// The format of the API description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpecFormat {
    Json,
    Yaml,
}

impl<'p> Call<'p> {
    /// Parses a method and a path below the endpoint.
    pub(crate) fn read(method: &str, below: &'p str) -> Result<Self, Rejection> {
        let segments: Vec<&'p str> = below.split('/').collect();
        let (call, allow) = match *segments {
            [""] => (Self::List, "GET"),
            ["", "spawn"] => (Self::Spawn, "POST"),
            ["", "exec"] => (Self::Exec, "POST"),
            ["", "spec.json"] => (Self::Spec(SpecFormat::Json), "GET"),
            ["", "spec.yaml"] => (Self::Spec(SpecFormat::Yaml), "GET"),
            ["", "by-name", name] => {
                check_name(name)?;
                let which = ProcessRef::Name(name);
                return match method {
                    "PUT" => Ok(Self::Ensure(name)),
                    "DELETE" => Ok(Self::Process(which, Action::Delete)),
                    "GET" => Ok(Self::Process(which, Action::Attach)),
                    _ => Err(Rejection::method_not_allowed("GET, PUT, DELETE")),
                };
            }
            ["", "by-name", name, ref rest @ ..] => {
                let (action, allow) = Action::read(rest)?;
                check_name(name)?;
                (Self::Process(ProcessRef::Name(name), action), allow)
            }
            ["", id, ref rest @ ..] => {
                let (action, allow) = Action::read(rest)?;
                let id = match action {
                    // kernel-images does not parse the id here.
                    Action::Attach => parse_id(id).map_err(|_| no_process())?,
                    Action::Delete => parse_id(id).map_err(|_| Rejection::not_found())?,
                    _ => parse_id(id)?,
                };
                (Self::Process(ProcessRef::Id(id), action), allow)
            }
            _ => return Err(Rejection::not_found()),
        };
        if method == allow {
            Ok(call)
        } else {
            Err(Rejection::method_not_allowed(allow))
        }
    }

    /// The process that the call is for.
    pub(crate) fn process(self) -> Option<ProcessRef<'p>> {
        match self {
            Self::List | Self::Spawn | Self::Exec | Self::Ensure(_) | Self::Spec(_) => None,
            Self::Process(which, _) => Some(which),
        }
    }

    /// The maximum length of its body.
    pub(crate) fn max_body(self) -> usize {
        match self {
            Self::Process(_, Action::Stdin) => usize::MAX,
            _ => MAX_BODY,
        }
    }

    /// Whether the call has a body.
    pub(crate) fn has_body(self) -> bool {
        match self {
            Self::Spawn | Self::Exec | Self::Ensure(_) => true,
            Self::Process(_, action) => {
                matches!(
                    action,
                    Action::Stdin | Action::Kill | Action::Resize | Action::Wait | Action::Input
                )
            }
            Self::List | Self::Spec(_) => false,
        }
    }
}

impl Action {
    /// The lowest scope that permits it.
    pub(super) fn scope(self) -> Scope {
        match self {
            Self::Screen | Self::Wait => Scope::Watch,
            Self::Input => Scope::Use,
            Self::Attach
            | Self::Status
            | Self::Stdin
            | Self::Kill
            | Self::Resize
            | Self::Stream
            | Self::Recording
            | Self::Delete => Scope::All,
        }
    }

    /// Parses the path below that of a process. Returns the method, too.
    fn read(path: &[&str]) -> Result<(Self, &'static str), Rejection> {
        Ok(match path {
            [] => (Self::Delete, "DELETE"),
            ["status"] => (Self::Status, "GET"),
            ["stdin"] => (Self::Stdin, "POST"),
            ["kill"] => (Self::Kill, "POST"),
            ["resize"] => (Self::Resize, "POST"),
            ["stdout", "stream"] => (Self::Stream, "GET"),
            ["attach"] => (Self::Attach, "GET"),
            ["screen"] => (Self::Screen, "GET"),
            ["wait"] => (Self::Wait, "POST"),
            ["input"] => (Self::Input, "POST"),
            ["recording"] => (Self::Recording, "GET"),
            _ => return Err(Rejection::not_found()),
        })
    }
}

/// Parses an id. Only the hyphenated form, in which ids are given out, is accepted.
fn parse_id(text: &str) -> Result<Uuid, Rejection> {
    let hyphenated = text.len() == 36;
    Uuid::try_parse(text)
        .ok()
        .filter(|_| hyphenated)
        .ok_or_else(|| bad_request("the id of the process is not a UUID"))
}

pub(crate) fn no_process() -> Rejection {
    Rejection::new(StatusCode::NOT_FOUND, "process not found")
}

/// Checks a name. It is used in paths, so it has no characters that are escaped there.
pub(super) fn check_name(name: &str) -> Result<(), Rejection> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.len() > MAX_NAME || !name.bytes().all(is_plain) || name.trim_matches('.').is_empty() {
        return Err(bad_request(format!(
            "a name has 1 to {MAX_NAME} ASCII letters, digits, '-', '_' and '.', and not only dots"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::random_uuid;

    #[test]
    fn names_are_plain() {
        for good in ["a", "work-1", "A.b_c", &"x".repeat(64)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "%41", "ä", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_and_ids_are_parsed_strictly() {
        let id = random_uuid();
        fn read<'p>(method: &str, below: &'p str) -> Result<Call<'p>, u16> {
            Call::read(method, below).map_err(|rejection| rejection.status.0)
        }
        assert_eq!(read("GET", ""), Ok(Call::List));
        assert_eq!(read("POST", "/spawn"), Ok(Call::Spawn));
        let of_id = |action| Ok(Call::Process(ProcessRef::Id(id), action));
        let status = format!("/{id}/status");
        assert_eq!(read("GET", &status), of_id(Action::Status));
        let stream = format!("/{id}/stdout/stream");
        assert_eq!(read("GET", &stream), of_id(Action::Stream));
        let path = format!("/{id}");
        assert_eq!(read("DELETE", &path), of_id(Action::Delete));
        let of_name = |action| Ok(Call::Process(ProcessRef::Name("work"), action));
        assert_eq!(read("PUT", "/by-name/work"), Ok(Call::Ensure("work")));
        assert_eq!(read("GET", "/by-name/work"), of_name(Action::Attach));
        assert_eq!(read("DELETE", "/by-name/work"), of_name(Action::Delete));
        assert_eq!(read("GET", "/by-name/work/attach"), of_name(Action::Attach));
        assert_eq!(read("POST", "/by-name/work/kill"), of_name(Action::Kill));
        assert_eq!(read("POST", "/by-name/work"), Err(405));
        assert_eq!(read("PUT", "/by-name/a%20b"), Err(400));
        assert_eq!(read("GET", "/spawn"), Err(405));
        assert_eq!(read("DELETE", &format!("/{id}/kill")), Err(405));
        assert_eq!(read("GET", "/spec.json"), Ok(Call::Spec(SpecFormat::Json)));
        for (bad, status) in [
            ("/".to_owned(), 404),
            ("/spawn/".to_owned(), 404),
            ("//spawn".to_owned(), 404),
            (format!("/{id}"), 405),
            ("/no-id".to_owned(), 404),
            ("/by-name".to_owned(), 404),
            ("/by-name/".to_owned(), 400),
            ("/by-name/../status".to_owned(), 400),
            (format!("/{id}/"), 404),
            (format!("/{id}/status/"), 404),
            (format!("/{}/status", id.simple()), 400),
            (format!("/{{{id}}}/status"), 400),
            (format!("/{}x/status", &id.to_string()[..35]), 400),
            ("/1/status".to_owned(), 400),
            ("/../status".to_owned(), 400),
            ("/1/attach".to_owned(), 404),
        ] {
            assert_eq!(read("GET", &bad), Err(status), "{bad}");
        }
    }
}
