//! Finds the escape sequences that a user types after a newline, such as `~.` to leave. There is no I/O in here.
//!
//! The result does not depend on how the input is divided: the escape character after a newline is held until the next
//! character decides what it means.

/// The character that suspends, `^Z`.
const SUSPEND: u8 = 0x1a;

/// A piece of what the user has typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Typed<'a> {
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
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Typed<'a>> {
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
