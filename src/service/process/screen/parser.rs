//! Splits the output of a program into units: text, control characters and control sequences (ECMA-48), by the rules of xterm.js.
//!
//! A unit is taken whole or not at all. So what the output means does not depend on the pieces in which it arrives, and the
//! parser keeps nothing between calls but the kind of a string that is too long to be kept.

/// The maximum length of a control sequence in bytes. The rest of a longer one is skipped.
pub(super) const MAX_SEQUENCE: usize = 4096;

/// The maximum number of parameters. Further ones are ignored.
const MAX_PARAMS: usize = 32;

/// The largest value of a parameter. Larger ones mean the same.
const MAX_VALUE: u32 = 0x7fff_ffff;

const ESC: u8 = 0x1b;

/// A unit of output.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit<'a> {
    /// Printable ASCII characters.
    Ascii(&'a [u8]),
    Character(char),
    /// A control character, C0 or C1.
    Control(u8),
    Escape {
        intermediate: u8,
        last: u8,
    },
    Csi(&'a Csi),
    /// The text of an operating system command.
    Osc(&'a [u8]),
    /// Anything that has no effect.
    Nothing,
    /// The beginning of a string that is too long.
    Long,
}

/// Takes units.
pub(super) trait Perform {
    fn unit(&mut self, unit: Unit<'_>);
}

/// A control sequence of which the rest is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    Csi,
    Osc,
    /// DCS, SOS, PM or APC.
    String,
}

/// A control sequence `CSI ...`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Csi {
    /// `<`, `=`, `>` or `?`, or 0.
    pub(super) prefix: u8,
    pub(super) params: Params,
    /// The last intermediate character, or 0.
    pub(super) intermediate: u8,
    pub(super) last: u8,
}

/// The parameters of a control sequence. There is at least one; the value of an absent one is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Params {
    values: [u32; MAX_PARAMS],
    len: usize,
    subs: [u32; MAX_PARAMS],
    /// The end of the subparameters of each parameter in `subs`, if there are any.
    sub_ends: [u8; MAX_PARAMS],
    sub_len: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            values: [0; MAX_PARAMS],
            len: 1,
            subs: [0; MAX_PARAMS],
            sub_ends: [0; MAX_PARAMS],
            sub_len: 0,
        }
    }
}

impl Params {
    /// The value of an absent subparameter.
    pub(super) const ABSENT: u32 = u32::MAX;

    /// Resets to a single parameter with the value 0.
    fn clear(&mut self) {
        (self.values[0], self.sub_ends[0]) = (0, 0);
        (self.len, self.sub_len) = (1, 0);
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, at: usize) -> u32 {
        if at < self.len { self.values[at] } else { 0 }
    }

    /// A parameter that counts something: an absent one, and 0, mean 1.
    pub(super) fn count(&self, at: usize) -> usize {
        self.get(at).max(1) as usize
    }

    /// The subparameters of a parameter, which follow it after colons.
    pub(super) fn sub(&self, at: usize) -> &[u32] {
        if at >= self.len || self.sub_len == 0 {
            return &[];
        }
        let start = match at {
            0 => 0,
            _ => usize::from(self.sub_ends[at - 1]),
        };
        &self.subs[start..usize::from(self.sub_ends[at])]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.values[..self.len].iter().copied()
    }
}

/// The state of the parser of parameters.
#[derive(Debug)]
struct ParamsReader<'p> {
    params: &'p mut Params,
    in_sub: bool,
    /// Whether more parameters have come than are kept.
    is_full: bool,
}

impl<'p> ParamsReader<'p> {
    fn new(params: &'p mut Params) -> Self {
        params.clear();
        Self {
            params,
            in_sub: false,
            is_full: false,
        }
    }

