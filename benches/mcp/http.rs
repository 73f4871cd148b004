//! A small HTTP/1.1 client for the benchmarks: writes POST, GET and DELETE on a connection that stays open, and reads answers with
//! `Content-Length` or chunks.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// How long an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An answer, or the head of one whose body is a stream that stays open.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The field `Mcp-Session-Id`.
    pub(crate) session: Option<String>,
    pub(crate) body: Vec<u8>,
    /// Whether the server closes the connection after it.
    pub(crate) is_last: bool,
}

enum Length {
    Bytes(usize),
    Chunks,
}

/// A request with more header lines, each of which ends with CRLF.
pub(crate) fn request(method: &str, path: &str, fields: &str, body: &str) -> Vec<u8> {
    let length = match body {
        "" => String::new(),
        body => format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        ),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{length}{fields}\r\n{body}")
        .into_bytes()
}

/// The first answer in `input` and its length, if it is complete. An answer to a request `of_stream` is complete after its head.
pub(crate) fn parse(input: &[u8], of_stream: bool) -> Result<Option<(Answer, usize)>, String> {
    let mut fields = [httparse::EMPTY_HEADER; 48];
    let mut head = httparse::Response::new(&mut fields);
    let start = match head.parse(input) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("not HTTP: {error}")),
    };
    let field = |name: &str| {
        let field = head.headers.iter();
        let field = field.filter(|field| field.name.eq_ignore_ascii_case(name));
        field
            .map(|field| String::from_utf8_lossy(field.value))
            .next()
    };
    let status = head.code.unwrap_or(0);
    let length = match field("content-length") {
        Some(digits) => Length::Bytes(digits.parse().map_err(|_| "a wrong Content-Length")?),
        None if field("transfer-encoding").is_some() => Length::Chunks,
        None if status == 204 => Length::Bytes(0),
        None => return Err(format!("status {status} without a length")),
    };
    let body = match length {
        _ if of_stream && status == 200 => Some((Vec::new(), 0)),
        Length::Bytes(count) => {
            (input.get(start..start + count)).map(|body| (body.to_vec(), count))
        }
        Length::Chunks => dechunk(&input[start..])?,
    };
    Ok(body.map(|(body, length)| {
        let session = field("mcp-session-id").map(String::from);
        let is_last = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let answer = Answer {
            status,
            session,
            body,
            is_last,
        };
        (answer, start + length)
    }))
}

/// The contents of the chunks and the length of all, if the last one is there.
fn dechunk(input: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let (head, size) = match httparse::parse_chunk_size(&input[at..]) {
            Ok(httparse::Status::Complete((head, size))) => (head, size as usize),
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err("a wrong chunk".to_owned()),
        };
        let start = at + head;
        at = start + size + 2;
        if input.len() < at {
            return Ok(None);
        }
        if size == 0 {
            return Ok(Some((body, at)));
        }
        body.extend(&input[start..start + size]);
    }
}

/// Writes a request and waits for its answer.
pub(crate) fn exchange(
    stream: &mut std::net::TcpStream,
    request: &[u8],
    of_stream: bool,
) -> Result<Answer, String> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock => format!("no answer for {} s", PATIENCE.as_secs()),
        _ => format!("connection: {error}"),
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(request).map_err(failed)?;
    let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer).map_err(failed)? {
            0 => return Err("the connection was closed".to_owned()),
            count => input.extend(&buffer[..count]),
        }
        if let Some((answer, _)) = parse(&input, of_stream)? {
            return Ok(answer);
        }
    }
}
