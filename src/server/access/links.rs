//! Links: tokens that the server issues while it runs. Each one permits watching one resource until it expires.

use std::time::Duration;

use slab::Slab;

use super::check::percent_decode;
use super::tokens::CredentialId;
use super::{Credential, Principal, Secret, Token};
use crate::protocol::Time;
use crate::record::{RecordError, record};

/// The length of a token that the server generates: hexadecimal digits.
const TOKEN: usize = 64;

/// The maximum number of places of a string at which a token is looked for.
const MAX_CANDIDATES: usize = 256;

/// What a link shows.
///
/// ```
/// use outrigger::LinkTarget;
///
/// let target = LinkTarget::new("/acp").with_item("session-1");
/// assert_eq!((target.path(), target.item()), ("/acp", Some("session-1")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkTarget {
    path: Box<str>,
    item: Option<Box<str>>,
    may_answer: bool,
}

record!(LinkTarget {
    path,
    item,
    may_answer
});

impl LinkTarget {
    /// Everything at a path. The holder of the link may send requests to this path only.
    pub fn new(path: impl Into<Box<str>>) -> Self {
        Self {
            path: path.into(),
            item: None,
            may_answer: false,
        }
    }

    /// One thing at the path, such as a session of an agent. The service checks that the holder watches nothing else.
    #[must_use]
    pub fn with_item(mut self, item: impl Into<Box<str>>) -> Self {
        self.item = Some(item.into());
        self
    }

    /// The holder may also answer questions, such as permission requests of an agent. The service checks that it does nothing
    /// else.
    #[must_use]
    pub fn with_answers(self) -> Self {
        Self {
            may_answer: true,
            ..self
        }
    }

    /// The path of the requests that the link permits.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What the link shows at the path, if the path has several things.
    #[must_use]
    pub fn item(&self) -> Option<&str> {
        self.item.as_deref()
    }

    /// Whether the holder may also answer questions.
    #[must_use]
    pub fn may_answer(&self) -> bool {
        self.may_answer
    }
}

/// A token that the server has issued.
#[derive(Debug)]
pub(crate) struct Link {
    /// The number of the link, counted from 1 and never reused.
    pub(crate) id: u64,
    pub(crate) target: LinkTarget,
    /// Who asked for it.
    pub(crate) issuer: Principal,
    /// The token that the issuer presented. If it is revoked, so is the link.
    credential: Option<Credential>,
    secret: Secret,
    pub(crate) expires: Time,
}

record!(Link {
    id,
    target,
    issuer,
    credential,
    secret,
    expires,
});

/// All links that have not expired.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: Slab<Link>,
    last_id: u64,
}

record!(Links { links, last_id } => Self::checked);

impl Links {
    /// The maximum number of links.
    pub(crate) const MOST: usize = 256;

    /// The maximum number of clients that use one link at once.
    pub(crate) const MOST_CLIENTS: usize = 32;

    /// A slot is the credential of the clients that use the link.
    fn checked(self) -> Result<Self, RecordError> {
        let is_valid = self.links.iter().all(|(slot, _)| slot < Self::MOST);
        let wrong = || RecordError::new("there are too many links");
        is_valid.then_some(self).ok_or_else(wrong)
    }

    /// Issues a link. Returns its number and its token, or `None` if there are too many.
    pub(crate) fn issue(
        &mut self,
        target: LinkTarget,
        issuer: Principal,
        credential: Option<Credential>,
        expires: Time,
    ) -> Option<(u64, Token)> {
        if self.links.len() >= Self::MOST {
            return None;
        }
        let token = Token::generate();
        self.last_id += 1;
        self.links.insert(Link {
            id: self.last_id,
            target,
            issuer,
            credential,
            secret: token.clone().into(),
            expires,
        });
        Some((self.last_id, token))
    }

    /// The link whose token a client presented. Its time does not depend on which one that is.
    pub(crate) fn matching(&self, secret: &Secret) -> Option<CredentialId> {
        let mut found = None;
        for (slot, link) in &self.links {
            if link.secret == *secret {
                found = Some(slot);
            }
        }
        CredentialId::of_link(found?)
    }