    fn push(&mut self, byte: u8) {
        let Self {
            params,
            in_sub,
            is_full,
        } = self;
        match byte {
            b';' => {
                *in_sub = false;
                *is_full |= params.len == MAX_PARAMS;
                if !*is_full {
                    params.sub_ends[params.len] = params.sub_len as u8;
                    params.values[params.len] = 0;
                    params.len += 1;
                }
            }
            _ if *is_full => {}
            b':' => {
                *in_sub = true;
                if params.sub_len < MAX_PARAMS {
                    params.subs[params.sub_len] = Params::ABSENT;
                    params.sub_len += 1;
                    params.sub_ends[params.len - 1] = params.sub_len as u8;
                }
            }
            digit => {
                let value = if *in_sub {
                    &mut params.subs[params.sub_len - 1]
                } else {
                    &mut params.values[params.len - 1]
                };
                let before = if *value == Params::ABSENT { 0 } else { *value };
                let digit = u32::from(digit - b'0');
                *value = before
                    .saturating_mul(10)
                    .saturating_add(digit)
                    .min(MAX_VALUE);
            }
        }
    }
}

/// Takes units from the beginning of `bytes`, and passes each one to `out`. Returns the number of bytes that
/// were taken. The rest is the beginning of a unit.
pub(super) fn parse(bytes: &[u8], skipped: &mut Option<Skipped>, out: &mut impl Perform) -> usize {
    let mut csi = Csi::default();
    let csi = &mut csi;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if let Some(kind) = *skipped {
            let (count, is_over) = skip(kind, rest);
            at += count;
            if is_over {
                *skipped = None;
            } else {
                break;
            }
            continue;
        }
        let taken = match rest[0] {
            0x20..=0x7e => {
                let count = text_length(rest);
                out.unit(Unit::Ascii(&rest[..count]));
                Some(count)
            }
            ESC => escape(rest, csi, out),
            0x7f => Some(1),
            control @ 0..=0x1f => {
                out.unit(Unit::Control(control));
                Some(1)
            }
            0x80.. => character(rest, csi, out),
        };
        match taken {
            Some(count) => at += count,
            None if rest.len() < MAX_SEQUENCE => break,
            None => {
                let kind = long_kind(rest);
                *skipped = Some(kind);
                out.unit(Unit::Long);
                at += MAX_SEQUENCE;
            }
        }
    }
    at
}

/// The number of printable ASCII characters at the beginning.
#[inline]
fn text_length(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut count = 0;
    while let Some(word) = bytes[count..].first_chunk() {
        let word = u64::from_le_bytes(*word);
        // The highest bit of each byte below 0x20 or above 0x7e, up to the first such byte, which is all that is asked for.
        let others =
            (word.wrapping_sub(0x20 * ONES) | word.wrapping_add(ONES) | word) & (0x80 * ONES);
        if others != 0 {
            return count + others.trailing_zeros() as usize / 8;
        }
        count += 8;
    }
    let mut rest = bytes[count..].iter();
    let other = rest.position(|byte| !matches!(byte, 0x20..=0x7e));
    other.map_or(bytes.len(), |other| count + other)
}

/// The kind of an incomplete sequence.
fn long_kind(rest: &[u8]) -> Skipped {
    match rest {
        [ESC, b']', ..] | [0xc2, 0x9d, ..] => Skipped::Osc,
        [ESC, b'P' | b'X' | b'^' | b'_', ..] | [0xc2, 0x90 | 0x98 | 0x9e | 0x9f, ..] => {
            Skipped::String
        }
        _ => Skipped::Csi,
    }
}

/// Skips the rest of a long sequence. Returns the number of bytes, and whether it ends there.
fn skip(kind: Skipped, rest: &[u8]) -> (usize, bool) {
    for (at, byte) in rest.iter().enumerate() {
        match (*byte, kind) {
            // It begins the next sequence.
            (ESC, _) => return (at, true),
            (0x18 | 0x1a, _) | (0x07, Skipped::Osc) | (0x40..=0x7e, Skipped::Csi) => {
                return (at + 1, true);
            }
            (0xc2, _) => match rest.get(at + 1) {
                Some(0x9c) => return (at + 2, true),
                Some(_) => {}
                None => return (at, false),
            },
            _ => {}
        }
    }
    (rest.len(), false)
}

