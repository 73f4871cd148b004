//! Fuzzes the parser of JSON-RPC messages.

use super::agent_model::sessions_named;
use crate::service::agent::named::{Named, Places};
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdRecovery, MAX_ID, MessageKind, RecoveredId, is_spelling_of,
};

/// Parses any text as a message. The parser agrees with serde_json on what is JSON and on the values in it.
pub fn envelope(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let oracle = serde_json::from_str::<serde_json::Value>(text);
    let recovered = IdRecovery::of(data);
    match Envelope::parse(text) {
        Err(EnvelopeError::Parse) => {
            // serde_json has a slightly different limit on nesting.
            assert!(oracle.is_err() || nesting(text) > 100, "{text}");
        }
        Err(EnvelopeError::Invalid { id, .. }) => {
            if let Some(id) = id {
                assert!(serde_json::from_str::<serde_json::Value>(&text[id]).is_ok());
            }
        }
        Ok(envelope) => {
            let Ok(value) = oracle else { return };
            // The recovery of ids finds the same id as the parser.
            let id = envelope.id().map(str::to_owned);
            let id = id.filter(|id| id != "null" && id.len() <= MAX_ID);
            assert_eq!(
                recovered,
                id.map(|id| match envelope.kind {
                    MessageKind::Response { .. } => RecoveredId::Response(id),
                    _ => RecoveredId::Request(id),
                })
            );
            assert_eq!(value["jsonrpc"], "2.0");
            if let Some(id) = envelope.id() {
                assert_eq!(
                    serde_json::from_str::<serde_json::Value>(id).ok().as_ref(),
                    value.get("id")
                );
            }
            let body = if matches!(envelope.kind, MessageKind::Response { .. }) {
                "result"
            } else {
                "params"
            };
            let session = value[body]["sessionId"].as_str();
            assert_eq!(envelope.session.as_deref(), session);
            // The parser sees every key that could be read as `sessionId`, and accepts only one in requests.
            let body = value[body].as_object();
            let spellings = body.map_or(0, |body| {
                let keys = body.keys();
                keys.filter(|key| is_spelling_of(key, "sessionId")).count()
            });
            if !matches!(envelope.kind, MessageKind::Response { .. }) {
                assert!(spellings <= 1, "{text}");
                let seen = envelope.session.is_some() || envelope.misspelled_session.is_some();
                assert!(!seen || spellings == 1, "{text}");
            }
            // Of equal keys, the oracle knows the last one only.
            for (places, anywhere) in [(Places::Schema, false), (Places::Anywhere, true)] {
                let Ok(named) = Named::find(&envelope, places) else {
                    continue;
                };
                for session in sessions_named(&value, anywhere) {
                    assert!(named.all().any(|one| one == session), "{session}: {text}");
                }
            }
            let _ = envelope.resume_token();
            let own = body.and_then(|body| body.get("_meta")?.get("progressToken"));
            match envelope.progress_token() {
                Ok(Some(token)) => {
                    let token = serde_json::from_str::<serde_json::Value>(&text[token]);
                    assert_eq!(token.ok().as_ref(), own, "{text}");
                }
                Ok(None) => assert!(own.is_none_or(serde_json::Value::is_null), "{text}"),
                Err(_) => {}
            }
        }
    }
}

fn nesting(text: &str) -> usize {
    text.bytes()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn mutated_messages_are_parsed_as_serde_json_parses_them() {
        let mut random = Random::new(6);
        let seed = br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"sessionId":"a","_meta":{"outrigger":{"resumeToken":"t"},"progressToken":1}}}"#;
        for _ in 0..50_000 {
            let mut data = seed.to_vec();
            for _ in 0..random.below(5) {
                let at = random.below(data.len());
                data[at] = b"{}[],:\"\\10e-. nulid"[random.below(19)];
            }
            envelope(&data);
        }
        let seed = br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"session_id":"a","x":[{"parentSessionId":"b","content":{"sessions":["c"]}}],"_meta":{"y":{"session":{"id":["d"]}}}}}"#;
        for _ in 0..50_000 {
            let mut data = seed.to_vec();
            for _ in 0..random.below(5) {
                let at = random.below(data.len());
                data[at] = b"{}[],:\"\\sSdi-_ x"[random.below(16)];
            }
            envelope(&data);
        }
    }
}
