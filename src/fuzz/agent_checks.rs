//! What must hold after each operation of the router's fuzz target, by its model.

use std::collections::{HashMap, HashSet};

use super::agent_model::{Passed, RouterModel};
use crate::service::agent::router::{Router, RouterOutput};
use crate::{ClientId, Principal, Scope};

/// Checks that the messages to the agent name no session of another client, and claim none of another owner. The message at the
/// position `claiming` may have claimed one.
pub(super) fn check_passed(
    router: &Router,
    model: &mut RouterModel,
    before: &HashMap<(usize, String), Option<ClientId>>,
    (token, takes_over, claiming): (&str, bool, u64),
) {
    for passed in std::mem::take(&mut model.passed) {
        let Passed {
            client,
            process,
            method,
            position,
            named,
        } = passed;
        for session in named {
            let here = (process, session.clone());
            let controller = before.get(&here).copied().flatten();
            if !matches!(&*method, "session/load" | "session/resume") {
                // A message of the same batch may have claimed the session.
                let has_claimed =
                    position > claiming && router.owner_in(process, &session) == Some(client);
                if controller != Some(client) && !has_claimed {
                    assert_eq!(controller, None, "{session} is another client's");
                    assert!(
                        method.starts_with('_'),
                        "{method} names a session of another client"
                    );
                    assert!(!model.owners.contains_key(&here), "{session} has an owner");
                }
                continue;
            }
            assert_eq!(router.owner_in(process, &session), Some(client));
            let others = controller.filter(|controller| *controller != client);
            if let Some(other) = others {
                assert!(
                    takes_over || model.away.contains(&other),
                    "{other} is there"
                );
            }
            if controller == Some(client) {
                continue;
            }
            let own = &model.principals[&client];
            let may_claim = |(principal, tokens): &(Principal, HashSet<String>)| {
                let is_same = principal.is_same(own) && (others.is_none() || own.is_person());
                is_same || tokens.contains(token)
            };
            if let Some(owner) = model.owners.get(&here) {
                assert!(may_claim(owner), "{session} has another owner");
                continue;
            }
            if model.hidden.contains(&here) {
                continue;
            }
            // A session that nobody controls may come from another process.
            let homes = (0..3).map(|home| (home, session.clone()));
            let homes: Vec<_> = homes
                .filter(|home| model.owners.contains_key(home))
                .collect();
            assert!(
                homes.is_empty() || homes.iter().any(|home| may_claim(&model.owners[home])),
                "{session} of another process has another owner"
            );
        }
    }
}

/// Checks that clients have attached only to sessions that they may observe.
pub(super) fn check_attached(router: &Router, model: &mut RouterModel, token: &str) {
    for (client, session) in std::mem::take(&mut model.attached) {
        let own = &model.principals[&client];
        let is_one = own.is_person() || model.scope(client) == Scope::Watch;
        let may_observe = |process: usize| {
            let owner = model.owners.get(&(process, session.clone()));
            router.is_observer_in(process, client, &session)
                // A session without an owner here was created for a client that had left.
                && owner.is_none_or(|(principal, tokens)| {
                    // Who may load a session that has no client may also observe it.
                    let is_free = router.owner_in(process, &session).is_none();
                    (is_one || is_free) && own.is_same(principal)
                        || tokens.contains(token)
                        || model.watch_tokens.contains(token)
                })
        };
        assert!(
            (0..3).any(may_observe),
            "{client} must not observe {session}"
        );
    }
}

/// Checks that the lists of sessions of a process show clients only sessions that they may know of.
pub(super) fn check_listed(router: &Router, model: &mut RouterModel, process: usize) {
    for (client, session) in std::mem::take(&mut model.listed) {
        let owner = model.owners.get(&(process, session.clone()));
        let controller = router.owner_in(process, &session);
        let own = &model.principals[&client];
        let is_one = own.is_person() || model.scope(client) == Scope::Watch;
        let may_know = owner.is_none_or(|(principal, _)| {
            principal.is_same(own) && (controller.is_none() || is_one)
        });
        // A client may still learn of a session that it has had.
        let has_had = model
            .controlled
            .contains(&(client, process, session.clone()));
        assert!(
            may_know
                || has_had
                || controller == Some(client)
                || router.is_observer_in(process, client, &session),
            "{client} must not see {session} of {process}"
        );
    }
}

/// Checks that a message that names sessions went to the client or an observer of one of them, and that the receiver may know
/// of the others. All are sessions of the process that has sent the message.
pub(super) fn check_updates(router: &Router, model: &mut RouterModel) {
    for (sender, client, named) in std::mem::take(&mut model.updates) {
        let own = &model.principals[&client];
        // A session that is being created for the client, as far as anybody knows.
        let is_early = |process: usize, session: &String| {
            router.owner_in(process, session).is_none() && router.creates_in(process, client)
        };
        let is_its = |process: usize, session: &String| {
            router.owner_in(process, session) == Some(client)
                || router.is_observer_in(process, client, session)
                || is_early(process, session)
        };
        let may_know = |process: usize, session: &String| {
            let owner = model.owners.get(&(process, session.clone()));
            let is_same = owner.is_none_or(|(principal, _)| principal.is_same(own));
            let is_free = router.owner_in(process, session).is_none();
            is_its(process, session)
                || is_same && (is_free || own.is_person() || model.scope(client) == Scope::Watch)
        };
        let mut senders = (0..3).filter(|process| sender.is_none_or(|sender| *process == sender));
        let is_right = |process: usize| {
            named.iter().any(|session| is_its(process, session))
                && named.iter().all(|session| may_know(process, session))
        };
        assert!(
            named.is_empty() || senders.any(is_right),
            "{sender:?} {client} {named:?}"
        );
    }
}