/// The next character in UTF-8.
enum Decoded {
    Character(char, usize),
    /// Bytes that are not valid UTF-8. xterm.js ignores them.
    Invalid(usize),
    Incomplete,
}

fn decode(rest: &[u8]) -> Decoded {
    let (length, first) = match rest[0] {
        byte @ 0xc2..=0xdf => (2, u32::from(byte & 0x1f)),
        byte @ 0xe0..=0xef => (3, u32::from(byte & 0x0f)),
        byte @ 0xf0..=0xf4 => (4, u32::from(byte & 0x07)),
        _ => return Decoded::Invalid(1),
    };
    let mut code = first;
    for at in 1..length {
        match rest.get(at) {
            None => return Decoded::Incomplete,
            Some(byte @ 0x80..=0xbf) => code = (code << 6) | u32::from(byte & 0x3f),
            Some(_) => return Decoded::Invalid(at),
        }
    }
    let least = [0, 0, 0x80, 0x800, 0x1_0000][length];
    match char::from_u32(code).filter(|character| code >= least && *character != '\u{feff}') {
        Some(character) => Decoded::Character(character, length),
        None => Decoded::Invalid(length),
    }
}

fn character(rest: &[u8], csi: &mut Csi, out: &mut impl Perform) -> Option<usize> {
    let (character, length) = match decode(rest) {
        Decoded::Character(character, length) => (character, length),
        Decoded::Invalid(length) => return Some(length),
        Decoded::Incomplete => return None,
    };
    match character {
        '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => string(rest, length, out, Skipped::String),
        '\u{9d}' => string(rest, length, out, Skipped::Osc),
        '\u{9b}' => control_sequence(rest, length, csi, out),
        '\u{80}'..='\u{9f}' => {
            out.unit(Unit::Control(character as u8));
            Some(length)
        }
        _ => {
            out.unit(Unit::Character(character));
            Some(length)
        }
    }
}

#[inline]
fn escape(rest: &[u8], csi: &mut Csi, out: &mut impl Perform) -> Option<usize> {
    match rest.get(1)? {
        b'[' => control_sequence(rest, 2, csi, out),
        b']' => string(rest, 2, out, Skipped::Osc),
        b'P' | b'X' | b'^' | b'_' => string(rest, 2, out, Skipped::String),
        _ => {
            let end = sequence_end(rest, 1, false)?;
            execute_inside(&rest[1..end.at], out);
            if end.is_complete {
                let collected = rest[1..end.at].iter();
                let collected = collected.filter(|byte| matches!(byte, 0x20..=0x2f));
                let intermediate = match collected.clone().count() {
                    0 => 0,
                    1 => collected.clone().next().copied().unwrap_or_default(),
                    // No sequence has several.
                    _ => u8::MAX,
                };
                let last = rest[end.at];
                out.unit(Unit::Escape { intermediate, last });
            }
            Some(end.next)
        }
    }
}

/// The end of a sequence.
struct End {
    /// The place of the last character, or of what has ended the sequence early.
    at: usize,
    /// The beginning of the next unit.
    next: usize,
    is_complete: bool,
}

/// Finds the end of an escape sequence or a control sequence whose characters begin at `from`.
fn sequence_end(rest: &[u8], from: usize, is_csi: bool) -> Option<End> {
    let limit = rest.len().min(MAX_SEQUENCE);
    let mut at = from;
    while at < limit {
        let (next, is_complete) = match rest[at] {
            ESC => (at, false),
            0x18 | 0x1a => (at + 1, false),
            0x30..=0x3f if !is_csi => (at + 1, true),
            0x40..=0x7e => (at + 1, true),
            0..=0x7f => {
                at += 1;
                continue;
            }
            0x80.. => match decode(&rest[at..limit]) {
                Decoded::Incomplete => return None,
                Decoded::Invalid(length) => {
                    at += length;
                    continue;
                }
                // A control character ends the sequence, and has its own meaning.
                Decoded::Character('\u{80}'..='\u{9f}', _) => (at, false),
                Decoded::Character(_, length) => (at + length, false),
            },
        };
        return Some(End {
            at,
            next,
            is_complete,
        });
    }
    None
}

