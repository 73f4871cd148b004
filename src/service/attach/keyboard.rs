//! Standard input: reads keys, finds the escape sequences that a user types after a newline, such as `~.` to leave, and keeps
//! keys that cannot be sent yet.
//!
//! The result does not depend on how the input is divided: the escape character after a newline is held until the next
//! character decides what it means.

use std::io;
use std::mem::MaybeUninit;

use rustix::io::Errno;

use crate::service::pipe::{ByteQueue, Trigger};
use crate::sys::NonblockingFd;
use crate::{Context, Interest, Readiness, SourceId, TimerId};

/// The character that suspends, `^Z`.
const SUSPEND: u8 = 0x1a;

/// A piece of what the user has typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Typed<'a> {
    /// Keys for the program.
    Keys(&'a [u8]),
    /// An escape character for the program. It was held, so it is not part of the input at hand.
    Escape(u8),
    /// The user leaves: `~.`
    Leave,
    /// The user asks for the list of escapes: `~?`
    Help,
    /// The user suspends the client: `~^Z`
    Suspend,
}

/// Splits the keys that a user types into keys for the program and escapes for the client.
#[derive(Debug)]
pub(super) struct EscapeParser {
    /// The escape character; `None` if there are no escapes.
    escape: Option<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The last key was a newline, or there was none.
    LineStart,
    /// The last key was something else.
    InLine,
    /// The escape character was typed after a newline. It is held.
    Held,
}

impl EscapeParser {
    pub(super) fn new(escape: Option<u8>) -> Self {
        Self {
            escape,
            state: State::LineStart,
        }
    }

    /// Takes the next piece from the front of `input`. Returns `None` when `input` is used up.
    fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Typed<'a>> {
        let Some(escape) = self.escape else {
            let keys = std::mem::take(input);
            return (!keys.is_empty()).then_some(Typed::Keys(keys));
        };
        let mut keys = 0;
        while let Some(&key) = input.get(keys) {
            match self.state {
                State::LineStart if key == escape => {
                    let (before, rest) = input.split_at(keys);
                    self.state = State::Held;
                    *input = &rest[1..];
                    if !before.is_empty() {
                        return Some(Typed::Keys(before));
                    }
                    keys = 0;
                }
                State::Held => return Some(self.after_escape(escape, key, input)),
                State::LineStart | State::InLine => {
                    self.state = match key {
                        b'\r' | b'\n' => State::LineStart,
                        _ => State::InLine,
                    };
                    keys += 1;
                }
            }
        }
        let rest = std::mem::take(input);
        (!rest.is_empty()).then_some(Typed::Keys(rest))
    }

    /// What the held escape character means together with the next key.
    fn after_escape<'a>(&mut self, escape: u8, key: u8, input: &mut &'a [u8]) -> Typed<'a> {
        self.state = State::LineStart;
        let typed = match key {
            b'.' => Typed::Leave,
            b'?' => Typed::Help,
            SUSPEND => Typed::Suspend,
            _ => {
                self.state = State::InLine;
                Typed::Escape(escape)
            }
        };
        // Any other key stays in the input: it is for the program, and may be a newline.
        if typed != Typed::Escape(escape) || key == escape {
            *input = &input[1..];
        }
        typed
    }

    /// The held escape character, which is for the program if there is no more input.
    pub(super) fn finish(&mut self) -> Option<u8> {
        let held = self.state == State::Held;
        self.state = State::InLine;
        self.escape.filter(|_| held)
    }

    /// The list of escapes, for the user.
    pub(super) fn help(&self) -> Vec<String> {
        let Some(escape) = self.escape else {
            return Vec::new();
        };
        let escape = show(escape);
        vec![
            format!("{escape}.   leave"),
            format!("{escape}^Z  suspend attach"),
            format!("{escape}?   print this list"),
            format!("{escape}{escape}   send {escape}"),
            "Escapes work after a newline.".to_owned(),
        ]
    }

    /// How the user can leave, if there are escapes.
    pub(super) fn leave(&self) -> Option<String> {
        self.escape.map(|escape| format!("{}.", show(escape)))
    }
}

/// An ASCII character as people write it.
fn show(key: u8) -> String {
    match key {
        0..0x20 => format!("^{}", char::from(key | 0x40)),
        0x7f => "^?".to_owned(),
        _ => char::from(key).to_string(),
    }
}

/// The maximum number of bytes read at a time, and sent in one message.
const READ: usize = 16 << 10;

