//! Heartbeats: a page does not see PINGs, so it asks with a message whether the connection lives. The answer says how many messages the
//! server has received from the client. Neither is counted as a message, and no service sees them.
//! The server's own PINGs are in `protocol/websocket/timeouts.rs`.

use super::Client;
use super::wire::Wire;
use crate::protocol::{Message, SentHeader};
use crate::server::env::Env;

/// What a client sends, before and after the name of its heartbeat.
const ASKED: (&str, &str) = (r#"{"outrigger":{"heartbeat":""#, r#""}}"#);

/// The shortest and the longest name of a heartbeat. Clients choose it at random, so that no other message is taken for an answer.
const NAME: std::ops::RangeInclusive<usize> = 16..=64;

/// Returns whether a string is a valid heartbeat name. A parameter with any other value is left to the service.
pub(crate) fn is_heartbeat_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    NAME.contains(&text.len()) && text.bytes().all(is_plain)
}

impl Wire {
    /// Whether a message is the heartbeat of this connection.
    #[inline]
    pub(super) fn is_heartbeat(&self, message: Message<'_>) -> bool {
        let rare = self.rare.as_deref();
        let Some((name, Message::Text(text))) = rare
            .and_then(|rare| rare.heartbeat.as_deref())
            .map(|name| (name, message))
        else {
            return false;
        };
        let asked = text.strip_prefix(ASKED.0);
        asked.and_then(|rest| rest.strip_suffix(ASKED.1)) == Some(name)
    }
}

impl Client {
    /// Answers heartbeats with this name from now on. The first answer tells the client so.
    pub(crate) fn answer_heartbeats(&mut self, env: &mut Env, name: &str, received: u64) {
        self.wire.queues_mut().heartbeat = Some(name.into());
        self.send_heartbeat(env, received);
    }

    /// Says that the connection lives, and how many messages the server has received.
    pub(super) fn send_heartbeat(&mut self, env: &mut Env, received: u64) {
        let name = self.wire.rare.as_ref();
        let name = name.and_then(|rare| rare.heartbeat.as_deref());
        if let Some(name) = name.filter(|_| self.wire.is_open()) {
            let answer =
                format!(r#"{{"outrigger":{{"heartbeat":"{name}","received":{received}}}}}"#);
            self.send_uncounted(env, &answer);
        }
    }

    /// Sends a text that is not counted as a message.
    pub(super) fn send_uncounted(&mut self, env: &mut Env, text: &str) {
        self.transmit(env, |_, _, out| {
            let message = Message::Text(text);
            SentHeader::new(message.opcode(), text.len()).append_with(text.as_bytes(), out);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_of_a_service_is_no_name_of_a_heartbeat() {
        assert!(is_heartbeat_name(&"a1-_".repeat(4)) && is_heartbeat_name(&"a".repeat(64)));
        for other in [
            "",
            "30",
            "1",
            &"a".repeat(65),
            "0123456789abcde\"",
            "0123456789abcdeé",
        ] {
            assert!(!is_heartbeat_name(other), "{other}");
        }
    }
}
