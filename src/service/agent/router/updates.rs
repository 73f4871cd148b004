//! The updates and notifications that the router writes itself.

use crate::service::json::{Skimmer, quote};
use crate::service::jsonrpc::{Envelope, MessageKind, member};

/// The maximum length of a displayed name or a message id, in bytes of JSON.
pub(super) const MAX_NAME: usize = 256;

/// The maximum number of blocks of a prompt that observers are shown.
const MAX_SHOWN_BLOCKS: usize = 64;

/// Tells a client how a turn ended that another client began.
const TURN_ENDED: &str = "_outrigger/turn_ended";

/// An update of the router's own.
pub(super) fn own_update(session: &str, update: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{update}}}}}"#,
        quote(session)
    )
}

/// The blocks of a prompt that observers are shown. Their number is limited, and the last one says so.
fn shown_blocks(blocks: &str) -> Vec<&str> {
    let mut shown = Vec::new();
    let mut scanner = Skimmer::new(blocks);
    if scanner.array_up_to(MAX_SHOWN_BLOCKS, |block| shown.push(&blocks[block])) == Ok(true) {
        shown.push(r#"{"type":"text","text":"[further blocks of the prompt are not shown]"}"#);
    }
    shown
}

/// The updates that show the content of a prompt. An update has one block of content.
pub(super) fn prompt_updates(session: &str, blocks: &str) -> Vec<String> {
    let update = |content: &&str| {
        let update = format!(r#"{{"sessionUpdate":"user_message_chunk","content":{content}}}"#);
        own_update(session, &update)
    };
    shown_blocks(blocks).iter().map(update).collect()
}

/// The update that shows a prompt, and who has sent it.
pub(super) fn prompt_received(
    session: &str,
    prompt: &Envelope<'_>,
    blocks: &str,
    sent_by: &str,
) -> String {
    let id = prompt.body.as_ref();
    let id = id.and_then(|params| member(prompt.text, params, "messageId"));
    let id = id.map(|id| &prompt.text[id]);
    let id = id.filter(|id| id.starts_with('"') && id.len() <= MAX_NAME);
    let id = id.map_or(String::new(), |id| format!(r#""messageId":{id},"#));
    let shown = shown_blocks(blocks).join(",");
    let kind = r#""sessionUpdate":"prompt_received","type":"prompt_received""#;
    let update = format!(r#"{{{kind},{id}"prompt":[{shown}],"sentBy":{sent_by}}}"#);
    own_update(session, &update)
}

/// The id of the agent's message to which an update belongs, as JSON. Not all agents send ids.
pub(super) fn agent_message_of(update: &str) -> Option<&str> {
    // The search is faster than the parser.
    if !update.contains("\"messageId\"") {
        return None;
    }
    let envelope = Envelope::parse(update).ok()?;
    let found = member(update, envelope.body.as_ref()?, "update")?;
    let kind = &update[member(update, &found, "sessionUpdate")?];
    let id = &update[member(update, &found, "messageId")?];
    let is_it = kind == r#""agent_message_chunk""# && id.starts_with('"') && id.len() <= MAX_NAME;
    is_it.then_some(id)
}

/// The update that tells how a turn has ended: `response` answers its prompt. It has the reason, and the code and message of an error.
/// The rest may name other sessions. `last` is the id of the agent's last message in the turn, as JSON.
pub(super) fn turn_complete(session: &str, response: &Envelope<'_>, last: Option<&str>) -> String {
    let text = response.text;
    let reason = response
        .body
        .as_ref()
        .and_then(|result| member(text, result, "stopReason"));
    let reason = reason.filter(|reason| text[reason.clone()].starts_with('"'));
    let whole = 0..text.len();
    let outcome = match (reason, member(text, &whole, "error")) {
        (Some(reason), _) => format!(r#""stopReason":{}"#, &text[reason]),
        (None, Some(failed)) => {
            let fields = ["code", "message"].into_iter().filter_map(|name| {
                let value = &text[member(text, &failed, name)?];
                (!value.starts_with(['{', '['])).then(|| format!(r#""{name}":{value}"#))
            });
            let fields: Vec<_> = fields.collect();
            format!(r#""stopReason":"error","error":{{{}}}"#, fields.join(","))
        }
        (None, None) => r#""stopReason":null"#.to_owned(),
    };
    let last = last.map_or(String::new(), |id| format!(r#","messageId":{id}"#));
    let kind = r#""sessionUpdate":"turn_complete","type":"turn_complete""#;
    own_update(session, &format!("{{{kind},{outcome}{last}}}"))
}

/// The notification that cancels the turn of a session. `session` is its quoted id.
pub(super) fn cancel_session(session: &str) -> [&str; 3] {
    [
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"#,
        session,
        "}}",
    ]
}

/// The notification that a turn has ended with this response.
pub(super) fn turn_ended(session: &str, response: &Envelope<'_>) -> String {
    let text = response.text;
    let outcome = match &response.kind {
        MessageKind::Response {
            result: Some(result),
            ..
        } => format!(r#""result":{}"#, &text[result.clone()]),
        _ => {
            let whole = 0..text.len();
            let failed = member(text, &whole, "error");
            format!(
                r#""error":{}"#,
                failed.map_or("null", |failed| &text[failed])
            )
        }
    };
    format!(
        r#"{{"jsonrpc":"2.0","method":"{TURN_ENDED}","params":{{"sessionId":{},{outcome}}}}}"#,
        quote(session)
    )
}
