//! Content negotiation: which media types a client accepts, and which one it has sent (RFC 9110 sections 8.3 and 12.5.1).

use crate::Request;

/// The forms of an answer that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepts {
    /// One JSON message.
    pub(super) json: bool,
    /// A stream of server-sent events.
    pub(super) events: bool,
}

impl Accepts {
    /// Reads the `Accept` field. Without one, a client accepts everything.
    pub(super) fn of(request: &Request<'_>) -> Self {
        if request.header("accept").is_none() {
            return Self {
                json: true,
                events: true,
            };
        }
        Self {
            json: is_accepted(request, "application", "json"),
            events: is_accepted(request, "text", "event-stream"),
        }
    }

    pub(super) fn is_nothing(self) -> bool {
        !self.json && !self.events
    }
}

/// Whether the most specific media range for this type has a quality over zero.
fn is_accepted(request: &Request<'_>, kind: &str, subtype: &str) -> bool {
    let mut best = (0, false);
    for range in request.list("accept") {
        let mut parts = range.split(';').map(str::trim);
        let Some((range_kind, range_subtype)) =
            parts.next().and_then(|range| range.split_once('/'))
        else {
            continue;
        };
        let specificity = match (range_kind, range_subtype) {
            ("*", "*") => 1,
            (range_kind, "*") if range_kind.eq_ignore_ascii_case(kind) => 2,
            (range_kind, range_subtype)
                if range_kind.eq_ignore_ascii_case(kind)
                    && range_subtype.eq_ignore_ascii_case(subtype) =>
            {
                3
            }
            _ => continue,
        };
        let quality = parts.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
        });
        let is_positive = quality.is_none_or(|quality| quality.parse().is_ok_and(|q: f32| q > 0.0));
        if specificity > best.0 {
            best = (specificity, is_positive);
        }
    }
    best.1
}

/// Whether the body of a request is announced as JSON.
pub(super) fn has_json_body(request: &Request<'_>) -> bool {
    let media_type = request
        .header("content-type")
        .and_then(|value| value.split(|byte| *byte == b';').next())
        .unwrap_or_default();
    media_type
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(value: &str) -> (bool, bool) {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nAccept: {value}\r\n\r\n");
        let request = Request::parse(head.as_bytes()).expect("a request");
        let Accepts { json, events } = Accepts::of(&request);
        (json, events)
    }

    #[test]
    fn the_most_specific_range_decides() {
        assert_eq!(accepts("application/json, text/event-stream"), (true, true));
        assert_eq!(accepts("*/*"), (true, true));
        assert_eq!(accepts("text/*;q=0.5"), (false, true));
        assert_eq!(accepts("Application/JSON; charset=utf-8"), (true, false));
        assert_eq!(accepts("*/*, text/event-stream;q=0"), (true, false));
        assert_eq!(accepts("application/json; q=0.0, */*"), (false, true));
        assert_eq!(accepts("text/html"), (false, false));
        let request = Request::parse(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n").expect("a request");
        assert!(!Accepts::of(&request).is_nothing());
    }
}