/// Keys are not read while this many wait to be sent.
const MAX_WAITING: usize = 64 << 10;

/// End of file as it is typed on a terminal, `^D`.
const END_OF_FILE: u8 = 4;

/// A request of the user to the client itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Leave,
    Help,
    Suspend,
}

/// The state of standard input after a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputState {
    Open,
    /// The input has ended, and there will be no more keys.
    Ended,
}

/// Keys from standard input.
#[derive(Debug)]
pub(super) struct Keyboard {
    fd: NonblockingFd,
    trigger: Trigger,
    escapes: EscapeParser,
    /// Whether the keys are for the program. A viewer's keys are not.
    sends: bool,
    /// Keys that wait to be sent.
    waiting: ByteQueue,
    /// The last key for the program.
    last: Option<u8>,
    /// Whether reading has stopped because too many keys wait.
    paused: bool,
    ended: bool,
}

impl Keyboard {
    /// Reads standard input.
    pub(super) fn watch(ctx: &mut Context, escapes: EscapeParser, sends: bool) -> io::Result<Self> {
        let fd = NonblockingFd::shared(io::stdin())?;
        let mut trigger = Trigger::watch(ctx, &fd, Interest::Readable)?;
        if matches!(trigger, Trigger::Timer(_)) {
            trigger.again(ctx, Readiness::default());
        }
        Ok(Self {
            fd,
            trigger,
            escapes,
            sends,
            waiting: ByteQueue::default(),
            last: None,
            paused: false,
            ended: false,
        })
    }

