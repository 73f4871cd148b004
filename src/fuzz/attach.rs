//! Fuzzes what `attach` shows of the messages of a server.

use std::io::{PipeReader, Read};

use crate::protocol::Message;
use crate::server::simulation::World;
use crate::service::Echo;
use crate::service::attach::simulation::Probe;
use crate::service::process::AttachEvent;
use crate::text::is_control;
use crate::{Config, Context};

/// What the user's terminal gets when the client leaves a full-screen program.
const RESET: &[u8] = b"\x1b[m\x1b[?25h\x1b[?1l\x1b>\x1b[?1000;1002;1003;1004;1006;2004l\x1b[?1049l";
/// A notice over a full-screen program begins and ends with these.
const OVER: (&str, &str) = ("\x1b7\x1b[999;1H\x1b[0;7m", "\x1b[m\x1b[K\x1b8");

/// What a naive client would have shown.
#[derive(Default)]
struct Model {
    output: Vec<u8>,
    errors: Vec<u8>,
    offset: u64,
    has_role: bool,
    has_pipes: Option<bool>,
    has_gap: bool,
    /// The exit code.
    ended: Option<u8>,
}

/// Any messages of a server. The first byte selects the kind of standard output. Each message has two bytes before it, its kind and its
/// length. The output is that of a naive client, and the server's other text reaches the terminal without control characters.
pub fn attach(data: &[u8]) {
    let Some((options, mut rest)) = data.split_first() else {
        return;
    };
    let endpoint = "/".parse().expect("a path");
    let Ok(mut world) = World::with_service(Config::default(), Echo::new(endpoint)) else {
        return;
    };
    let ctx = world.parts().0;
    let is_terminal = options & 1 != 0;
    let url = "ws://h/process/by-name/work";
    let mut probe = Probe::new(ctx, url, is_terminal).expect("pipes");
    let mut model = Model::default();
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    while let [kind, length, others @ ..] = rest {
        let (payload, others) = others.split_at(usize::from(*length).min(others.len()));
        rest = others;
        match kind % 8 {
            0 | 1 => {
                // Enough to fill the pipe now and then.
                let payload = payload.repeat(1 + usize::from(kind / 8) * 9);
                probe.receive(ctx, Message::Binary(&payload));
                model.show(&payload, is_terminal);
            }
            2 => probe.write(ctx),
            3 => read(&mut probe.output, usize::from(*length) << 8, &mut output),
            4 => read(&mut probe.errors, usize::from(*length) << 8, &mut errors),
            5 => receive(&mut probe, &mut model, ctx, is_terminal, payload),
            _ => {
                let event = event(kind / 8, payload);
                receive(&mut probe, &mut model, ctx, is_terminal, event.as_bytes());
            }
        }
        check(&probe, &model, is_terminal);
    }
    for _ in 0..10_000 {
        probe.write(ctx);
        read(&mut probe.output, usize::MAX, &mut output);
        read(&mut probe.errors, usize::MAX, &mut errors);
        let (_, is_written, _) = probe.state();
        if is_written && output.len() >= model.output.len() {
            break;
        }
    }
    assert!(output == model.output, "{:?}", probe.ending());
    assert!(errors == model.errors, "{:?}", probe.ending());
}

/// Reads what a pipe has, up to a limit.
fn read(pipe: &mut PipeReader, most: usize, into: &mut Vec<u8>) {
    let mut left = most.min(1 << 20);
    while left > 0 {
        let available = rustix::io::ioctl_fionread(&*pipe).expect("a pipe") as usize;
        let mut buffer = vec![0; available.min(left)];
        if buffer.is_empty() {
            return;
        }
        pipe.read_exact(&mut buffer).expect("they are there");
        into.extend_from_slice(&buffer);
        left -= buffer.len();
    }
}

/// An event with such contents.
fn event(kind: u8, payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload).into_owned();
    let number = payload.iter().map(|byte| u64::from(*byte)).sum();
    match kind % 10 {
        0 => AttachEvent::Process(text),
        1 | 2 => AttachEvent::Screen {
            offset: number,
            data: text,
        },
        3 | 4 => AttachEvent::Stderr(payload.to_vec()),
        5 => AttachEvent::Exit {
            code: number as i32 - 9,
            signal: payload.first().map(|_| text),
        },
        6 => AttachEvent::Gap {
            from: number / 2,
            to: number,
        },
        7 => AttachEvent::Error { message: text },
        8 => AttachEvent::Clients {
            writer: Some(text),
            viewers: payload.len(),
        },
        _ => return format!(r#"{{"type":"role","role":"{text}","rows":{number},"cols":1}}"#),
    }
    .to_json()
}

fn receive(
    probe: &mut Probe,
    model: &mut Model,
    ctx: &mut Context,
    is_terminal: bool,
    payload: &[u8],
) {
    let Ok(text) = std::str::from_utf8(payload) else {
        return;
    };
    let event = AttachEvent::parse(text);
    if let Some(event) = &event {
        assert_eq!(AttachEvent::parse(&event.to_json()).as_ref(), Some(event));
    }
    probe.receive(ctx, Message::Text(text));
    model.take(event, is_terminal);
}

