//! The methods of the Agent Client Protocol, in versions 1 and 2.

/// Whether a method is a request or a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodKind {
    Request,
    Notification,
    /// The schema has both, or clients send both.
    Either,
}

use MethodKind::{Either, Notification, Request};

/// The methods of both versions, with those of the drafts, and the methods that Outrigger answers. Sorted by name.
const METHODS: [(&str, MethodKind); 49] = [
    ("$/cancel_request", Either),
    ("auth/login", Request),
    ("auth/logout", Request),
    ("authenticate", Request),
    ("document/didChange", Notification),
    ("document/didClose", Notification),
    ("document/didFocus", Notification),
    ("document/didOpen", Notification),
    ("document/didSave", Notification),
    ("elicitation/complete", Notification),
    ("elicitation/create", Request),
    ("fs/read_text_file", Request),
    ("fs/write_text_file", Request),
    ("initialize", Request),
    ("logout", Request),
    ("mcp/connect", Request),
    ("mcp/disconnect", Request),
    ("mcp/message", Either),
    ("nes/accept", Notification),
    ("nes/close", Request),
    ("nes/reject", Notification),
    ("nes/start", Request),
    ("nes/suggest", Request),
    ("providers/disable", Request),
    ("providers/list", Request),
    ("providers/set", Request),
    ("session/attach", Request),
    ("session/cancel", Notification),
    ("session/close", Request),
    ("session/delete", Request),
    ("session/detach", Request),
    ("session/fork", Request),
    ("session/list", Request),
    ("session/load", Request),
    ("session/new", Request),
    ("session/prompt", Request),
    ("session/request_permission", Request),
    ("session/resume", Request),
    ("session/set_config_option", Request),
    ("session/set_mode", Request),
    ("session/set_model", Request),
    ("session/update", Notification),
    ("terminal/cancel", Either),
    ("terminal/create", Request),
    ("terminal/kill", Request),
    ("terminal/output", Request),
    ("terminal/release", Request),
    ("terminal/wait_for_exit", Request),
    ("tool_call/cancel", Either),
];

/// The kind of a method. `None` if the schema does not have it.
pub(super) fn kind_of_method(method: &str) -> Option<MethodKind> {
    let found = METHODS.binary_search_by_key(&method, |(name, _)| name);
    found.ok().map(|at| METHODS[at].1)
}

/// Says why a request or notification of this method is wrong, if the schema has only the other.
pub(super) fn wrong_kind(method: &str, is_request: bool) -> Option<&'static str> {
    match (kind_of_method(method)?, is_request) {
        (Request, false) => Some("this method is a request, and must have an id"),
        (Notification, true) => Some("this method is a notification, and must have no id"),
        _ => None,
    }
}

/// Whether the settings cannot let messages of a method name any session: it is in the schema, or in a group of methods that
/// always name one.
pub(crate) fn has_session_rules(method: &str) -> bool {
    kind_of_method(method).is_some() || needs_session(method)
}

/// Whether a method must name a session.
pub(super) fn needs_session(method: &str) -> bool {
    match method {
        "session/new" | "session/list" | "nes/start" => false,
        _ => ["session/", "nes/", "document/"]
            .iter()
            .any(|prefix| method.starts_with(prefix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_methods_are_sorted() {
        assert!(METHODS.is_sorted_by_key(|(name, _)| name));
        assert_eq!(kind_of_method("session/cancel"), Some(Notification));
        assert_eq!(kind_of_method("_vendor/x"), None);
    }
}
