//! Keys by their names, as the bytes that a terminal in the present modes would send.

use super::Modes;

/// A key that has no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidKey(pub(crate) String);

/// The modes of a terminal that keys depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyModes {
    pub(super) application_cursor: bool,
    pub(super) bracketed_paste: bool,
}

impl From<&Modes> for KeyModes {
    fn from(modes: &Modes) -> Self {
        Self {
            application_cursor: modes.application_cursor,
            bracketed_paste: modes.bracketed_paste,
        }
    }
}

/// What a named key sends.
#[derive(Clone, Copy, Debug)]
enum Key {
    /// A byte.
    Plain(u8),
    /// `CSI` and a letter, or `SS3` and the letter with application cursor keys.
    Cursor(char),
    /// `SS3` and a letter.
    Function(char),
    /// `CSI`, a number and `~`.
    Numbered(u8),
}

const NAMED: [(&str, Key); 32] = [
    ("Enter", Key::Plain(b'\r')),
    ("Return", Key::Plain(b'\r')),
    ("Tab", Key::Plain(b'\t')),
    ("Escape", Key::Plain(0x1b)),
    ("Esc", Key::Plain(0x1b)),
    ("Backspace", Key::Plain(0x7f)),
    ("Space", Key::Plain(b' ')),
    ("Up", Key::Cursor('A')),
    ("Down", Key::Cursor('B')),
    ("Right", Key::Cursor('C')),
    ("Left", Key::Cursor('D')),
    ("Home", Key::Cursor('H')),
    ("End", Key::Cursor('F')),
    ("Insert", Key::Numbered(2)),
    ("Delete", Key::Numbered(3)),
    ("PageUp", Key::Numbered(5)),
    ("PgUp", Key::Numbered(5)),
    ("PageDown", Key::Numbered(6)),
    ("PgDn", Key::Numbered(6)),
    ("F1", Key::Function('P')),
    ("F2", Key::Function('Q')),
    ("F3", Key::Function('R')),
    ("F4", Key::Function('S')),
    ("F5", Key::Numbered(15)),
    ("F6", Key::Numbered(17)),
    ("F7", Key::Numbered(18)),
    ("F8", Key::Numbered(19)),
    ("F9", Key::Numbered(20)),
    ("F10", Key::Numbered(21)),
    ("F11", Key::Numbered(23)),
    ("F12", Key::Numbered(24)),
    ("Del", Key::Numbered(3)),
];

const SHIFT: u8 = 1;
const ALT: u8 = 2;
const CONTROL: u8 = 4;

/// The bytes of a key: a name such as `Enter` or `F5`, or a character, after any of `C-`, `M-` and `S-`.
pub(crate) fn key_bytes(name: &str, modes: KeyModes) -> Result<Vec<u8>, InvalidKey> {
    let invalid = || InvalidKey(name.chars().take(40).collect());
    let mut rest = name;
    let mut modifiers = 0;
    loop {
        let modifier = match rest.get(..2) {
            Some("C-") => CONTROL,
            Some("M-" | "A-") => ALT,
            Some("S-") => SHIFT,
            _ => break,
        };
        if rest.len() == 2 {
            break;
        }
        modifiers |= modifier;
        rest = &rest[2..];
    }
    let named = NAMED.iter().find(|(known, _)| *known == rest);
    let mut bytes = match named {
        Some((_, Key::Plain(b'\t'))) if modifiers & SHIFT != 0 => b"\x1b[Z".to_vec(),
        Some((_, Key::Plain(b' '))) if modifiers & CONTROL != 0 => vec![0],
        Some((_, Key::Plain(byte))) => vec![*byte],
        Some((_, key)) => return Ok(key.sequence(modifiers, modes)),
        None => {
            let mut characters = rest.chars();
            let (Some(character), None) = (characters.next(), characters.next()) else {
                return Err(invalid());
            };
            match character {
                '@'..='~' | '?' if modifiers & CONTROL != 0 => {
                    vec![if character == '?' {
                        0x7f
                    } else {
                        character as u8 & 0x1f
                    }]
                }
                _ if modifiers & CONTROL != 0 || character.is_control() => return Err(invalid()),
                _ if modifiers & SHIFT != 0 => character.to_uppercase().to_string().into_bytes(),
                _ => character.to_string().into_bytes(),
            }
        }
    };
    if modifiers & ALT != 0 {
        bytes.insert(0, 0x1b);
    }
    Ok(bytes)
}

impl Key {
    fn sequence(self, modifiers: u8, modes: KeyModes) -> Vec<u8> {
        let sequence = match (self, modifiers) {
            (Self::Plain(byte), _) => char::from(byte).to_string(),
            (Self::Cursor(letter), 0) if modes.application_cursor => format!("\x1bO{letter}"),
            (Self::Cursor(letter), 0) => format!("\x1b[{letter}"),
            (Self::Function(letter), 0) => format!("\x1bO{letter}"),
            (Self::Cursor(letter) | Self::Function(letter), _) => {
                format!("\x1b[1;{}{letter}", modifiers + 1)
            }
            (Self::Numbered(number), 0) => format!("\x1b[{number}~"),
            (Self::Numbered(number), _) => format!("\x1b[{number};{}~", modifiers + 1),
        };
        sequence.into_bytes()
    }
}

/// The bytes of pasted text. A program that has asked for it sees where the text begins and ends, and the text cannot imitate this.
pub(crate) fn paste_bytes(text: &str, modes: KeyModes) -> Vec<u8> {
    let text = text.replace("\r\n", "\r").replace('\n', "\r");
    if modes.bracketed_paste {
        let text = text.replace('\x1b', "");
        return format!("\x1b[200~{text}\x1b[201~").into_bytes();
    }
    text.into_bytes()
}
