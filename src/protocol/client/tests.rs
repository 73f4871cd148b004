use super::*;

const NONCE: [u8; 16] = *b"the sample nonce";
const HEAD: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn request() -> HandshakeRequest {
    HandshakeRequest::new("h", "/")
        .with_protocol("a")
        .with_protocol("b")
        .with_deflate()
}

/// Passes a response in pieces of `cut` bytes. Returns the event and the number of bytes behind it.
fn answer(response: &str, cut: usize) -> (Option<ClientEvent>, usize) {
    let mut handshake = ClientHandshake::default();
    handshake.request(NONCE, &request(), &mut Vec::new());
    pass(&mut handshake, response, cut)
}

fn pass(
    handshake: &mut ClientHandshake,
    response: &str,
    cut: usize,
) -> (Option<ClientEvent>, usize) {
    let mut taken = 0;
    for piece in response.as_bytes().chunks(cut) {
        let mut piece = piece.to_vec();
        let len = piece.len();
        let mut input = Input::new(&mut piece);
        let event = handshake.receive(&mut input, 1 << 10);
        taken += len - input.len();
        if event.is_some() {
            return (event, response.len() - taken);
        }
    }
    (None, 0)
}

fn refusal(event: Option<ClientEvent>) -> Refusal {
    match event {
        Some(ClientEvent::Failed(HandshakeError::Refused(refusal))) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_valid_response_opens_the_connection_however_it_is_split() {
    let text = format!("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{HEAD}REST");
    for cut in 1..text.len() {
        let (event, rest) = answer(&text, cut);
        assert!(
            matches!(event, Some(ClientEvent::Opened { head, agreement: None }) if head == HEAD.as_bytes())
        );
        assert!(rest >= 4);
    }
}

#[test]
fn a_response_that_does_not_answer_the_request_is_rejected() {
    for (from, to) in [
        ("WebSocket", "h2c"),
        ("keep-alive, Upgrade", "keep-alive"),
        ("s3pP", "s3pQ"),
        ("\r\n\r\n", "\r\nSec-WebSocket-Protocol: c\r\n\r\n"),
        (
            "\r\n\r\n",
            "\r\nSec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: b\r\n\r\n",
        ),
        ("\r\n\r\n", "\r\nSec-WebSocket-Extensions: x\r\n\r\n"),
        (
            "\r\n\r\n",
            "\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        ),
        ("HTTP/1.1 101", "HTTP/1.1 1O1"),
        ("HTTP/1.1 101", "HTTP/1.0 101"),
        ("HTTP/1.1 101", "HTTP/1.1 000"),
        ("HTTP/1.1", "SSH-2.0"),
        ("\r\n\r\n", "\nX: y\r\n\r\n"),
    ] {
        assert!(HEAD.contains(from));
        let (event, _) = answer(&HEAD.replace(from, to), usize::MAX);
        assert!(
            matches!(event, Some(ClientEvent::Failed(HandshakeError::Invalid(_)))),
            "{to}: {event:?}"
        );
    }
    let long = HEAD.replace("\r\n\r\n", &format!("\r\nX: {}\r\n\r\n", "y".repeat(2000)));
    assert!(matches!(
        answer(&long, 7).0,
        Some(ClientEvent::Failed(HandshakeError::Invalid(_)))
    ));
}

#[test]
fn compression_and_a_subprotocol_that_were_offered_are_accepted() {
    let fields =
        "\r\nSec-WebSocket-Protocol: b\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    let (event, _) = answer(&HEAD.replace("\r\n\r\n", fields), usize::MAX);
    assert!(matches!(
        event,
        Some(ClientEvent::Opened {
            agreement: Some(_),
            ..
        })
    ));
}

#[test]
fn a_refusal_is_reported_with_its_body_however_it_is_split() {
    let json = r#"{"type":"error","message":"no"}"#;
    let fixed = format!(
        "HTTP/1.1 401 Unauthorized\r\nRetry-After: 7\r\nContent-Length: {}\r\n\r\n{json}",
        json.len()
    );
    let chunked = format!(
        "HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{json}\r\n0\r\n\r\n",
        json.len()
    );
    for cut in 1..fixed.len() {
        let refused = refusal(answer(&fixed, cut).0);
        assert_eq!((refused.status, refused.retry_after), (401, Some(7)));
        assert_eq!(refused.body, json.as_bytes());
        assert_eq!(refusal(answer(&chunked, cut).0).body, json.as_bytes());
    }
    let empty = refusal(answer("HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", 3).0);
    assert_eq!((empty.status, empty.reason.as_str()), (503, ""));
}

#[test]
fn a_refusal_without_a_length_ends_with_the_connection() {
    let mut handshake = ClientHandshake::default();
    handshake.request(NONCE, &request(), &mut Vec::new());
    let (event, _) = pass(&mut handshake, "HTTP/1.1 404 Not Found\r\n\r\nsorry", 4);
    assert!(event.is_none());
    match handshake.handle_end() {
        HandshakeError::Refused(refusal) => assert_eq!(refusal.body, b"sorry"),
        other => panic!("{other:?}"),
    }
    assert_eq!(handshake.handle_end(), HandshakeError::Eof);
}

#[test]
fn the_body_of_a_refusal_is_bounded() {
    let text = format!(
        "HTTP/1.1 500 Oops\r\nContent-Length: 99999999\r\n\r\n{}",
        "x".repeat(9000)
    );
    assert_eq!(refusal(answer(&text, 100).0).body.len(), MAX_BODY);
    let text = format!(
        "HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n{}",
        "x".repeat(9000)
    );
    assert!(refusal(answer(&text, 100).0).body.len() <= MAX_BODY);
}

#[test]
fn input_behind_an_error_is_discarded() {
    // The bug: a response that was not HTTP was parsed again and again.
    let mut handshake = ClientHandshake::default();
    handshake.request(NONCE, &request(), &mut Vec::new());
    for bytes in [&b"HTTP/1.1 401 No\x1b\r\n\r\n"[..], HEAD.as_bytes()] {
        let mut bytes = bytes.to_vec();
        let mut input = Input::new(&mut bytes);
        let event = handshake.receive(&mut input, 1 << 10);
        assert!(!matches!(event, Some(ClientEvent::Opened { .. })));
        assert!(input.is_empty());
    }
}

#[test]
fn a_response_without_a_body_needs_no_more_input() {
    assert_eq!(
        refusal(answer("HTTP/1.1 204 No Content\r\n\r\n", 3).0).status,
        204
    );
    let long = format!(
        "HTTP/1.1 401 {}\r\nContent-Length: 0\r\n\r\n",
        "x".repeat(500)
    );
    assert_eq!(refusal(answer(&long, 300).0).reason.len(), MAX_REASON);
}

#[test]
fn endless_interim_responses_end_the_handshake() {
    let text = "HTTP/1.1 100 Continue\r\n\r\n".repeat(20);
    let (event, _) = answer(&text, 5);
    assert!(matches!(
        event,
        Some(ClientEvent::Failed(HandshakeError::Invalid(_)))
    ));
}

#[test]
fn a_tunnel_is_opened_before_the_request() {
    let mut handshake = ClientHandshake::default();
    let mut out = Vec::new();
    handshake.request_tunnel("h:443", Some("Basic eDp5"), &mut out);
    assert_eq!(
        out,
        b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\nProxy-Authorization: Basic eDp5\r\n\r\n"
    );
    let (event, rest) = pass(&mut handshake, "HTTP/1.1 200 OK\r\n\r\nTLS", usize::MAX);
    assert!(matches!(event, Some(ClientEvent::Tunnelled)) && rest == 3);
    handshake.request(NONCE, &request(), &mut out);
    assert!(matches!(
        pass(&mut handshake, HEAD, 9).0,
        Some(ClientEvent::Opened { .. })
    ));

    handshake.request_tunnel("h:443", None, &mut out);
    let (event, _) = pass(
        &mut handshake,
        "HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n",
        2,
    );
    assert!(
        matches!(event, Some(ClientEvent::Failed(HandshakeError::RefusedByProxy(refusal))) if refusal.status == 407)
    );
}

#[test]
fn a_request_cannot_be_split_by_its_parts() {
    assert!(request().with_field("X-A", "b").is_valid());
    for bad in [
        HandshakeRequest::new("h\r\nX: y", "/"),
        HandshakeRequest::new("h", "/ HTTP/1.1\r\nX: y"),
        HandshakeRequest::new("h", "x"),
        request().with_field("X", "a\r\nb"),
        request().with_field("X:", "a"),
        request().with_protocol("a, b"),
    ] {
        assert!(!bad.is_valid(), "{bad:?}");
    }
}
