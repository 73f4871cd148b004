//! Claims: how a client takes control of an existing session with `session/load` or `session/resume`.

use super::access::SessionError;
use super::turns::Activity;
use super::{Claim, Session, SessionState, Sessions, Tokens};
use crate::service::agent::router::clients::{ClientState, remove};
use crate::service::agent::router::ended_sessions::SessionRecord;
use crate::service::agent::router::exchange::Exchange;
use crate::service::agent::router::history::History;
use crate::service::agent::router::output::RouterOutput;
use crate::service::agent::router::session_key::SessionKey;
use crate::service::agent::router::settings::MAX_SESSION_ID;
use crate::service::jsonrpc::Envelope;
use crate::{ClientId, Principal};

impl Tokens {
    pub(super) fn open_with(&self, token: &str) -> bool {
        is_same_secret(token, &self.current)
            || self
                .earlier
                .as_deref()
                .is_some_and(|earlier| is_same_secret(token, earlier))
    }
}

/// A session that a claim may mean.
enum Found {
    Session(SessionKey),
    Ended(SessionRecord),
}

/// A client's rights to a session, the strongest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rights {
    controls: bool,
    has_token: bool,
    /// Its principal owns the session, which is in the client's process.
    owns_here: bool,
    owns: bool,
}

/// A claim that was recorded.
pub(crate) struct Claimed {
    pub(crate) session: SessionKey,
    /// The agent process for the request.
    pub(crate) process: usize,
    /// Whether that process has the session.
    pub(crate) is_kept: bool,
}

impl Sessions {
    /// Records a client's claim on the session with this id. The client counts as the session's controller until the agent has
    /// answered, so it gets the messages that arrive before the response.
    pub(crate) fn claim(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        upstream_id: u64,
        id: &str,
        envelope: &Envelope<'_>,
        output: &impl RouterOutput,
    ) -> Result<Claimed, SessionError> {
        let state = exchange.clients.get(client).ok_or(SessionError::Denied)?;
        let own = state.process.ok_or(SessionError::Denied)?;
        if id.len() > MAX_SESSION_ID {
            return Err(SessionError::Denied);
        }
        let principal = state.principal.clone();
        let token = envelope.resume_token();
        let token = token.as_deref();
        let claim = |proven: bool, process: usize| Claim {
            upstream_id,
            process,
            client,
            token: token.filter(|_| proven).map(Into::into),
        };
        let (state, run, proven) = match self.find_claimed(client, state, id, token) {
            Some((_, Found::Session(key))) => {
                return self.claim_bound(exchange, client, key, envelope, claim, output);
            }
            Some((false, Found::Ended(_))) => return Err(SessionError::Denied),
            Some((true, Found::Ended(record))) => {
                let proven = token.is_some_and(|token| self.ended.opens(id, &record, token));
                (SessionState::Ended(record.clone()), record.agent, proven)
            }
            None if !self.access(exchange).may_load_unknown() => return Err(SessionError::Unknown),
            None => (SessionState::Unknown, None, false),
        };
        self.check_single(client, id, None)?;
        self.check_room(exchange, client)?;
        let kept = run.and_then(|run| exchange.processes.of_run(run));
        let kept = kept.filter(|&process| {
            exchange.processes.version(process) == exchange.processes.version(own)
        });
        let process = kept.unwrap_or(own);
        self.check_id(id, process, None)?;
        if let SessionState::Ended(record) = &state {
            if kept.is_none() {
                self.check_sole_owner(id, &principal, None, Some(record.process))?;
            }
            self.ended.remove(record.process, id);
        }
        let session = Session {
            principal,
            state,
            tokens: None,
            run: exchange.processes.run(process),
            claim: Some(claim(proven, process)),
            activity: Activity::default(),
            observers: Vec::new(),
            watch_token: "".into(),
            history: History::default(),
        };
        let session = self.insert(id, session);
        if let Some(state) = exchange.clients.get_mut(client) {
            state.add_session(&session);
        }
        Ok(Claimed {
            session,
            process,
            is_kept: kept.is_some(),
        })
    }