/// Executes the control characters inside a sequence.
fn execute_inside(inside: &[u8], out: &mut impl Perform) {
    for byte in inside.iter().filter(|byte| **byte < 0x20) {
        out.unit(Unit::Control(*byte));
    }
}

/// Takes a sequence with one or two numbers that fits into a word, without a branch for each digit. Returns its length.
#[inline]
fn short_sequence(rest: &[u8], from: usize, csi: &mut Csi) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(*rest.get(from..)?.first_chunk()?);
    let digits = word ^ (0x30 * ONES);
    // The highest bit of each byte that is no digit.
    let others = (((digits & (0x7f * ONES)) + 0x76 * ONES) | digits) & (0x80 * ONES);
    let first = others.trailing_zeros() / 8;
    let rest_of_others = others & others.wrapping_sub(1);
    let second = rest_of_others.trailing_zeros() / 8;
    let byte = |at: u32| (word >> (8 * at)) as u8;
    let (end, count) = match byte(first.min(7)) {
        b';' => (second, 2),
        _ => (first, 1),
    };
    if end > 7 || !matches!(byte(end), 0x40..=0x7e) {
        return None;
    }
    csi.params.values[0] = number(digits, first);
    if count == 2 {
        csi.params.values[1] = number(digits >> (8 * (first + 1)), end - first - 1);
    }
    (csi.params.len, csi.params.sub_len) = (count, 0);
    (csi.prefix, csi.intermediate, csi.last) = (0, 0, byte(end));
    Some(from + end as usize + 1)
}

/// The number whose `count` digits, at most 7, are the lowest bytes of a word.
#[inline]
fn number(digits: u64, count: u32) -> u32 {
    // The digits move to the highest bytes, after zeros. Each step joins neighbours: digits, pairs of them, and fours.
    let digits = (digits << 8) << (56 - 8 * count);
    let pairs = (digits.wrapping_mul(2561) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(6_553_601) >> 16) & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul(42_949_672_960_001) >> 32) as u32
}

/// Most sequences have nothing but a few numbers. Returns the length of such a sequence.
#[inline]
fn simple_sequence(rest: &[u8], from: usize, csi: &mut Csi) -> Option<usize> {
    /// Further digits could exceed `MAX_VALUE`.
    const MAX_DIGITS: usize = 9;
    let limit = rest.len().min(MAX_SEQUENCE);
    let mut bytes = rest.get(from..limit)?;
    csi.prefix = match bytes {
        [prefix @ 0x3c..=0x3f, others @ ..] => {
            bytes = others;
            *prefix
        }
        _ => 0,
    };
    for (count, param) in csi.params.values.iter_mut().enumerate() {
        let mut value = 0_u32;
        let mut digits = 0;
        let end = loop {
            let byte = *bytes.get(digits)?;
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break byte;
            }
            value = value.wrapping_mul(10).wrapping_add(u32::from(digit));
            digits += 1;
        };
        if digits > MAX_DIGITS {
            return None;
        }
        *param = value;
        bytes = &bytes[digits + 1..];
        if end == b';' {
            continue;
        }
        if !matches!(end, 0x40..=0x7e) {
            return None;
        }
        (csi.params.len, csi.params.sub_len) = (count + 1, 0);
        (csi.intermediate, csi.last) = (0, end);
        return Some(limit - bytes.len());
    }
    None
}

#[inline]
fn control_sequence(
    rest: &[u8],
    from: usize,
    csi: &mut Csi,
    out: &mut impl Perform,
) -> Option<usize> {
    let length = short_sequence(rest, from, csi).or_else(|| simple_sequence(rest, from, csi));
    if let Some(length) = length {
        out.unit(Unit::Csi(csi));
        return Some(length);
    }
    other_sequence(rest, from, csi, out)
}