    /// The link of a client's credential; `None` for any other credential.
    pub(crate) fn get(&self, id: CredentialId) -> Option<&Link> {
        self.links.get(id.link()?)
    }

    /// The links and their credentials, in the order in which they were issued.
    pub(crate) fn all(&self) -> Vec<(CredentialId, &Link)> {
        let links = self.links.iter();
        let links = links.filter_map(|(slot, link)| Some((CredentialId::of_link(slot)?, link)));
        let mut links: Vec<_> = links.collect();
        links.sort_by_key(|(_, link)| link.id);
        links
    }

    /// Removes the links for which `is_over` is true. Returns their credentials. The caller revokes them for all clients that hold
    /// them.
    pub(crate) fn remove(&mut self, mut is_over: impl FnMut(&Link) -> bool) -> Vec<CredentialId> {
        let mut removed = Vec::new();
        self.links.retain(|slot, link| {
            let is_over = is_over(link);
            if is_over {
                removed.extend(CredentialId::of_link(slot));
            }
            !is_over
        });
        removed
    }

    /// When the next link expires.
    pub(crate) fn next_expiry(&self) -> Option<Time> {
        self.links.iter().map(|(_, link)| link.expires).min()
    }

    /// Whether a string contains the token of a link, in any letter case or percent-encoded. A stranger may send the text, so its
    /// cost depends little on the number of links, and it is limited.
    pub(crate) fn are_revealed_by(&self, text: &str) -> bool {
        if self.links.is_empty() {
            return false;
        }
        let decoded = percent_decode(text).to_ascii_lowercase();
        let words = decoded.split(|byte| !byte.is_ascii_hexdigit());
        let mut candidates = words
            .flat_map(|word| word.windows(TOKEN))
            .take(MAX_CANDIDATES);
        candidates.any(|one| self.matching(&Secret::digest_of(one)).is_some())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

impl Link {
    /// The time until it expires.
    pub(crate) fn expires_in(&self, now: Time) -> Duration {
        self.expires.since(now)
    }

    /// The token that the issuer presented.
    pub(crate) fn credential(&self) -> Option<&Credential> {
        self.credential.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(links: &mut Links, seconds: u64) -> Option<(u64, Token)> {
        let expires = Time::default() + Duration::from_secs(seconds);
        links.issue(LinkTarget::new("/a"), Principal::Token, None, expires)
    }

    #[test]
    fn a_link_is_found_by_its_token_until_it_is_removed() {
        let mut links = Links::default();
        let (first, one) = issue(&mut links, 10).expect("room");
        let (second, other) = issue(&mut links, 5).expect("room");
        assert_eq!((first, second), (1, 2));
        let held = links.matching(&one.clone().into()).expect("known");
        assert_eq!(links.get(held).map(|link| link.id), Some(first));
        assert!(links.matching(&Token::generate().into()).is_none());
        let shown = one.reveal().to_ascii_uppercase().replacen('A', "%41", 1);
        assert!(
            links.are_revealed_by(&format!("/x{shown}"))
                && links.are_revealed_by(&format!("/a{shown}b"))
                && !links.are_revealed_by("/x")
        );
        assert_eq!(
            links.next_expiry(),
            Some(Time::default() + Duration::from_secs(5))
        );
        let due = Time::default() + Duration::from_secs(7);
        assert_eq!(links.remove(|link| link.expires <= due).len(), 1);
        assert!(links.matching(&other.into()).is_none());
        assert_eq!(links.get(held).map(|link| link.id), Some(first));
        assert_eq!(links.remove(|_| true), [held]);
        assert!(links.is_empty() && links.get(held).is_none());
        // A number is not reused.
        assert_eq!(issue(&mut links, 1).map(|(id, _)| id), Some(3));
    }

    #[test]
    fn the_number_of_links_is_limited_and_no_link_is_taken_for_a_token() {
        let mut links = Links::default();
        for _ in 0..Links::MOST {
            let (_, token) = issue(&mut links, 1).expect("room");
            let id = links.matching(&token.into()).expect("known");
            assert!(id.link().is_some() && id != CredentialId::REVOKED);
        }
        assert!(issue(&mut links, 1).is_none());
        assert_eq!(CredentialId::REVOKED.link(), None);
    }
}
