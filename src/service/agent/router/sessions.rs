//! Whose session is whose.

use std::sync::Arc;

use super::{
    Asked, Before, Class, Denied, MAX_SESSION_ID, Router, Session, Waiting, Wires, cancel, remove,
};
use crate::service::agent::answer::answer_for_nobody;
use crate::service::agent::envelope::{Envelope, member};
use crate::service::agent::json::{Skimmer, quote, unescape};
use crate::{ClientId, Time};

impl Router {
    pub(super) fn is_owner(&self, client: ClientId, session: &str) -> bool {
        self.sessions
            .get(session)
            .is_some_and(|session| session.owner == Some(client))
    }

    /// Whether a client may name a session: it is the owner, and the agent knows the session.
    pub(super) fn may_use(&self, client: ClientId, session: &str) -> bool {
        self.is_owner(client, session)
            && self.sessions.get(session).is_some_and(|bound| !bound.lost)
    }

    /// Whether a client may have one more session, those counted that it has asked for. Where all clients together
    /// have too many, the one that has waited longest for its owner makes room.
    pub(super) fn has_room_for_session(&mut self, client: ClientId) -> bool {
        let count = |router: &Self| {
            router.peers.get(&client).map_or(0, |peer| {
                let creates = |id| {
                    matches!(
                        router.waiting.get(id),
                        Some(Waiting {
                            class: Class::Create,
                            ..
                        })
                    )
                };
                peer.sessions.len() + peer.waiting.iter().filter(|id| creates(*id)).count()
            })
        };
        if count(self) >= self.limits.sessions {
            self.drop_lost(client);
        }
        if self.sessions.len() >= self.limits.all_sessions {
            let left =
                |(name, session): (&Arc<str>, &Session)| Some((session.left?, Arc::clone(name)));
            let longest = self.sessions.iter().filter_map(left).min();
            if let Some((_, name)) = longest {
                self.sessions.remove(&name);
            }
        }
        count(self) < self.limits.sessions && self.sessions.len() < self.limits.all_sessions
    }

    /// A session is about to move: what its former owner was having done in it is stopped, as if it had left.
    fn stop_prompts(&self, owner: ClientId, session: &str, wires: &mut impl Wires) {
        let prompts = |id| {
            self.waiting.get(id).is_some_and(|waiting| {
                waiting.class == Class::Prompt && waiting.session.as_deref() == Some(session)
            })
        };
        if self
            .peers
            .get(&owner)
            .is_some_and(|peer| peer.waiting.iter().any(prompts))
        {
            wires.to_agent(&cancel(&quote(session)));
        }
    }

    /// Lets go of a client's sessions that died with the agent.
    pub(super) fn drop_lost(&mut self, client: ClientId) {
        let Some(peer) = self.peers.get_mut(&client) else {
            return;
        };
        let sessions = &mut self.sessions;
        peer.sessions.retain(|session| {
            let lost = sessions
                .get(session)
                .is_none_or(|bound| bound.lost && bound.claim.is_none());
            if lost {
                sessions.remove(session);
            }
            !lost
        });
    }

    /// Binds a session to a client that asks for it by name, until the agent has answered: what comes for it before the
    /// answer is the client's already. What it was before is returned.
    pub(super) fn claim(
        &mut self,
        client: ClientId,
        ours: u64,
        session: &Arc<str>,
        envelope: &Envelope<'_>,
        wires: &mut impl Wires,
    ) -> Result<Option<Before>, Denied> {
        if session.len() > MAX_SESSION_ID {
            return Err(Denied);
        }
        let before = match self.sessions.get(session) {
            None => None,
            Some(bound) => {
                let owns = bound.owner == Some(client);
                let proves = envelope
                    .resume_token()
                    .is_some_and(|token| is_same_secret(&token, &bound.token));
                // Someone else's, or one whose owner may come back, moves only with its token; one that is being
                // claimed does not move.
                if bound.claim.is_some() || !(owns || proves) {
                    return Err(Denied);
                }
                Some(Before {
                    owner: bound.owner,
                    token: bound.token.clone(),
                    left: bound.left,
                    lost: bound.lost,
                })
            }
        };
        if let Some(owner) = before.as_ref().and_then(|before| before.owner)
            && owner != client
        {
            self.stop_prompts(owner, session, wires);
        }
        self.bind(client, session, wires.secret(), Some(ours));
        Ok(before)
    }

