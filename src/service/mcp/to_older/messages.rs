//! What becomes of a message between a client of revision 2026-07-28 and a server of an older revision.

use std::ops::{Deref, Range};

use crate::record::record;
use crate::service::json::{Skimmer, quote, unescape};
use crate::service::jsonrpc::{
    Envelope, MessageKind, code, insert_member, member, splice, success, without,
};
use crate::service::mcp::{SESSION_VERSIONS, STATELESS};

/// The members of `_meta` that tell a server of 2026-07-28 what an older one learns from `initialize`.
const ENVELOPE: [&str; 4] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];

/// The codes of a resource that does not exist, and of a request for which the user has to open an address first, in the older revisions.
const RESOURCE_NOT_FOUND: &str = "-32002";
const URL_REQUIRED: &str = "-32042";

/// The member of a request with the client's input.
const RESPONSES: &str = "inputResponses";

/// The revision that the older server is asked for.
pub(crate) const ASKED: &str = r#""2025-11-25""#;

/// What a server may ask its client, and the capability that permits it.
const QUESTIONS: [(&str, &str); 3] = [
    ("elicitation/create", "elicitation"),
    ("sampling/createMessage", "sampling"),
    ("roots/list", "roots"),
];

/// Whether revision 2026-07-28 has no such method.
pub(crate) fn is_unknown(method: &str) -> bool {
    const REMOVED: [&str; 4] = [
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
    ];
    let is_other = method.starts_with("tasks/") || method.starts_with("notifications/");
    REMOVED.contains(&method) || is_other
}

