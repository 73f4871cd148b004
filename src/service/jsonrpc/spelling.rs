//! The keys that a lenient parser could read as others.

/// The error for a key that a more lenient parser could read as a reserved key.
pub(super) const MISSPELLED: &str = "a reserved key has a wrong spelling";

/// The maximum length of a key that can be a spelling of another one.
const MAX_SPELLING: usize = 256;

/// Whether a lenient parser could read `key` as `name`. Go's parser ignores case, and Python libraries accept
/// `session_id` for `sessionId`.
pub(crate) fn is_spelling_of(key: &str, name: &str) -> bool {
    // The search for a spelling must not take long for a key that consists of what it ignores.
    if key.len() > MAX_SPELLING {
        return false;
    }
    folded(key).eq(folded(name))
}

/// The characters of a key without what lenient parsers ignore.
pub(crate) fn folded(text: &str) -> impl DoubleEndedIterator<Item = char> {
    let chars = text.chars().filter(|c| !matches!(c, '_' | '-'));
    chars.map(|c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    })
}

/// Whether a key is `_meta` or one of its spellings in libraries, such as `meta` and `field_meta`.
pub(super) fn is_meta(key: &str) -> bool {
    is_spelling_of(key, "meta") || is_spelling_of(key, "fieldMeta")
}

/// Whether an object can have a key that [`is_spelling_of`] `progressToken`: false if it lacks a letter of that key. Has no
/// branch, so that the compiler can check many bytes at once.
pub(super) fn may_have_progress_token(object: &str) -> bool {
    let (mut g, mut k, mut other) = (false, false, false);
    for byte in object.bytes() {
        g |= byte | 0x20 == b'g';
        k |= byte | 0x20 == b'k';
        other |= byte == b'\\' || byte >= 0x80;
    }
    g && k || other
}