    /// Finds the session with this id to which a client has the strongest rights. Returns also whether it has any.
    fn find_claimed(
        &self,
        client: ClientId,
        state: &ClientState,
        id: &str,
        token: Option<&str>,
    ) -> Option<(bool, Found)> {
        let rights = |owner: &Principal, process: usize| {
            let owns = owner.is_same(&state.principal);
            let is_here = state.process == Some(process);
            Rights {
                owns_here: owns && is_here,
                owns,
                ..Rights::default()
            }
        };
        let ended = self.ended.find(id).map(|record| {
            let rights = Rights {
                has_token: token.is_some_and(|token| self.ended.opens(id, &record, token)),
                ..rights(&record.principal, record.process)
            };
            (rights, Found::Ended(record))
        });
        let sessions = self.named(id).map(|(key, session)| {
            let rights = Rights {
                controls: session.controller() == Some(client),
                has_token: token.is_some_and(|token| session.is_opened_by(token)),
                ..rights(&session.principal, session.process())
            };
            (rights, Found::Session(key.clone()))
        });
        let (rights, found) = ended.chain(sessions).max_by_key(|(rights, _)| *rights)?;
        Some((rights != Rights::default(), found))
    }

    /// Checks that a process has no session with this id other than `except`.
    fn check_id(
        &self,
        id: &str,
        process: usize,
        except: Option<&SessionKey>,
    ) -> Result<(), SessionError> {
        let mut others = self.named(id);
        if others.any(|(key, session)| Some(key) != except && session.needs(process)) {
            return Err(SessionError::Denied);
        }
        Ok(())
    }

    /// Checks that all other sessions with an id, also ended ones, belong to a principal. A process that does not have the session
    /// any more, or never had it, looks the id up where it may find another owner's session.
    fn check_sole_owner(
        &self,
        id: &str,
        principal: &Principal,
        except: Option<&SessionKey>,
        except_record: Option<usize>,
    ) -> Result<(), SessionError> {
        let mut others = self.named(id).filter(|(key, _)| Some(*key) != except);
        let mut records = self
            .ended
            .find(id)
            .filter(|record| Some(record.process) != except_record);
        if others.any(|(_, session)| !session.principal.is_same(principal))
            || records.any(|record| !record.principal.is_same(principal))
        {
            return Err(SessionError::Denied);
        }
        Ok(())
    }

    /// Claims a session that a client controls, has left, or has lost.
    fn claim_bound(
        &mut self,
        exchange: &mut Exchange,
        client: ClientId,
        key: SessionKey,
        envelope: &Envelope<'_>,
        claim: impl Fn(bool, usize) -> Claim,
        output: &impl RouterOutput,
    ) -> Result<Claimed, SessionError> {
        let state = exchange.clients.get(client);
        let session = self.get(&key);
        let (Some(state), Some(session)) = (state, session) else {
            return Err(SessionError::Denied);
        };
        let own = state.process.ok_or(SessionError::Denied)?;
        let principal = &state.principal;
        let token = envelope.resume_token();
        let proven = token
            .as_deref()
            .is_some_and(|token| session.is_opened_by(token));
        let is_same = session.principal.is_same(principal);
        let mut needs_room = false;
        match session.state {
            _ if session.claim.is_some() => return Err(SessionError::Denied),
            SessionState::Controlled(owner) if owner == client => {}
            SessionState::Controlled(owner) if proven || is_same && principal.is_person() => {
                if !envelope.takes_over() && !output.is_away(owner) {
                    return Err(SessionError::Controlled);
                }
                needs_room = true;
            }
            SessionState::Controlled(_) if is_same => return Err(SessionError::NeedsToken),
            SessionState::Gone(_) if proven || is_same => needs_room = true,
            _ => return Err(SessionError::Denied),
        }
        // A session stays in its process, unless the client speaks another version of the protocol.
        let process = session.run.process;
        let is_same_version =
            exchange.processes.version(process) == exchange.processes.version(own);
        if !is_same_version && session.controller().is_some() {
            return Err(SessionError::Version);
        }
        let process = if is_same_version { process } else { own };
        let is_kept = exchange.processes.run(process) == session.run;
        self.check_single(client, &key, Some(&key))?;
        self.check_id(&key, process, Some(&key))?;
        if !is_kept {
            self.check_sole_owner(&key, principal, Some(&key), None)?;
        }
        let claim = claim(proven, process);
        if needs_room && self.is_client_full(exchange, client) {
            self.end_lost(exchange, client);
            if self.is_client_full(exchange, client) {
                return Err(SessionError::Full);
            }
        }
        if let Some(session) = self.get_mut(&key) {
            session.claim = Some(claim);
        }
        if let Some(state) = exchange.clients.get_mut(client) {
            state.add_session(&key);
        }
        Ok(Claimed {
            session: key,
            process,
            is_kept,
        })
    }

