//! A session that shares a process: what it has asked the process for.

use std::collections::HashSet;

use uuid::Uuid;

use crate::Principal;
use crate::record::record;
use crate::service::json::unescape;

/// The cost of a subscription besides its URI, and the limits for all subscriptions of a session and of a principal, in bytes.
const SUBSCRIPTION_COST: usize = 64;
const MAX_SUBSCRIPTIONS: usize = 64 << 10;
pub(super) const MAX_SUBSCRIPTIONS_EACH: usize = 1 << 20;

/// The cost of a subscription.
pub(super) fn cost_of(uri: &str) -> usize {
    uri.len() + SUBSCRIPTION_COST
}

/// The log levels as JSON, the most verbose first.
const LEVELS: [&str; 8] = [
    r#""debug""#,
    r#""info""#,
    r#""notice""#,
    r#""warning""#,
    r#""error""#,
    r#""critical""#,
    r#""alert""#,
    r#""emergency""#,
];

/// A log level. The most verbose one is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(usize);

record!(
    Level as String,
    |level| level.as_json().to_owned(),
    |text| { Self::parse(&text) }
);

impl Level {
    /// Parses a log level, which is JSON. `None` if there is no such level.
    pub(crate) fn parse(raw: &str) -> Option<Self> {
        let name = raw.starts_with('"').then(|| unescape(raw))?;
        let levels = LEVELS.iter().map(|level| level.trim_matches('"'));
        levels.into_iter().position(|level| level == name).map(Self)
    }

    pub(crate) fn as_json(self) -> &'static str {
        LEVELS[self.0]
    }
}

/// A session that shares a process.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: Uuid,
    pub(super) principal: Principal,
    /// The log level that it has asked for.
    pub(super) level: Option<Level>,
    /// The resources that it has subscribed to, and what they cost.
    subscriptions: HashSet<Box<str>>,
    pub(super) cost: usize,
    /// Whether it hears of all changes.
    pub(super) is_listening: bool,
}

record!(Member {
    session,
    principal,
    level,
    subscriptions,
    cost,
    is_listening,
});

impl Member {
    pub(super) fn new(session: Uuid, principal: Principal) -> Self {
        Self {
            session,
            principal,
            level: None,
            subscriptions: HashSet::new(),
            cost: 0,
            is_listening: false,
        }
    }

    pub(super) fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.subscriptions.iter().map(|uri| &**uri)
    }

    /// Whether the process must keep running, so that it can report changes.
    pub(super) fn needs_process(&self) -> bool {
        self.is_listening || !self.subscriptions.is_empty()
    }

    /// Returns whether the subscription is new.
    pub(super) fn subscribe(&mut self, uri: &str) -> Result<bool, &'static str> {
        if self.subscriptions.contains(uri) {
            return Ok(false);
        }
        let cost = cost_of(uri);
        if self.cost + cost > MAX_SUBSCRIPTIONS {
            return Err("the session has too many subscriptions");
        }
        self.cost += cost;
        Ok(self.subscriptions.insert(uri.into()))
    }

    /// Returns whether it was subscribed.
    pub(super) fn unsubscribe(&mut self, uri: &str) -> bool {
        let was_subscribed = self.subscriptions.remove(uri);
        if was_subscribed {
            self.cost -= cost_of(uri);
        }
        was_subscribed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_limited_by_their_size() {
        let mut member = Member::new(Uuid::nil(), Principal::Nobody);
        let long = "x".repeat(MAX_SUBSCRIPTIONS - 2 * SUBSCRIPTION_COST - 4);
        assert_eq!(member.subscribe("m:/a"), Ok(true));
        assert_eq!(member.subscribe("m:/a"), Ok(false));
        assert_eq!(member.subscribe(&long), Ok(true));
        assert!(member.subscribe("b").is_err());
        member.unsubscribe(&long);
        member.unsubscribe(&long);
        assert_eq!(member.subscribe("b"), Ok(true));
    }

    #[test]
    fn levels_are_ordered_and_parse_as_they_are_written() {
        let levels = LEVELS.map(|level| Level::parse(level).expect("a level"));
        assert!(levels.is_sorted() && levels.map(Level::as_json) == LEVELS);
        assert_eq!((Level::parse("\"loud\""), Level::parse("1")), (None, None));
    }
}
