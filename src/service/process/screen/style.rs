//! Colors and attributes of cells, and the sequences that select them (SGR).

use std::fmt::Write;

use super::parser::Params;

/// A color: the default, one of a palette of 256, or red, green and blue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Color(u32);

const PALETTE: u32 = 1 << 24;
const RGB: u32 = 2 << 24;

impl Color {
    fn palette(index: u32) -> Self {
        Self(PALETTE | (index & 0xff))
    }

    fn rgb(red: u32, green: u32, blue: u32) -> Self {
        Self(RGB | ((red & 0xff) << 16) | ((green & 0xff) << 8) | (blue & 0xff))
    }

    /// 0 for the default, 1 for a color of the palette or 2 for one of its own, and the index or the color.
    #[cfg(any(test, fuzzing))]
    pub(super) fn parts(self) -> (u32, u32) {
        (self.0 >> 24, self.0 & 0xff_ffff)
    }

    /// Appends the parameters that select the color. `base` is 30 for the foreground and 40 for the background.
    fn write(self, out: &mut String, base: u32) {
        let value = self.0 & 0xff_ffff;
        let _ = match self.0 >> 24 {
            0 => Ok(()),
            1 if value < 8 => write!(out, ";{}", base + value),
            1 if value < 16 => write!(out, ";{}", base + 60 + value - 8),
            1 => write!(out, ";{};5;{value}", base + 8),
            _ => write!(
                out,
                ";{};2;{};{};{}",
                base + 8,
                value >> 16,
                (value >> 8) & 0xff,
                value & 0xff
            ),
        };
    }
}

const BOLD: u16 = 1;
const DIM: u16 = 1 << 1;
const ITALIC: u16 = 1 << 2;
const BLINK: u16 = 1 << 3;
const INVERSE: u16 = 1 << 4;
const INVISIBLE: u16 = 1 << 5;
const STRIKE: u16 = 1 << 6;
const OVERLINE: u16 = 1 << 7;
/// The style of the underline, 0 to 5, in three bits.
const UNDERLINE_SHIFT: u16 = 8;
const UNDERLINE: u16 = 7 << UNDERLINE_SHIFT;

/// The attributes with the parameters that turn them on.
const FLAGS: [(u16, u32); 8] = [
    (BOLD, 1),
    (DIM, 2),
    (ITALIC, 3),
    (BLINK, 5),
    (INVERSE, 7),
    (INVISIBLE, 8),
    (STRIKE, 9),
    (OVERLINE, 53),
];

/// How a character is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) foreground: Color,
    pub(super) background: Color,
    pub(super) flags: u16,
}

impl Style {
    /// The style of erased cells: the background alone.
    pub(super) fn erased(self) -> Self {
        Self {
            background: self.background,
            ..Self::default()
        }
    }

    fn set(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    fn underline(&mut self, style: u32) {
        // An unknown style is a single line.
        let style = if style > 5 { 1 } else { style as u16 };
        self.flags &= !UNDERLINE;
        self.flags |= style << UNDERLINE_SHIFT;
    }

    /// Applies a sequence `CSI ... m`.
    pub(super) fn apply(&mut self, params: &Params) {
        let mut at = 0;
        while at < params.len() {
            match params.get(at) {
                0 => *self = Self::default(),
                4 => self.underline(params.sub(at).first().copied().unwrap_or(1)),
                21 => self.underline(2),
                22 => self.set(BOLD | DIM, false),
                23 => self.set(ITALIC, false),
                24 => self.underline(0),
                25 => self.set(BLINK, false),
                27 => self.set(INVERSE, false),
                28 => self.set(INVISIBLE, false),
                29 => self.set(STRIKE, false),
                55 => self.set(OVERLINE, false),
                39 => self.foreground = Color::default(),
                49 => self.background = Color::default(),
                code @ 30..=37 => self.foreground = Color::palette(code - 30),
                code @ 40..=47 => self.background = Color::palette(code - 40),
                code @ 90..=97 => self.foreground = Color::palette(code - 90 + 8),
                code @ 100..=107 => self.background = Color::palette(code - 100 + 8),
                code @ (38 | 48 | 58) => {
                    let (color, taken) = extended(params, at);
                    match (code, color) {
                        (38, Some(color)) => self.foreground = color,
                        (48, Some(color)) => self.background = color,
                        _ => {}
                    }
                    at += taken;
                }
                1 => self.set(BOLD, true),
                2 => self.set(DIM, true),
                3 => self.set(ITALIC, true),
                5 => self.set(BLINK, true),
                7 => self.set(INVERSE, true),
                8 => self.set(INVISIBLE, true),
                9 => self.set(STRIKE, true),
                53 => self.set(OVERLINE, true),
                _ => {}
            }
            at += 1;
        }
    }

    /// Appends the sequence that selects the style, whatever was selected before.
    pub(super) fn write(self, out: &mut String) {
        out.push_str("\x1b[0");
        for (flag, code) in FLAGS {
            if self.flags & flag != 0 {
                let _ = write!(out, ";{code}");
            }
        }
        match (self.flags & UNDERLINE) >> UNDERLINE_SHIFT {
            0 => {}
            1 => out.push_str(";4"),
            style => {
                let _ = write!(out, ";4:{style}");
            }
        }
        self.foreground.write(out, 30);
        self.background.write(out, 40);
        out.push('m');
    }
}

/// The color of `38;5;N`, `38;2;R;G;B`, `38:5:N` or `38:2:SPACE:R:G:B`, and the number of further parameters. xterm.js expects a color
/// space after colons, also where a program leaves it out.
fn extended(params: &Params, at: usize) -> (Option<Color>, usize) {
    let known = |value: u32| if value == Params::ABSENT { 0 } else { value };
    let color = |mode: u32, values: &[u32]| {
        let value = |index: usize| known(values.get(index).copied().unwrap_or(0));
        match mode {
            5 => Some(Color::palette(value(0))),
            2 => Some(Color::rgb(value(0), value(1), value(2))),
            _ => None,
        }
    };
    match params.sub(at) {
        [] => {}
        [2, _, values @ ..] => return (color(2, values), 0),
        [mode, values @ ..] => return (color(*mode, values), 0),
    }
    let rest = [2, 3, 4].map(|next| params.get(at + next));
    let mode = if at + 1 < params.len() {
        params.get(at + 1)
    } else {
        0
    };
    let taken = match mode {
        5 => 2,
        2 => 4,
        _ => 4,
    };
    (color(mode, &rest), taken.min(params.len() - at - 1))
}
