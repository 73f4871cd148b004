//! The members of a message, noted in the one scan that validates it.

use std::borrow::Cow;
use std::ops::Range;

use super::spelling::{MISSPELLED, is_meta, is_spelling_of};
use crate::service::json::{NotJson, Skimmer};

/// The maximum number of characters of a key that are kept for an error.
const MAX_SHOWN_KEY: usize = 40;

/// The number of members of an object that are noted: those of a `tools/call` and of its `_meta`, for example.
const MAX_NOTED: usize = 5;

/// The members of an object, noted while it is scanned, so that it need not be scanned again. It is small, because a message moves
/// often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    /// Where the key begins, behind its quote, and where the value begins and ends.
    noted: [[u32; 3]; MAX_NOTED],
    count: u8,
    /// Whether the object has a member that was not noted: one too many, or a key with escapes.
    has_others: bool,
}

impl Members {
    /// Notes a member of an object in `text`. `key` is that part of the text, or `None` if it has escapes.
    fn note(&mut self, text: &str, key: Option<&str>, value: &Range<usize>) {
        let noted = self.noted.get_mut(usize::from(self.count));
        if let (Some(key), Some(noted), Ok(_)) = (key, noted, u32::try_from(value.end)) {
            let start = key.as_ptr().addr() - text.as_ptr().addr();
            *noted = [start, value.start, value.end].map(|at| at as u32);
            self.count += 1;
        } else {
            self.has_others = true;
        }
    }

    /// The value of a key that `object` has exactly once.
    pub(super) fn find(
        &self,
        text: &str,
        object: Option<&Range<usize>>,
        name: &str,
    ) -> Option<Range<usize>> {
        let object = object?;
        if self.has_others {
            return member(text, object, name);
        }
        let noted = self.noted[..usize::from(self.count)].iter();
        let mut found = noted.filter(|[start, ..]| {
            let rest = text[*start as usize..].strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with('"'))
        });
        let &[_, start, end] = found.next()?;
        let is_only = found.next().is_none();
        is_only.then_some(start as usize..end as usize)
    }
}

/// A key without escapes, as a part of the text.
fn plain<'a>(key: &Cow<'a, str>) -> Option<&'a str> {
    match key {
        Cow::Borrowed(key) => Some(key),
        Cow::Owned(_) => None,
    }
}

/// The members of `params` or `result` that routing reads.
#[derive(Default)]
pub(super) struct Body {
    pub(super) range: Range<usize>,
    pub(super) members: Members,
    pub(super) meta_members: Members,
    pub(super) session: Once,
    pub(super) request_id: Once,
    pub(super) meta: Once,
    pub(super) prompt: Once,
    /// The first two under another spelling.
    pub(super) other_session: Once,
    pub(super) other_request: Once,
    /// Whether a member that routing reads occurs twice.
    pub(super) has_duplicate: bool,
    pub(super) has_two_prompts: bool,
    /// Whether the object has `_meta` under a spelling that differs in case alone.
    pub(super) has_meta_twin: bool,
    pub(super) has_other_meta: bool,
}

impl Body {
    /// Scans the object in front of which the cursor is. Fills itself in place, because a `Body` is large.
    pub(super) fn read(&mut self, skimmer: &mut Skimmer<'_>) -> Result<(), NotJson> {
        let text = skimmer.text();
        self.range = skimmer.nested(|skimmer, key| {
            let before = skimmer.budget();
            if key == "_meta" {
                // Only the last one counts where a duplicate is permitted.
                self.meta_members = Members::default();
            }
            let value = if key == "_meta" && skimmer.peek() == Some(b'{') {
                skimmer.nested(|skimmer, key| {
                    let value = skimmer.value()?;
                    self.meta_members.note(text, plain(&key), &value);
                    Ok(())
                })?
            } else {
                skimmer.value()?
            };
            self.members.note(text, plain(&key), &value);
            self.has_duplicate |= match &*key {
                "sessionId" => !self.session.set(value),
                "requestId" => !self.request_id.set(value),
                "_meta" => {
                    // It is searched for several fields later.
                    skimmer.count_again(before)?;
                    !self.meta.set(value)
                }
                "prompt" => {
                    self.has_two_prompts |= !self.prompt.set(value);
                    false
                }
                other if is_spelling_of(other, "sessionId") => !self.other_session.set(value),
                other if is_spelling_of(other, "requestId") => !self.other_request.set(value),
                other => {
                    if is_meta(other) {
                        self.has_other_meta = true;
                        skimmer.count_again(before)?;
                    }
                    self.has_meta_twin |= other.eq_ignore_ascii_case("_meta");
                    false
                }
            };
            Ok(())
        })?;
        Ok(())
    }
}