/// Takes a control sequence of any kind.
#[cold]
fn other_sequence(
    rest: &[u8],
    from: usize,
    csi: &mut Csi,
    out: &mut impl Perform,
) -> Option<usize> {
    let end = sequence_end(rest, from, true)?;
    let inside = &rest[from..end.at];
    execute_inside(inside, out);
    if !end.is_complete {
        return Some(end.next);
    }
    (csi.prefix, csi.intermediate) = (0, 0);
    csi.last = rest[end.at];
    let mut reader = ParamsReader::new(&mut csi.params);
    let mut is_first = true;
    for byte in inside {
        match byte {
            0x3c..=0x3f if is_first => csi.prefix = *byte,
            // Nothing follows an intermediate character but others, and a second prefix is wrong.
            0x3c..=0x3f => return Some(end.next),
            0x30..=0x3b if csi.intermediate != 0 => return Some(end.next),
            0x30..=0x3b => reader.push(*byte),
            0x20..=0x2f if csi.intermediate != 0 => csi.intermediate = u8::MAX,
            0x20..=0x2f => csi.intermediate = *byte,
            // It was executed, or is ignored.
            _ => continue,
        }
        is_first = false;
    }
    out.unit(Unit::Csi(csi));
    Some(end.next)
}

/// A string: an operating system command, or one that has no effect.
fn string(rest: &[u8], from: usize, out: &mut impl Perform, kind: Skipped) -> Option<usize> {
    let limit = rest.len().min(MAX_SEQUENCE);
    for at in from..limit {
        let next = match (rest[at], kind) {
            (ESC, _) if at + 1 == limit => return None,
            (ESC, _) if rest[at + 1] == b'\\' => at + 2,
            // It begins the next sequence.
            (ESC, _) => at,
            (0x18 | 0x1a, _) => {
                out.unit(Unit::Nothing);
                return Some(at + 1);
            }
            (0x07, Skipped::Osc) => at + 1,
            (0xc2, _) if at + 1 == limit => return None,
            (0xc2, _) if rest[at + 1] == 0x9c => at + 2,
            _ => continue,
        };
        out.unit(match kind {
            Skipped::Osc => Unit::Osc(&rest[from..at]),
            Skipped::String | Skipped::Csi => Unit::Nothing,
        });
        return Some(next);
    }
    None
}

/// Takes the control sequence at the beginning of `bytes`. Returns its length, unless it is incomplete.
pub(super) fn parse_one(bytes: &[u8], out: &mut impl Perform) -> Option<usize> {
    escape(bytes, &mut Csi::default(), out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The shortcuts for usual sequences find the same as the parser of all sequences.
    #[test]
    fn short_sequences_are_like_long_ones() {
        const PIECES: &[u8] = b"0123456789;;;HmK:?\n ";
        #[derive(Default)]
        struct Units(Vec<String>);
        impl Perform for Units {
            fn unit(&mut self, unit: Unit<'_>) {
                self.0.push(match unit {
                    Unit::Csi(csi) => {
                        let params: Vec<u32> = csi.params.iter().collect();
                        let subs: Vec<&[u32]> =
                            (0..params.len()).map(|at| csi.params.sub(at)).collect();
                        format!(
                            "{:?}",
                            (csi.prefix, params, subs, csi.intermediate, csi.last)
                        )
                    }
                    other => format!("{other:?}"),
                });
            }
        }
        let mut random = Random::new(38);
        for _ in 0..200_000 {
            let mut bytes = b"\x1b[".to_vec();
            for _ in 0..random.below(12) {
                bytes.push(PIECES[random.below(PIECES.len())]);
            }
            bytes.extend_from_slice(b"A   ");
            let (mut one, mut other) = (Units::default(), Units::default());
            let mut csi = Csi::default();
            let short = short_sequence(&bytes, 2, &mut csi)
                .or_else(|| simple_sequence(&bytes, 2, &mut csi));
            if let Some(length) = short {
                one.unit(Unit::Csi(&csi));
                let mut csi = Csi::default();
                assert_eq!(
                    other_sequence(&bytes, 2, &mut csi, &mut other),
                    Some(length)
                );
                assert_eq!(one.0, other.0, "{:?}", String::from_utf8_lossy(&bytes));
            }
        }
    }
}