impl Model {
    fn end(&mut self, code: u8, is_terminal: bool) {
        if self.ended.is_none() {
            self.ended = Some(code);
            if is_terminal && is_full_screen(&self.output) {
                self.output.extend_from_slice(RESET);
            }
        }
    }

    fn show(&mut self, output: &[u8], is_terminal: bool) {
        if self.ended.is_some() {
            return;
        }
        if !self.has_role {
            return self.end(255, is_terminal);
        }
        self.offset += output.len() as u64;
        self.output.extend_from_slice(output);
    }

    fn take(&mut self, event: Option<AttachEvent>, is_terminal: bool) {
        if self.ended.is_some() {
            return;
        }
        match event {
            None if !self.has_role => self.end(255, is_terminal),
            None | Some(AttachEvent::Process(_)) => {}
            Some(AttachEvent::Role(_)) => self.has_role = true,
            Some(AttachEvent::Size(_)) => _ = self.has_pipes.get_or_insert(false),
            Some(AttachEvent::Clients { .. }) => _ = self.has_pipes.get_or_insert(true),
            Some(AttachEvent::Screen { offset, data }) => {
                self.offset = offset;
                self.output.extend_from_slice(data.as_bytes());
            }
            Some(AttachEvent::Stderr(bytes)) => {
                self.offset += bytes.len() as u64;
                self.errors.extend(bytes);
            }
            Some(AttachEvent::Gap { to, .. }) => {
                self.has_gap = true;
                self.offset = self.offset.max(to);
            }
            Some(AttachEvent::Exit { code, .. }) => {
                let is_incomplete = self.has_gap && self.has_pipes == Some(true);
                let code = u8::try_from(code).ok().filter(|_| !is_incomplete);
                self.end(code.unwrap_or(255), is_terminal);
            }
            Some(AttachEvent::Error { .. }) => self.end(255, is_terminal),
        }
    }
}

/// Whether the output leaves the alternate screen shown. Looks at each escape character by itself.
fn is_full_screen(output: &[u8]) -> bool {
    let mut is_alternate = false;
    for piece in output.split(|byte| *byte == b'\x1b').skip(1) {
        if piece.starts_with(b"c") {
            is_alternate = false;
        }
        let Some(modes) = piece.strip_prefix(b"[?") else {
            continue;
        };
        let end = modes
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b';');
        let Some(end) = end.filter(|end| b"hl".contains(&modes[*end])) else {
            continue;
        };
        let numbers = modes[..end].split(|byte| *byte == b';');
        let is_known = |number: &[u8]| {
            let text = String::from_utf8_lossy(number);
            ["47", "1047", "1049"].contains(&text.trim_start_matches('0'))
        };
        if numbers.into_iter().any(is_known) {
            is_alternate = modes[end] == b'h';
        }
    }
    is_alternate
}

fn check(probe: &Probe, model: &Model, is_terminal: bool) {
    let (offset, _, is_full) = probe.state();
    assert_eq!(offset, model.offset);
    assert!(!is_full || model.output.len() + model.errors.len() > 16 << 10);
    let ending = probe.ending();
    assert_eq!(ending.as_ref().map(|ending| ending.code), model.ended);
    let id = probe.path().strip_prefix("/process/").expect("a process");
    let id = id.strip_suffix("/attach").unwrap_or(id);
    assert!(id == "by-name/work" || uuid::Uuid::try_parse(id).is_ok());
    let mut texts: Vec<String> = ending.into_iter().map(|ending| ending.message).collect();
    for notice in Probe::notices() {
        let notice = notice.trim_end_matches('\n');
        let over = notice
            .strip_prefix(OVER.0)
            .and_then(|notice| notice.strip_suffix(OVER.1));
        assert!(over.is_none() || is_terminal);
        texts.push(over.unwrap_or(notice).to_owned());
    }
    for text in texts {
        assert!(!text.contains(is_control), "{text:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, payload.len() as u8], payload].concat()
    }

    #[test]
    fn the_messages_of_any_server_are_shown() {
        let pieces: [&[u8]; 10] = [
            b"\x1b[?1049h",
            b"\x1b[?1049l",
            b"\x1b[?1;47;",
            b"h",
            b"\x1bc",
            b"plain text\r\n",
            br#"{"type":"error","message":"\u001b]0;x\u0007"}"#,
            br#"{"type":"size","rows":24,"cols":80}"#,
            b"2f1c4a52-6f0c-4c5c-9a53-0b54a8b0e1c3",
            b"writer",
        ];
        let mut random = Random::new(1049);
        for _ in 0..rounds(3000) {
            let mut data = vec![random.byte()];
            if random.below(8) > 0 {
                data.extend(message(9 * 8 + 6, b"viewer"));
            }
            for _ in 0..random.below(40) {
                let payload = match random.below(4) {
                    0 => random.bytes(255),
                    _ => pieces[random.below(pieces.len())].to_vec(),
                };
                // Few events end the client.
                let kind = match random.byte() {
                    kind if kind % 8 >= 6 && [5, 7].contains(&(kind / 8 % 10)) => 1,
                    kind => kind,
                };
                data.extend(message(kind, &payload));
            }
            attach(&data);
        }
    }
}