/// The members of a message.
#[derive(Default)]
pub(super) struct Outer {
    version: Once,
    pub(super) id: Once,
    pub(super) method: Once,
    pub(super) params: Once,
    pub(super) result: Once,
    pub(super) error: Once,
    /// `params` and `result`, if they are objects.
    pub(super) params_body: Option<Body>,
    pub(super) result_body: Option<Body>,
    pub(super) unknown_member: Option<String>,
    /// Whether a member that JSON-RPC has occurs twice.
    pub(super) has_duplicate: bool,
    /// Whether a key is another spelling of one that JSON-RPC has.
    has_twin: bool,
}

impl Outer {
    /// The members that JSON-RPC has.
    const NAMES: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

    /// Scans the object in front of which the cursor is. Fills itself in place, because an `Outer` is large.
    pub(super) fn read(&mut self, skimmer: &mut Skimmer<'_>) -> Result<(), NotJson> {
        skimmer.members(|skimmer, key| {
            let mut no_body = None;
            let (slot, body) = match &*key {
                "jsonrpc" => (&mut self.version, &mut no_body),
                "id" => (&mut self.id, &mut no_body),
                "method" => (&mut self.method, &mut no_body),
                "params" => (&mut self.params, &mut self.params_body),
                "result" => (&mut self.result, &mut self.result_body),
                "error" => (&mut self.error, &mut no_body),
                other => {
                    self.has_twin |= Self::NAMES.iter().any(|name| is_spelling_of(other, name));
                    self.unknown_member
                        .get_or_insert_with(|| other.chars().take(MAX_SHOWN_KEY).collect());
                    return skimmer.value().map(drop);
                }
            };
            let is_body = matches!(&*key, "params" | "result");
            let value = if is_body && skimmer.peek() == Some(b'{') {
                let body = body.insert(Body::default());
                body.read(skimmer)?;
                body.range.clone()
            } else {
                skimmer.value()?
            };
            self.has_duplicate |= !slot.set(value);
            Ok(())
        })
    }

    /// The id, if an error response may have it: it is valid, and there is no other one.
    pub(super) fn usable_id(&self, text: &str) -> Option<Range<usize>> {
        let id = self.id.0.clone();
        id.filter(|id| is_id(text, id) && !self.has_duplicate)
    }

    /// Checks each member for itself. Drops `result` or `error` if it is null and the other one is there, because some
    /// implementations write both.
    pub(super) fn check(&mut self, text: &str) -> Result<(), &'static str> {
        if self.has_duplicate {
            return Err("duplicate key");
        }
        let version = self.version.0.as_ref();
        if version.is_none_or(|version| &text[version.clone()] != "\"2.0\"") {
            return Err("\"jsonrpc\" is not \"2.0\"");
        }
        if self.id.0.as_ref().is_some_and(|id| !is_id(text, id)) {
            return Err("\"id\" is neither a string nor a number nor null");
        }
        if self.has_twin {
            return Err(MISSPELLED);
        }
        let is_null = |once: &Once| {
            let value = once.0.as_ref();
            value.is_some_and(|range| &text[range.clone()] == "null")
        };
        match (is_null(&self.result), is_null(&self.error)) {
            (_, true) if self.result.0.is_some() => self.error.0 = None,
            (true, false) if self.error.0.is_some() => self.result.0 = None,
            _ => {}
        }
        Ok(())
    }
}

/// Whether a value can be an id: a string, a number or null.
fn is_id(text: &str, value: &Range<usize>) -> bool {
    let first = text.as_bytes()[value.start];
    matches!(first, b'"' | b'-' | b'0'..=b'9' | b'n')
}

/// A value that may occur once in an object.
#[derive(Default)]
pub(super) struct Once(pub(super) Option<Range<usize>>);

impl Once {
    /// Sets the value. Returns false if it was set before.
    fn set(&mut self, value: Range<usize>) -> bool {
        self.0.replace(value).is_none()
    }
}

/// The value of a key in the object at `range`. `None` if the value there is not an object, or does not have the key
/// exactly once.
pub(crate) fn member(text: &str, range: &Range<usize>, name: &str) -> Option<Range<usize>> {
    let (mut found, mut count) = (None, 0);
    Skimmer::at(text, range)
        .object(|key, value| {
            if key == name {
                found = Some(value);
                count += 1;
            }
        })
        .ok()?;
    found.filter(|_| count == 1)
}
