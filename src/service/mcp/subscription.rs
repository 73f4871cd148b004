//! Subscriptions to changes in revision 2026-07-28: their filters, and the messages that carry their ids.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::record::record;
use crate::service::json::{Skimmer, quote, unescape};
use crate::service::jsonrpc::{Envelope, SUBSCRIPTION, member, splice, with_params_meta, without};

/// The maximum number of a resource's parents that are looked up among the subscriptions, and the maximum length of each.
const MAX_PARENTS: usize = 64;
const MAX_PARENT: usize = 4 << 10;

/// The filter of a subscription.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    tools: bool,
    prompts: bool,
    resources: bool,
    /// The resources whose changes are wanted.
    uris: BTreeSet<Box<str>>,
}

record!(Filter {
    tools,
    prompts,
    resources,
    uris,
});

impl Filter {
    /// Reads `params.notifications`. Malformed members are ignored.
    pub(crate) fn of(envelope: &Envelope<'_>) -> Self {
        let text = envelope.text;
        let Some(wanted) = envelope.of_body("notifications") else {
            return Self::default();
        };
        let is_true = |key| member(text, &wanted, key).is_some_and(|range| &text[range] == "true");
        let mut uris = BTreeSet::new();
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

    /// All changes of lists.
    pub(crate) fn lists() -> Self {
        Self {
            tools: true,
            prompts: true,
            resources: true,
            uris: BTreeSet::new(),
        }
    }

    /// The resources whose changes are wanted.
    pub(crate) fn uris(&self) -> impl Iterator<Item = &str> {
        self.uris.iter().map(|uri| &**uri)
    }

    /// Leaves out what a server with these capabilities, which are JSON, does not report.
    pub(crate) fn restrict(&mut self, capabilities: &str) {
        let reports = |name, what| {
            let of_name = member(capabilities, &(0..capabilities.len()), name);
            let value = of_name.and_then(|range| member(capabilities, &range, what));
            value.is_some_and(|range| &capabilities[range] == "true")
        };
        self.tools &= reports("tools", "listChanged");
        self.prompts &= reports("prompts", "listChanged");
        self.resources &= reports("resources", "listChanged");
        if !reports("resources", "subscribe") {
            self.uris.clear();
        }
    }

    /// The server does not report changes of this resource.
    pub(crate) fn remove(&mut self, uri: &str) {
        self.uris.remove(uri);
    }

    /// As JSON.
    pub(crate) fn to_json(&self) -> String {
        let lists = [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ];
        let lists = lists.into_iter().filter(|(_, is_wanted)| *is_wanted);
        let mut members: Vec<String> = lists.map(|(name, _)| format!(r#""{name}":true"#)).collect();
        if !self.uris.is_empty() {
            let uris: Vec<String> = self.uris().map(quote).collect();
            members.push(format!(r#""resourceSubscriptions":[{}]"#, uris.join(",")));
        }
        format!("{{{}}}", members.join(","))
    }

    /// Whether a notification is wanted.
    pub(crate) fn wants(&self, method: &str, envelope: &Envelope<'_>) -> bool {
        match method {
            "notifications/tools/list_changed" => self.tools,
            "notifications/prompts/list_changed" => self.prompts,
            "notifications/resources/list_changed" => self.resources,
            "notifications/resources/updated" => {
                let text = envelope.text;
                let uri = envelope.of_body("uri").map(|range| &text[range]);
                let uri = uri.filter(|raw| raw.starts_with('"')).map(unescape);
                uri.is_some_and(|uri| with_parents(&uri).any(|uri| self.uris.contains(uri)))
            }
            _ => false,
        }
    }
}

/// A resource, and those that it may be a part of.
pub(crate) fn with_parents(uri: &str) -> impl Iterator<Item = &str> {
    let ends = uri.match_indices(['/', '?', '#']).take(MAX_PARENTS);
    let ends = ends.take_while(|(at, _)| *at < MAX_PARENT);
    let parents = ends.flat_map(|(at, _)| [&uri[..at], &uri[..=at]]);
    let parents = parents.filter(move |parent| parent.len() < uri.len());
    [uri].into_iter().chain(parents)
}

/// A notification with the id of a subscription in `params._meta`.
pub(crate) fn with_subscription(envelope: &Envelope<'_>, id: &str) -> String {
    with_params_meta(envelope, &format!(r#""{SUBSCRIPTION}":{id}"#))
}

/// A notification without the id of a subscription.
pub(crate) fn without_subscription(envelope: &Envelope<'_>) -> String {
    let text = envelope.text;
    match &envelope.meta {
        Some(meta) if envelope.of_meta(SUBSCRIPTION).is_some() => {
            let kept = without(text, meta, &[SUBSCRIPTION]);
            splice(text, &mut [(meta.clone(), &kept)]).concat()
        }
        _ => text.to_owned(),
    }
}

/// The answer to `subscriptions/listen`, which ends the subscription.
pub(crate) fn subscription_ended(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"{SUBSCRIPTION}":{id}}}}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_a_part_of_few_and_short_ones() {
        // The bug: a long URI was hashed for each of its slashes and for each session, and stalled the loop.
        let all: Vec<&str> = with_parents("m:/a/b?c").collect();
        assert_eq!(
            all,
            [
                "m:/a/b?c", "m:", "m:/", "m:/a", "m:/a/", "m:/a/b", "m:/a/b?"
            ]
        );
        let long = format!("m:{}{}", "x".repeat(15 << 20), "/".repeat(1000));
        assert_eq!(with_parents(&long).count(), 1);
        let many = "/".repeat(1000);
        assert_eq!(with_parents(&many).count(), 1 + 2 * MAX_PARENTS);
    }
}