    /// Gives the client control of the session that it claimed with this request. Returns what to add to the response: the
    /// session's tokens. Returns `None` if the claim is gone, because the session was closed or recreated meanwhile.
    pub(crate) fn confirm_claim(
        &mut self,
        exchange: &mut Exchange,
        upstream_id: u64,
        session: &SessionKey,
        output: &mut impl RouterOutput,
    ) -> Option<String> {
        let process = self.get(session)?.process();
        let run = exchange.processes.run(process);
        let bound = self.get_mut(session)?;
        let claim = bound
            .claim
            .take_if(|claim| claim.upstream_id == upstream_id)?;
        bound.history.handle_confirmed(upstream_id);
        let state = exchange.clients.get_mut(claim.client)?;
        let tokens = match (bound.tokens.take(), claim.token) {
            // Only the use of the current token proves that the client has received it. Until then, the earlier token remains
            // valid, and the current one is sent again.
            (Some(tokens), token)
                if tokens.earlier.is_some()
                    && token
                        .as_deref()
                        .is_none_or(|token| !is_same_secret(token, &tokens.current)) =>
            {
                tokens
            }
            (tokens, token) => Tokens {
                current: output.secret().into(),
                earlier: tokens.map(|tokens| tokens.current).or(token),
            },
        };
        let current = tokens.current.clone();
        if bound.watch_token.is_empty() {
            bound.watch_token = output.secret().into();
        }
        // Observers of another owner, or of another version of the protocol, see no more.
        let has_new_owner = bound.principal != state.principal;
        let mut observers = Vec::new();
        if has_new_owner || bound.run.process != run.process {
            observers = std::mem::take(&mut bound.observers);
            bound.watch_token = output.secret().into();
        }
        if bound.run != run {
            bound.activity = Activity::default();
        }
        let added = added_tokens(&current, &bound.watch_token);
        bound.principal = state.principal.clone();
        let before = std::mem::replace(&mut bound.state, SessionState::Controlled(claim.client));
        bound.tokens = Some(tokens);
        bound.run = run;
        // It has control now.
        remove(&mut state.observed, session);
        remove(&mut bound.observers, &claim.client);
        if let SessionState::Controlled(old) = before
            && old != claim.client
        {
            self.take_over(exchange, session, old, claim.client, output);
        }
        if !observers.is_empty() {
            exchange.drop_observers(session, &observers);
        }
        Some(added)
    }

    /// Undoes the claim of a request that failed or gets no response, and restores the session.
    pub(crate) fn unclaim(
        &mut self,
        exchange: &mut Exchange,
        upstream_id: u64,
        session: &SessionKey,
        output: &mut impl RouterOutput,
    ) {
        let Some(bound) = self.get_mut(session) else {
            return;
        };
        let claim = bound
            .claim
            .take_if(|claim| claim.upstream_id == upstream_id);
        let Some(claim) = claim else {
            return;
        };
        match &bound.state {
            SessionState::Controlled(controller) if *controller == claim.client => return,
            SessionState::Controlled(controller) => {
                // What the agent asked meanwhile is for the client that keeps control.
                let controller = *controller;
                exchange.hand_over_questions(session, claim.client, controller, output);
            }
            SessionState::Gone(_) => bound.cancel_turn(session, output),
            SessionState::Unknown => _ = self.remove(session),
            SessionState::Ended(record) => {
                let record = record.clone();
                self.remove(session);
                self.restore(session, record);
            }
        }
        if let Some(bound) = self.get(session)
            && let SessionState::Gone(since) = bound.state
        {
            // The grace period may be over by now.
            self.begin_grace(exchange, since, session);
        }
        if let Some(state) = exchange.clients.get_mut(claim.client) {
            remove(&mut state.sessions, session);
        }
        self.drop_adopted(exchange, claim.client, session, output);
    }
}

/// What Outrigger adds to the response that gives a client control of a session.
pub(super) fn added_tokens(resume: &str, watch: &str) -> String {
    format!(r#"{{"resumeToken":"{resume}","watchToken":"{watch}"}}"#)
}

/// Compares two secrets in constant time.
pub(crate) fn is_same_secret(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}
