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

/// The kind of a method of either version, of a draft, or of those that Outrigger answers. `None` for any other method.
pub(super) fn kind_of_method(method: &str) -> Option<MethodKind> {
    Some(match method {
        "auth/login"
        | "auth/logout"
        | "authenticate"
        | "elicitation/create"
        | "fs/read_text_file"
        | "fs/write_text_file"
        | "initialize"
        | "logout"
        | "mcp/connect"
        | "mcp/disconnect"
        | "nes/close"
        | "nes/start"
        | "nes/suggest"
        | "providers/disable"
        | "providers/list"
        | "providers/set"
        | "session/attach"
        | "session/close"
        | "session/delete"
        | "session/detach"
        | "session/fork"
        | "session/list"
        | "session/load"
        | "session/new"
        | "session/prompt"
        | "session/request_permission"
        | "session/resume"
        | "session/set_config_option"
        | "session/set_mode"
        | "session/set_model"
        | "terminal/create"
        | "terminal/kill"
        | "terminal/output"
        | "terminal/release"
        | "terminal/wait_for_exit" => Request,
        "document/didChange"
        | "document/didClose"
        | "document/didFocus"
        | "document/didOpen"
        | "document/didSave"
        | "elicitation/complete"
        | "nes/accept"
        | "nes/reject"
        | "session/cancel"
        | "session/update" => Notification,
        "$/cancel_request" | "mcp/message" | "terminal/cancel" | "tool_call/cancel" => Either,
        _ => return None,
    })
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
    fn a_method_outside_the_schema_has_no_kind() {
        assert_eq!(kind_of_method("session/cancel"), Some(Notification));
        assert_eq!(kind_of_method("_vendor/x"), None);
    }
}