    /// The agent said no, or its answer is not waited for any more: what the request `ours` has bound is as it was.
    pub(super) fn unclaim(
        &mut self,
        now: Time,
        ours: u64,
        session: &Arc<str>,
        before: Option<Before>,
    ) {
        if self
            .sessions
            .get(session)
            .is_none_or(|bound| bound.claim != Some(ours))
        {
            return;
        }
        self.unbind(session);
        let Some(Before {
            owner,
            token,
            left,
            lost,
        }) = before
        else {
            return;
        };
        let owner = owner.filter(|owner| self.peers.contains_key(owner));
        // An owner that has left meanwhile has its time to come back all the same.
        let left = if owner.is_none() {
            left.or(Some(now))
        } else {
            None
        };
        if owner.is_none() && self.limits.grace.is_none() {
            return;
        }
        self.left |= left.is_some();
        if let Some(peer) = owner.and_then(|owner| self.peers.get_mut(&owner)) {
            peer.sessions.push(Arc::clone(session));
        }
        let bound = Session {
            owner,
            token,
            left,
            claim: None,
            lost,
        };
        self.sessions.insert(Arc::clone(session), bound);
    }

    pub(super) fn bind(
        &mut self,
        client: ClientId,
        session: &Arc<str>,
        token: String,
        claim: Option<u64>,
    ) {
        self.unbind(session);
        if let Some(peer) = self.peers.get_mut(&client) {
            peer.sessions.push(Arc::clone(session));
        }
        let bound = Session {
            owner: Some(client),
            token,
            left: None,
            claim,
            lost: false,
        };
        self.sessions.insert(Arc::clone(session), bound);
    }

    pub(super) fn unbind(&mut self, session: &Arc<str>) {
        let bound = self.sessions.remove(session);
        if let Some(peer) = bound
            .and_then(|bound| bound.owner)
            .and_then(|owner| self.peers.get_mut(&owner))
        {
            remove(&mut peer.sessions, session);
        }
    }

    /// Whether a new session may have this name: nobody has it, or only asks for it without ever having had it.
    pub(super) fn is_free(&self, session: &str) -> bool {
        let Some(bound) = self.sessions.get(session) else {
            return true;
        };
        let claim = bound.claim.and_then(|claim| self.waiting.get(&claim));
        claim.is_some_and(|claim| claim.class == Class::Claim { before: None })
    }

    /// A session has come for a client that has left: it is kept from others until the grace time is over.
    pub(super) fn keep_from_all(
        &mut self,
        now: Time,
        envelope: &Envelope<'_>,
        wires: &mut impl Wires,
    ) {
        let session = envelope
            .session
            .as_deref()
            .filter(|session| session.len() <= MAX_SESSION_ID);
        if let Some(session) = session.filter(|session| self.is_free(session))
            && self.limits.grace.is_some()
        {
            let session = Arc::from(session);
            self.unbind(&session);
            let token = wires.secret();
            let bound = Session {
                owner: None,
                token,
                left: Some(now),
                claim: None,
                lost: false,
            };
            self.sessions.insert(session, bound);
            self.left = true;
        }
    }

    /// A session has moved: what its former owner was asked about it is answered in its place.
    pub(super) fn release_asked(&mut self, owner: ClientId, session: &str, wires: &mut impl Wires) {
        let stale = |asked: &Asked| asked.client != owner && &*asked.session == session;
        let ids: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, asked)| stale(asked))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let Some(asked) = self.asked.remove(&id) else {
                continue;
            };
            if let Some(peer) = self.peers.get_mut(&asked.client) {
                remove(&mut peer.asked, &id);
            }
            wires.to_agent(&[&answer_for_nobody(&asked.id, asked.permission)]);
        }
    }

    /// The agent's answer to `session/list` without the sessions that are another client's.
    pub(super) fn list_for(&self, client: ClientId, envelope: &Envelope<'_>) -> String {
        let text = envelope.text;
        let sessions = envelope
            .body
            .as_ref()
            .and_then(|result| member(text, result, "sessions"));
        let Some(sessions) = sessions.filter(|sessions| text.as_bytes()[sessions.start] == b'[')
        else {
            return text.to_owned();
        };
        let mut kept: Vec<&str> = Vec::new();
        let walked = Skimmer::at(text, &sessions).array(|element| {
            let id = member(text, &element, "sessionId")
                .map(|id| &text[id])
                .filter(|id| id.starts_with('"'));
            let bound = id.and_then(|id| self.sessions.get(&*unescape(id)));
            if bound.is_none_or(|bound| bound.owner == Some(client)) {
                kept.push(&text[element]);
            }
        });
        debug_assert!(walked.is_ok(), "the text was walked over before");
        [
            &text[..sessions.start],
            "[",
            &kept.join(","),
            "]",
            &text[sessions.end..],
        ]
        .concat()
    }
}

/// Compares without telling by its time how much is the same.
fn is_same_secret(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}
