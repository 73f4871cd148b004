//! A model of the topics: which clients the service has subscribed to what.

use std::collections::{BTreeMap, BTreeSet};

use crate::Message;
use crate::server::{ClientId, Context, Keep, SubscribeError};

/// The names of the topics.
const NAMES: [&str; 3] = ["/", "news", "é"];

/// The topics of each client.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    members: BTreeMap<ClientId, BTreeSet<&'static str>>,
}

impl Rooms {
    /// Does what a letter says, and compares the results with the model.
    pub(super) fn act(&mut self, ctx: &mut Context, client: ClientId, letter: u8) {
        let message = Message::Binary(&[letter; 900][..usize::from(letter) * 7]);
        let name = NAMES[client.serial() as usize % NAMES.len()];
        match letter {
            b'u' | b'k' => {
                let keep = if letter == b'k' {
                    Keep::Latest
                } else {
                    Keep::All
                };
                let topics = self.members.entry(client).or_default();
                match ctx.subscribe_keeping(client, name, keep) {
                    Ok(is_new) => assert_eq!(topics.insert(name), is_new),
                    // A CLOSE of the service may wait for unsent messages.
                    Err(SubscribeError::Client(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                let _ = ctx.subscribe_keeping(client, NAMES[0], keep).map(|is_new| {
                    assert_eq!(topics.insert(NAMES[0]), is_new);
                });
            }
            b'U' => {
                let topics = self.members.entry(client).or_default();
                assert_eq!(ctx.unsubscribe(client, name), topics.remove(name));
                assert!(!ctx.unsubscribe(client, name));
            }
            b'V' => {
                let sent = ctx.publish_except(client, NAMES[0], message);
                assert!(sent <= self.count(NAMES[0], Some(client)));
            }
            _ => {
                for name in [name, NAMES[0], name] {
                    let sent = ctx.publish(name, message);
                    assert!(sent <= self.count(name, None));
                }
            }
        }
    }

    fn count(&self, name: &str, except: Option<ClientId>) -> usize {
        let members = self.members.iter();
        let others = members.filter(|(client, _)| Some(**client) != except);
        others.filter(|(_, topics)| topics.contains(name)).count()
    }

    pub(super) fn disconnected(&mut self, ctx: &mut Context, client: ClientId) {
        self.members.remove(&client);
        assert_eq!(ctx.topics(client).count(), 0);
        ctx.publish(NAMES[0], "someone left");
    }

    /// Compares the model with the memberships and with their index.
    pub(super) fn check(&self, ctx: &Context) {
        for (client, topics) in &self.members {
            let found: BTreeSet<_> = ctx.topics(*client).collect();
            assert!(found.iter().eq(topics), "{client}: {found:?} {topics:?}");
        }
        for name in NAMES {
            let found: BTreeSet<_> = ctx.subscribers(name).collect();
            let members = self.members.iter();
            let expected = members.filter(|(_, topics)| topics.contains(name));
            assert!(
                found.iter().eq(expected.map(|(client, _)| client)),
                "{name}"
            );
        }
    }
}
