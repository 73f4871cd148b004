//! The filter of a `subscriptions/listen` request.

use std::collections::HashSet;
use std::ops::Range;

use crate::service::json::{Skimmer, unescape};
use crate::service::jsonrpc::{Envelope, member};

/// The filter of a subscription.
#[derive(Debug, Default)]
pub(super) struct Filter {
    tools: bool,
    prompts: bool,
    resources: bool,
    /// The resources whose changes are wanted.
    uris: HashSet<Box<str>>,
}

impl Filter {
    /// Reads `params.notifications`. Malformed members are ignored.
    pub(super) fn of(envelope: &Envelope<'_>) -> Self {
        let text = envelope.text;
        let Some(wanted) = envelope.of_body("notifications") else {
            return Self::default();
        };
        let is_true = |key| member(text, &wanted, key).is_some_and(|range| &text[range] == "true");
        let mut uris = HashSet::new();
        if let Some(list) = member(text, &wanted, "resourceSubscriptions") {
            let _ = Skimmer::at(text, &list).array(|range: Range<usize>| {
                let raw = &text[range];
                if raw.starts_with('"') {
                    uris.insert(unescape(raw).into());
                }
            });
        }
        Self {
            tools: is_true("toolsListChanged"),
            prompts: is_true("promptsListChanged"),
            resources: is_true("resourcesListChanged"),
            uris,
        }
    }

    /// Whether a notification is wanted.
    pub(super) fn wants(&self, method: &str, envelope: &Envelope<'_>) -> bool {
        match method {
            "notifications/tools/list_changed" => self.tools,
            "notifications/prompts/list_changed" => self.prompts,
            "notifications/resources/list_changed" => self.resources,
            "notifications/resources/updated" => {
                let text = envelope.text;
                let uri = envelope.of_body("uri").map(|range| &text[range]);
                uri.filter(|raw| raw.starts_with('"'))
                    .is_some_and(|raw| self.uris.contains(&*unescape(raw)))
            }
            _ => false,
        }
    }
}
