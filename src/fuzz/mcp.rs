//! Fuzzes what an MCP endpoint reads from requests and changes in messages, against a tree of values.

use serde_json::Value;

use crate::Request;
use crate::service::jsonrpc::{Envelope, MessageKind};
use crate::service::mcp::fuzzed::{
    EventId, Tools, answer, discovery, is_stateless_request, older_request, rewrite_request,
    rewrite_subscription,
};

/// The head of a request, without its last line, then a body, then a list of tools, each after a zero byte. What is accepted
/// agrees with its head. A message that was changed differs only in its ids.
pub fn mcp(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let (head, body, list) = (parts.next(), parts.next(), parts.next());
    let (head, body) = (head.unwrap_or_default(), body.unwrap_or_default());
    let mut tools = Tools::default();
    if let Some(list) = list.and_then(|list| std::str::from_utf8(list).ok()) {
        tools.learn(list);
    }
    let head = [&b"POST /mcp HTTP/1.1\r\nHost: h\r\n"[..], head, b"\r\n\r\n"].concat();
    if let Ok(request) = Request::parse(&head)
        && is_stateless_request(&request, body, &tools)
    {
        agrees(&request, body);
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return;
    };
    if let Ok(id) = text.parse::<EventId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    const UNIQUE: u64 = 987_654_321;
    if let Some((rewritten, token)) = rewrite_request(text, UNIQUE) {
        let (mut before, mut after) = (value(text), value(&rewritten));
        assert_eq!(after["id"], UNIQUE, "{rewritten}");
        after["id"] = before["id"].take();
        before["id"] = after["id"].clone();
        if let Some(token) = token {
            let place = &mut after["params"]["_meta"]["progressToken"];
            assert_eq!(*place, UNIQUE, "{rewritten}");
            *place = value(&token);
        }
        assert_eq!(before, after, "nothing else has changed");
    }
    translates(text);
    if let Some(rewritten) = rewrite_subscription(text, "\"s\"") {
        let mut after = value(&rewritten);
        let key = "io.modelcontextprotocol/subscriptionId";
        let meta = after["params"]["_meta"].as_object_mut().expect("an object");
        assert_eq!(meta.remove(key), Some("s".into()), "{rewritten}");
    }
}

/// What a server of an older revision gets of a message, and what a client of 2026-07-28 gets of one, is the message but for what
/// the revisions differ in.
fn translates(text: &str) {
    let Ok(envelope) = Envelope::parse(text) else {
        return;
    };
    let whole = value(text);
    match &envelope.kind {
        MessageKind::Response { result, .. } => {
            let mut answered = value(&answer("tools/list", text));
            let is_object = result
                .as_ref()
                .is_some_and(|at| text[at.clone()].starts_with('{'));
            if is_object && answered["result"].is_object() && whole["result"].is_object() {
                for key in ["resultType", "ttlMs", "cacheScope"] {
                    assert!(
                        !answered["result"][key].is_null()
                            || !whole["result"][key].is_null()
                            || text.contains(key)
                    );
                    if whole["result"].get(key).is_none() {
                        let members = answered["result"].as_object_mut().expect("an object");
                        members.remove(key);
                    }
                }
            }
            assert_eq!(answered, whole);
            value(&discovery(text));
        }
        _ => {
            let mut sent = value(&older_request(&envelope));
            let mut whole = whole;
            for message in [&mut sent, &mut whole] {
                let meta = message
                    .get_mut("params")
                    .and_then(|params| params.get_mut("_meta"));
                if let Some(meta) = meta.and_then(Value::as_object_mut) {
                    meta.retain(|key, _| !key.starts_with("io.modelcontextprotocol/"));
                }
            }
            if envelope.meta.is_none() || envelope.meta.is_some_and(|at| text[at].starts_with('{'))
            {
                assert_eq!(sent, whole);
            }
        }
    }
}

/// What Outrigger has validated is JSON.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A request that was accepted has the fields that its body asks for.
fn agrees(request: &Request<'_>, body: &[u8]) {
    let body: Value = serde_json::from_slice(body).expect("it is JSON");
    let meta = &body["params"]["_meta"];
    let header = |name: &str| {
        let value = request.header(name).unwrap_or_else(|| panic!("{name}"));
        String::from_utf8_lossy(value).into_owned()
    };
    let version = &meta["io.modelcontextprotocol/protocolVersion"];
    assert_eq!(header("MCP-Protocol-Version"), *version);
    assert!(meta["io.modelcontextprotocol/clientCapabilities"].is_object());
    assert_eq!(header("Mcp-Method"), body["method"]);
    let name = match body["method"].as_str() {
        Some("tools/call" | "prompts/get") => &body["params"]["name"],
        Some("resources/read") => &body["params"]["uri"],
        _ => return,
    };
    let name = name.as_str().expect("it has a name");
    let mirrored = header("Mcp-Name");
    assert!(
        mirrored == name || mirrored.starts_with("=?base64?"),
        "{mirrored} {name}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    /// Pieces of heads, messages and lists of tools.
    const PIECES: [&str; 32] = [
        "MCP-Protocol-Version: 2026-07-28\r\n",
        "Mcp-Method: tools/call\r\n",
        "Mcp-Name: t\r\n",
        "Mcp-Name: =?base64?dA==?=\r\n",
        "Mcp-Param-A: 1",
        "\0",
        "\0",
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"#,
        r#"{"jsonrpc":"2.0","method":"x","params":{"#,
        r#"{"jsonrpc":"2.0","method":"x"}"#,
        r#""name":"t","#,
        r#""arguments":{"a":1},"#,
        r#""_meta":{"#,
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
        r#""io.modelcontextprotocol/clientCapabilities":{}"#,
        r#""progressToken":5"#,
        r#""progress_token":5"#,
        r#""io.modelcontextprotocol/subscriptionId":"u""#,
        "}",
        "}}",
        "}}}",
        ",",
        " ",
        "{}",
        r#"{"tools":[{"name":"t","inputSchema":{"properties":{"a":{"x-mcp-header":"A"}}}}]}"#,
        "7-9",
        "\"",
        "\\u0022",
        "null",
        "[]",
        r#"{"jsonrpc":"2.0","id":1,"result":{"#,
        r#""ttlMs":1"#,
    ];

    #[test]
    fn generated_requests_keep_the_rules() {
        let mut random = Random::new(19);
        for _ in 0..rounds(3000) {
            let mut data = String::new();
            for _ in 0..random.below(16) {
                data.push_str(PIECES[random.below(PIECES.len())]);
            }
            mcp(data.as_bytes());
        }
        let whole = [
            PIECES[0],
            PIECES[1],
            PIECES[2].trim_end(),
            "\r\n",
            PIECES[4],
            "\0",
            PIECES[7],
            PIECES[10],
            PIECES[11],
            PIECES[12],
            PIECES[13],
            PIECES[14],
            ",",
            PIECES[15],
            PIECES[20],
            "\0",
            PIECES[24],
        ];
        mcp(whole.concat().as_bytes());
    }
}