/// Whether the server may ask for input before it answers such a request.
pub(crate) fn may_ask(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Methods that a client can be asked for.
#[derive(Debug, Default)]
pub(crate) struct Questions(Vec<&'static str>);

impl Deref for Questions {
    type Target = [&'static str];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

record!(Questions as Vec<String>, Self::names, Self::of_names);

impl Questions {
    fn names(&self) -> Vec<String> {
        self.0.iter().map(|name| (*name).to_owned()).collect()
    }

    fn of_names(names: Vec<String>) -> Option<Self> {
        let methods = QUESTIONS.into_iter().map(|(method, _)| method);
        let is_named = |method: &&str| names.iter().any(|name| name == method);
        Some(Self(methods.filter(is_named).collect()))
    }
}

/// The methods that a client with these capabilities can be asked for.
pub(crate) fn questions_for(capabilities: &str) -> Questions {
    let has = |name: &str| member(capabilities, &(0..capabilities.len()), name).is_some();
    let permitted = QUESTIONS.into_iter().filter(|(_, name)| has(name));
    Questions(permitted.map(|(method, _)| method).collect())
}

/// The request without its envelope, and without what the client answers to an `InputRequiredResult` that had no state.
pub(crate) fn request(envelope: &Envelope<'_>) -> String {
    let text = envelope.text;
    let Some(meta) = envelope.meta.clone() else {
        return text.to_owned();
    };
    let meta_text = without(text, &meta, &ENVELOPE);
    let bare = splice(text, &mut [(meta, &meta_text)]).concat();
    match member(&bare, &(0..bare.len()), "params") {
        Some(params) if envelope.of_body(RESPONSES).is_some() => {
            let kept = without(&bare, &params, &[RESPONSES]);
            splice(&bare, &mut [(params, &kept)]).concat()
        }
        _ => bare,
    }
}

/// The `initialize` request that answers `server/discover`.
pub(crate) fn initialize(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize"}}"#)
}

/// The request that subscribes to a resource.
pub(crate) fn subscribe(number: usize, uri: &str) -> String {
    let uri = quote(uri);
    format!(
        r#"{{"jsonrpc":"2.0","id":{number},"method":"resources/subscribe","params":{{"uri":{uri}}}}}"#
    )
}

/// The answer to a request, with the members that its result must have.
pub(crate) fn answer(method: &str, text: &str) -> String {
    let Some(result) = result_of(text) else {
        return failure(method, text);
    };
    let mut added = Vec::new();
    if member(text, &result, "resultType").is_none() {
        added.push(r#""resultType":"complete""#);
    }
    let is_cached = method == "resources/read" || method.ends_with("/list");
    if is_cached && member(text, &result, "ttlMs").is_none() {
        added.push(r#""ttlMs":0"#);
    }
    if is_cached && member(text, &result, "cacheScope").is_none() {
        added.push(r#""cacheScope":"private""#);
    }
    match added.is_empty() {
        true => text.to_owned(),
        false => insert_member(text, &result, &added.join(",")),
    }
}

/// The error of a response, with the code that the newer revision has for it.
fn failure(method: &str, text: &str) -> String {
    let code = of_error(text, "code");
    let is_missing = |code: &Range<usize>| &text[code.clone()] == RESOURCE_NOT_FOUND;
    match code.filter(is_missing) {
        Some(range) if method == "resources/read" => {
            splice(text, &mut [(range, &code::PARAMS.to_string())]).concat()
        }
        _ => text.to_owned(),
    }
}

/// A member of the error of a response.
fn of_error(text: &str, name: &str) -> Option<Range<usize>> {
    let error = member(text, &(0..text.len()), "error")?;
    member(text, &error, name)
}

/// The answer that asks the client to let the user open an address and to repeat its request, if the server's error says so.
pub(crate) fn url_required(id: &str, text: &str) -> Option<String> {
    of_error(text, "code").filter(|code| &text[code.clone()] == URL_REQUIRED)?;
    let list = member(text, &of_error(text, "data")?, "elicitations")?;
    let mut asked = Vec::new();
    let _ = Skimmer::at(text, &list).array(|range: Range<usize>| {
        if text[range.clone()].starts_with('{') {
            let params = without(text, &range, &["elicitationId"]);
            let key = asked.len();
            asked.push(format!(
                r#""{key}":{{"method":"elicitation/create","params":{params}}}"#
            ));
        }
    });
    (!asked.is_empty()).then(|| asking(id, &asked, ""))
}

/// The result of a response, if it is an object.
pub(crate) fn result_of(text: &str) -> Option<Range<usize>> {
    let result = member(text, &(0..text.len()), "result");
    result.filter(|result| text[result.clone()].starts_with('{'))
}

/// The answer to `server/discover`, from the answer to `initialize`.
pub(crate) fn discovery(text: &str) -> String {
    let Some(result) = result_of(text) else {
        return text.to_owned();
    };
    let of_result = |name| member(text, &result, name).map(|at| &text[at]);
    let versions: Vec<String> = versions().map(quote).collect();
    let instructions = of_result("instructions").map_or_else(String::new, |instructions| {
        format!(r#","instructions":{instructions}"#)
    });
    let info = of_result("serverInfo").map_or_else(String::new, |info| {
        format!(r#","_meta":{{"io.modelcontextprotocol/serverInfo":{info}}}"#)
    });
    let capabilities = capabilities(text, &result);
    let discovered = format!(
        r#"{{"resultType":"complete","supportedVersions":[{}],"capabilities":{capabilities}{instructions},"ttlMs":0,"cacheScope":"private"{info}}}"#,
        versions.join(",")
    );
    splice(text, &mut [(result, &discovered)]).concat()
}

/// The capabilities in an answer to `initialize` with this result. Log messages are not passed on.
pub(crate) fn capabilities(text: &str, result: &Range<usize>) -> String {
    match member(text, result, "capabilities") {
        Some(range) => without(text, &range, &["logging"]),
        None => "{}".to_owned(),
    }
}

/// The revisions that clients of such a server can use.
pub(crate) fn versions() -> impl Iterator<Item = &'static str> {
    [STATELESS].into_iter().chain(SESSION_VERSIONS)
}

/// A question of the server that the client has not answered.
#[derive(Debug)]
pub(crate) struct Question {
    /// The id of the server's request, as the client has to get it.
    id: Box<str>,
    /// The server's request.
    text: Box<str>,
}

record!(Question { id, text });

impl Question {
    /// A request from the server, if such a client can be asked.
    pub(crate) fn read(envelope: &Envelope<'_>, permitted: &[&str]) -> Option<Self> {
        let MessageKind::Request { method, id } = &envelope.kind else {
            return None;
        };
        permitted.contains(&&**method).then(|| Self {
            id: envelope.text[id.clone()].into(),
            text: envelope.text.into(),
        })
    }

    pub(crate) fn has_id(&self, id: &str) -> bool {
        *self.id == *id
    }

    /// The member of `inputRequests`.
    fn member(&self) -> String {
        let whole = 0..self.text.len();
        let part = |name| member(&self.text, &whole, name).map(|at| &self.text[at]);
        let method = part("method").unwrap_or("\"\"");
        let params = part("params").map_or_else(String::new, |at| format!(r#","params":{at}"#));
        format!(r#""{}":{{"method":{method}{params}}}"#, self.id)
    }

    /// What the question takes.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether the client's next request answers it with something that cannot be a result.
    pub(crate) fn is_answered_badly(&self, envelope: &Envelope<'_>) -> bool {
        let text = envelope.text;
        let Some(responses) = envelope.of_body(RESPONSES) else {
            return false;
        };
        let is_object = |range: &Range<usize>| text[range.clone()].starts_with('{');
        let result = member(text, &responses, &self.id);
        !is_object(&responses) || result.is_some_and(|result| !is_object(&result))
    }

    /// The response to the server, if the client's next request has it.
    pub(crate) fn response(&self, envelope: &Envelope<'_>) -> Option<String> {
        let text = envelope.text;
        let responses = envelope.of_body(RESPONSES)?;
        let result = member(text, &responses, &self.id)?;
        Some(success(&self.id, &text[result]).concat())
    }
}

/// The answer that asks the client for input.
pub(crate) fn input_required(id: &str, state: &str, questions: &[Question]) -> String {
    let questions: Vec<String> = questions.iter().map(Question::member).collect();
    let state = format!(r#","requestState":{}"#, quote(state));
    asking(id, &questions, &state)
}

fn asking(id: &str, questions: &[String], state: &str) -> String {
    let questions = questions.join(",");
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"input_required","inputRequests":{{{questions}}}{state}}}}}"#
    )
}

/// The state of a call that the client continues.
pub(crate) fn state(envelope: &Envelope<'_>) -> Option<String> {
    let raw = envelope.of_body("requestState")?;
    Some(unescape(&envelope.text[raw]).into_owned())
}

/// What a request is about: it must be the same when the client continues the call.
pub(crate) fn target(envelope: &Envelope<'_>) -> Option<String> {
    let name = envelope.of_body("name").or_else(|| envelope.of_body("uri"));
    name.map(|at| unescape(&envelope.text[at]).into_owned())
}

/// A notification of progress with another token.
pub(crate) fn progress(text: &str, token: &str) -> Option<String> {
    let envelope = Envelope::parse(text).ok()?;
    let range = envelope.of_body("progressToken")?;
    Some(splice(text, &mut [(range, token)]).concat())
}

/// The first message of a subscription. The filter is JSON.
pub(crate) fn acknowledgement(id: &str, filter: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{filter}}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn parse(text: &str) -> Envelope<'_> {
        Envelope::parse(text).expect("a message")
    }

    #[test]
    fn a_request_loses_its_envelope_and_nothing_else() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1.50],"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":"t","io.modelcontextprotocol/clientCapabilities":{},"x/y":{"z":1}}}}"#;
        let want = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1.50],"_meta":{"progressToken":"t","x/y":{"z":1}}}}"#;
        assert_eq!(request(&parse(text)), want);
    }

    #[test]
    fn a_result_gets_what_the_newer_revision_requires() {
        for (method, result, want) in [
            (
                "tools/call",
                r#"{"a":1}"#,
                r#"{"resultType":"complete","a":1}"#,
            ),
            (
                "tools/list",
                "{}",
                r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#,
            ),
            (
                "tools/list",
                r#"{"ttlMs":5,"resultType":"x","cacheScope":"public"}"#,
                r#"{"ttlMs":5,"resultType":"x","cacheScope":"public"}"#,
            ),
            ("tools/call", "7", "7"),
        ] {
            let text = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
            assert_eq!(answer(method, &text(result)), text(want));
        }
        let failed = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#;
        assert_eq!(
            (answer("tools/list", failed), discovery(failed)),
            (failed.into(), failed.into())
        );
        let missing = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"no"}}"#;
        let newer = missing.replace("-32002", "-32602");
        assert_eq!(answer("resources/read", missing), newer);
        assert_eq!(answer("tools/call", missing), missing);
        let text = r#"{"jsonrpc":"2.0","id":"d","result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"s"},"instructions":"i"}}"#;
        let found: Value = serde_json::from_str(&discovery(text)).expect("JSON");
        assert_eq!(found["result"]["supportedVersions"][0], STATELESS);
        assert_eq!(
            found["result"]["capabilities"],
            serde_json::json!({"tools": {}})
        );
        assert_eq!(
            found["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"],
            "s"
        );
    }

    #[test]
    fn an_address_that_the_user_has_to_open_is_asked_for_without_a_state() {
        let elicitation = r#"{"mode":"url","elicitationId":"e","url":"https://x","message":"m"}"#;
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32042,"message":"no","data":{{"elicitations":[{elicitation},7]}}}}}}"#
        );
        let want = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"0":{"method":"elicitation/create","params":{"mode":"url","url":"https://x","message":"m"}}}}}"#;
        assert_eq!(url_required("1", &text).as_deref(), Some(want));
        for other in [
            text.replace("-32042", "-32041"),
            text.replace(elicitation, "7"),
            text.replace("elicitations", "x"),
        ] {
            assert_eq!(url_required("1", &other), None);
        }
        let again = r#"{"jsonrpc":"2.0","id":2,"method":"m","params":{"inputResponses":{"0":{"action":"accept"}},"name":"n","_meta":{"x/y":1}}}"#;
        let want =
            r#"{"jsonrpc":"2.0","id":2,"method":"m","params":{"name":"n","_meta":{"x/y":1}}}"#;
        assert_eq!(request(&parse(again)), want);
    }

    #[test]
    fn a_question_becomes_a_member_of_input_requests_and_its_answer_a_response() {
        let text = r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#;
        assert!(Question::read(&parse(text), &questions_for(r#"{"sampling":{}}"#)).is_none());
        let permitted = questions_for(r#"{"roots":{},"sampling":{}}"#);
        let question = Question::read(&parse(text), &permitted).expect("it is permitted");
        let asked = input_required("\"a\"", "s", &[question]);
        let want = r#"{"jsonrpc":"2.0","id":"a","result":{"resultType":"input_required","inputRequests":{"7":{"method":"roots/list"}},"requestState":"s"}}"#;
        assert_eq!(asked, want);
        let question = Question::read(&parse(text), &permitted).expect("it is permitted");
        let next = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t","requestState":"s","inputResponses":{"7":{"roots":[]}}}}"#;
        let response = r#"{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}"#;
        assert_eq!(question.response(&parse(next)).as_deref(), Some(response));
        assert_eq!(
            (
                state(&parse(next)).as_deref(),
                target(&parse(next)).as_deref()
            ),
            (Some("s"), Some("t"))
        );
        assert_eq!(
            question.response(&parse(&next.replace("\"7\"", "\"8\""))),
            None
        );
    }
}