    pub(super) fn is(&self, source: SourceId) -> bool {
        self.trigger.is(source)
    }

    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        self.trigger.is_timer(timer)
    }

    pub(super) fn escapes(&self) -> &EscapeParser {
        &self.escapes
    }

    /// Reads once. Calls `request` for each request to the client, in the order of the keys.
    pub(super) fn read(
        &mut self,
        ctx: &mut Context,
        mut request: impl FnMut(&mut Context, Request),
    ) -> InputState {
        if self.ended || self.paused {
            return InputState::Open;
        }
        let mut buffer = [MaybeUninit::uninit(); READ];
        match self.fd.read(&mut buffer) {
            Ok([]) => return self.end(ctx),
            Ok(bytes) => {
                let mut input = &*bytes;
                while let Some(typed) = self.escapes.next(&mut input) {
                    match typed {
                        Typed::Keys(keys) => self.keep(keys),
                        Typed::Escape(key) => self.keep(&[key]),
                        Typed::Leave => request(ctx, Request::Leave),
                        Typed::Help => request(ctx, Request::Help),
                        Typed::Suspend => request(ctx, Request::Suspend),
                    }
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if matches!(self.trigger, Trigger::Source(_)) => {
                return InputState::Open;
            }
            Err(Errno::AGAIN) => {}
            Err(error) => {
                log::debug!("reading standard input failed: {error}");
                return self.end(ctx);
            }
        }
        self.paused = self.waiting.len() >= MAX_WAITING;
        self.again(ctx);
        InputState::Open
    }

    fn end(&mut self, ctx: &mut Context) -> InputState {
        self.ended = true;
        self.trigger.unwatch(ctx);
        if let Some(key) = self.escapes.finish() {
            self.keep(&[key]);
        }
        InputState::Ended
    }

    fn again(&mut self, ctx: &mut Context) {
        if !self.paused {
            let readiness = Readiness {
                readable: true,
                writable: false,
            };
            self.trigger.again(ctx, readiness);
        }
    }

    /// Keeps keys for the program.
    fn keep(&mut self, keys: &[u8]) {
        if self.sends {
            self.waiting.bytes().extend_from_slice(keys);
            self.last = keys.last().copied().or(self.last);
        }
    }

    /// Whether standard input has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether standard input has ended and all of it is sent.
    pub(super) fn is_finished(&self) -> bool {
        self.ended && self.waiting.len() == 0
    }

    /// Drops the keys that wait for the program.
    pub(super) fn forget(&mut self) {
        self.waiting = ByteQueue::default();
        self.last = None;
    }

    /// Adds the end of file that a user would type. After an unfinished line, the first `^D` only ends the line.
    pub(super) fn add_end_of_file(&mut self) {
        let is_line_start = self
            .last
            .is_none_or(|key| matches!(key, b'\n' | b'\r' | END_OF_FILE));
        let keys: &[u8] = if is_line_start {
            &[END_OF_FILE]
        } else {
            &[END_OF_FILE; 2]
        };
        self.keep(keys);
    }

    /// Sends waiting keys with `send`, a message at a time, which returns false when no more can be sent.
    pub(super) fn send(
        &mut self,
        ctx: &mut Context,
        mut send: impl FnMut(&mut Context, &[u8]) -> bool,
    ) {
        while self.waiting.len() > 0 {
            let keys = self.waiting.unwritten();
            let keys = &keys[..keys.len().min(READ)];
            if !send(ctx, keys) {
                break;
            }
            let count = keys.len();
            self.waiting.advance(count);
        }
        self.waiting.compact(READ);
        if self.paused && !self.ended && self.waiting.len() < MAX_WAITING {
            self.paused = false;
            self.again(ctx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys for the program, and the other pieces with the number of keys before each.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Result {
        keys: Vec<u8>,
        escapes: Vec<(usize, String)>,
    }

    fn parse(escape: Option<u8>, pieces: &[&[u8]]) -> Result {
        let mut parser = EscapeParser::new(escape);
        let mut result = Result::default();
        for piece in pieces {
            let mut input = *piece;
            while let Some(typed) = parser.next(&mut input) {
                match typed {
                    Typed::Keys(keys) => {
                        assert!(!keys.is_empty());
                        result.keys.extend_from_slice(keys);
                    }
                    Typed::Escape(key) => result.keys.push(key),
                    other => result
                        .escapes
                        .push((result.keys.len(), format!("{other:?}"))),
                }
            }
            assert!(input.is_empty());
        }
        result.keys.extend(parser.finish());
        result
    }

    /// The same, one key at a time and by looking back at all keys.
    fn naive(escape: Option<u8>, input: &[u8]) -> Result {
        let mut result = Result::default();
        let mut at = 0;
        let mut is_start = true;
        while at < input.len() {
            let here = is_start && Some(input[at]) == escape;
            match (here, input.get(at + 1)) {
                (true, Some(b'.')) => result.escapes.push((result.keys.len(), "Leave".into())),
                (true, Some(b'?')) => result.escapes.push((result.keys.len(), "Help".into())),
                (true, Some(0x1a)) => result.escapes.push((result.keys.len(), "Suspend".into())),
                (true, Some(next)) if Some(*next) == escape => {
                    result.keys.push(*next);
                    is_start = false;
                    at += 2;
                    continue;
                }
                _ => {
                    result.keys.push(input[at]);
                    is_start = matches!(input[at], b'\r' | b'\n');
                    at += 1;
                    continue;
                }
            }
            is_start = true;
            at += 2;
        }
        result
    }

    #[test]
    fn escapes_are_found_however_the_keys_are_divided() {
        let keys = b"~.\n~~.\r~?~.a~.\n~x~.\n~\r~.\n~\x1a~~\n\n~";
        let expected = naive(Some(b'~'), keys);
        assert_eq!(expected.keys, b"\n~.\ra~.\n~x~.\n~\r\n~\n\n~");
        assert_eq!(expected.escapes.len(), 5);
        for first in 0..=keys.len() {
            for second in first..=keys.len() {
                let pieces = [&keys[..first], &keys[first..second], &keys[second..]];
                assert_eq!(parse(Some(b'~'), &pieces), expected, "{first} {second}");
            }
        }
        let single: Vec<&[u8]> = keys.chunks(1).collect();
        assert_eq!(parse(Some(b'~'), &single), expected);
    }

    #[test]
    fn random_keys_mean_the_same_as_for_the_oracle() {
        let mut random = crate::random::Random::new(7);
        for _ in 0..5000 {
            let mut keys = Vec::new();
            for _ in 0..random.below(12) {
                keys.push(b"~~.?\x1a\r\na"[random.below(8)]);
            }
            let cut = random.below(keys.len() + 1);
            let pieces = [&keys[..cut], &keys[cut..]];
            for escape in [Some(b'~'), None] {
                let expected = naive(escape, &keys);
                assert_eq!(parse(escape, &pieces), expected, "{keys:?} at {cut}");
            }
        }
    }

    #[test]
    fn another_character_can_be_the_escape() {
        let result = parse(Some(0x1d), &[b"~.\x1d."]);
        assert_eq!(result.keys, b"~.\x1d.");
        let result = parse(Some(0x1d), &[b"\x1d."]);
        assert_eq!(result.escapes, [(0, "Leave".to_owned())]);
        assert_eq!(
            EscapeParser::new(Some(0x1d)).leave().as_deref(),
            Some("^].")
        );
    }
}
