//! The tokens that a server accepts, and the text of the token file.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use super::Token;
use super::check::percent_decode;
use super::credential::{Credential, ParseSecretError, Secret};
use super::links::Links;
use crate::record::record;
use crate::text::without_mark;

/// The minimum length of a token that is looked for in paths. A shorter one, such as `shell`, may be there by chance.
const LONG_TOKEN: usize = 16;

/// Which credential a client has presented: the position of a token in [`Tokens`], counted from 1, or a link. An `Option` of it
/// takes two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CredentialId(NonZeroU16);

record!(CredentialId as NonZeroU16);

/// The number of the first link. Tokens have lower numbers.
const FIRST_LINK: usize = 1 << 8;

const _: () = assert!(Tokens::MOST < FIRST_LINK && FIRST_LINK + Links::MOST < u16::MAX as usize);

impl CredentialId {
    /// A credential that is no longer accepted. No token or link has this number.
    pub(crate) const REVOKED: Self = Self(NonZeroU16::MAX);

    fn new(number: usize) -> Option<Self> {
        let number = u16::try_from(number).ok().and_then(NonZeroU16::new);
        number.map(Self)
    }

    fn of_token(index: usize) -> Option<Self> {
        Self::new(index + 1)
    }

    /// The credential of the link in a slot of [`Links`].
    pub(super) fn of_link(slot: usize) -> Option<Self> {
        Self::new(FIRST_LINK + slot)
    }

    /// The slot of a link.
    pub(super) fn link(self) -> Option<usize> {
        let slot = usize::from(self.0.get()).checked_sub(FIRST_LINK);
        slot.filter(|_| self != Self::REVOKED)
    }
}

/// The tokens that a server accepts. Clients need none if it is empty.
///
/// Its text form is that of the token file: lines `NAME SCOPE SECRET`, where `#` begins a comment; or one word, the
/// secret of a token without a name that allows everything.
///
/// ```
/// use outrigger::{Access, Scope, Token, Tokens};
///
/// let mut access = Access::default();
/// access.tokens = Token::generate().into();
/// assert_eq!(access.tokens.iter().next().map(|one| one.name()), Some("default"));
///
/// access.tokens = "
///     ## name scope    secret
///     ada     all      correct-horse-battery-staple
///     grafana metrics  sha256:f87ca5c2b1fc5b9e7dd1a4b4a7b5b9f0a4c9a1b4b2b3b5b6b7b8b9babbbcbdbe
/// ".parse()?;
/// let scopes: Vec<Scope> = access.tokens.iter().map(|one| one.scope()).collect();
/// assert_eq!(scopes, [Scope::All, Scope::Metrics]);
/// # Ok::<(), outrigger::TokensError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Credential>);

record!(Tokens as Vec<Credential>);

impl Tokens {
    /// The maximum number of tokens.
    pub const MOST: usize = u8::MAX as usize - 1;

    /// Adds a token. A name may have one token of each scope, such as another one that only observes.
    ///
    /// # Errors
    ///
    /// Its name has a token of this scope, its secret is in use, or there are [`Tokens::MOST`] tokens.
    pub fn add(&mut self, credential: Credential) -> Result<(), TokensError> {
        let is_same =
            |one: &Credential| (one.name(), one.scope()) == (credential.name(), credential.scope());
        if self.0.iter().any(is_same) {
            return Err(TokensError::at(None, Problem::Name));
        }
        if self.0.iter().any(|one| one.secret() == credential.secret()) {
            return Err(TokensError::at(None, Problem::Secret));
        }
        if self.0.len() >= Self::MOST {
            return Err(TokensError::at(None, Problem::TooMany));
        }
        self.0.push(credential);
        Ok(())
    }

    /// Whether there are none, so that clients need no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Credential> {
        self.0.iter()
    }

    /// The first token of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Credential> {
        self.0.iter().find(|one| one.name() == name)
    }

    /// The token to hand out to every client: the only one, if its text is known.
    #[must_use]
    pub fn only(&self) -> Option<&Token> {
        match self.0.as_slice() {
            [one] => one.secret().token(),
            _ => None,
        }
    }

    /// The credential that a client presented. Its time does not depend on which one that is.
    pub(crate) fn matching(&self, secret: &[u8]) -> Option<CredentialId> {
        let presented = Secret::digest_of(secret);
        let mut found = 0;
        for (index, one) in self.0.iter().enumerate() {
            let is_equal = *one.secret() == presented;
            found |= (index + 1) * usize::from(is_equal);
        }
        CredentialId::of_token(found.checked_sub(1)?)
    }

    /// The credential at a position.
    pub(crate) fn get(&self, id: CredentialId) -> Option<&Credential> {
        self.0.get(usize::from(id.0.get()) - 1)
    }

    /// The position of a credential of earlier tokens, if it is still accepted and allows as much as before.
    pub(crate) fn successor(&self, earlier: &Credential) -> Option<CredentialId> {
        let index = self.0.iter().position(|one| {
            (one.name(), one.secret()) == (earlier.name(), earlier.secret())
                && one.scope() >= earlier.scope()
        })?;
        CredentialId::of_token(index)
    }

    /// Whether a string contains one of the tokens: one whose text is known, in any letter case or percent-encoded, or the
    /// whole word of another.
    pub(crate) fn are_revealed_by(&self, text: &str) -> bool {
        self.are_in(text, 0)
    }

    /// Whether a path contains one of the tokens that are too long to be there by chance.
    pub(super) fn are_in_path(&self, path: &str) -> bool {
        self.are_in(path, LONG_TOKEN)
    }

    /// Whether a string contains one of the tokens with at least so many characters.
    fn are_in(&self, text: &str, least: usize) -> bool {
        if self.is_empty() {
            return false;
        }
        let known = self.0.iter().filter_map(|one| one.secret().token());
        let known: Vec<&[u8]> = known
            .map(|token| token.reveal().as_bytes())
            .filter(|token| token.len() >= least)
            .collect();
        let has_digests = self.0.iter().any(|one| one.secret().token().is_none());
        let decoded = percent_decode(text);
        let is_plain = decoded == text.as_bytes();
        if contains_any(&decoded, &known) || !is_plain && contains_any(text.as_bytes(), &known) {
            return true;
        }
        let separates = |byte: &u8| b"/?&=;, ".contains(byte);
        has_digests
            && decoded
                .split(separates)
                .any(|word| word.len() >= LONG_TOKEN && self.matching(word).is_some())
    }
}

/// The number of first bytes of a token by which [`contains_any`] finds it.
const PREFIX: usize = 4;

/// Whether a string contains one of the tokens, in any letter case. Compares a position of the text with the tokens only if a token may
/// begin there, because a stranger sends the text.
fn contains_any(text: &[u8], tokens: &[&[u8]]) -> bool {
    /// The number of classes of beginnings. There are far fewer tokens.
    const CLASSES: usize = 4096;
    let class = |bytes: &[u8]| {
        let prefix = bytes.first_chunk::<PREFIX>()?;
        let prefix = u32::from_le_bytes(*prefix) | 0x2020_2020;
        Some((prefix.wrapping_mul(0x9e37_79b1) >> 20) as usize)
    };
    let mut may_begin = [false; CLASSES];
    let mut has_short = false;
    for token in tokens {
        match class(token) {
            Some(class) => may_begin[class] = true,
            None => has_short = true,
        }
    }
    (0..text.len()).any(|at| {
        let rest = &text[at..];
        let begins = has_short || class(rest).is_some_and(|class| may_begin[class]);
        begins
            && tokens.iter().any(|token| {
                let found = rest.get(..token.len());
                found.is_some_and(|found| found.eq_ignore_ascii_case(token))
            })
    })
}

impl From<Token> for Tokens {
    /// One token without a name, which allows everything.
    fn from(token: Token) -> Self {
        Secret::from(token).into()
    }
}

impl From<Secret> for Tokens {
    /// One token without a name, which allows everything.
    fn from(secret: Secret) -> Self {
        Self(vec![Credential::unnamed(secret)])
    }
}

impl From<Option<Token>> for Tokens {
    fn from(token: Option<Token>) -> Self {
        token.map(Self::from).unwrap_or_default()
    }
}

impl FromStr for Tokens {
    type Err = TokensError;

    /// Parses the content of a token file. The error has the number of the line, but nothing of its content.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lines = without_mark(text).lines().enumerate();
        let lines: Vec<(usize, Vec<&str>)> = lines
            .map(|(index, line)| (index + 1, words(line)))
            .filter(|(_, words)| !words.is_empty())
            .collect();
        let mut tokens = Self::default();
        if let [(number, words)] = lines.as_slice()
            && let [secret] = words.as_slice()
        {
            let secret: Secret = secret
                .parse()
                .map_err(|_| TokensError::at(Some(*number), Problem::SecretForm))?;
            return Ok(secret.into());
        }
        for (number, words) in lines {
            let wrong = |problem| TokensError::at(Some(number), problem);
            let [name, scope, secret] = words.as_slice() else {
                return Err(wrong(Problem::Form));
            };
            let scope = scope.parse().map_err(|_| wrong(Problem::Scope))?;
            let secret: Secret = secret.parse().map_err(|_| wrong(Problem::SecretForm))?;
            let credential =
                Credential::new(name, scope, secret).ok_or(wrong(Problem::NameForm))?;
            tokens
                .add(credential)
                .map_err(|error| wrong(error.problem))?;
        }
        if tokens.is_empty() {
            return Err(TokensError::at(None, Problem::Empty));
        }
        Ok(tokens)
    }
}

/// The words of a line of the token file, without its comment.
pub(crate) fn words(line: &str) -> Vec<&str> {
    let words = line.split_whitespace();
    words.take_while(|word| !word.starts_with('#')).collect()
}

/// Why tokens cannot be used. The error contains nothing of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokensError {
    line: Option<usize>,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    Empty,
    Form,
    NameForm,
    Scope,
    SecretForm,
    Name,
    Secret,
    TooMany,
}

impl TokensError {
    fn at(line: Option<usize>, problem: Problem) -> Self {
        Self { line, problem }
    }

    /// The line of the token file, counted from 1.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// Whether there is no token at all.
    #[cfg(feature = "cli")]
    pub(crate) fn is_empty(&self) -> bool {
        self.problem == Problem::Empty
    }
}

impl fmt::Display for TokensError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        match self.problem {
            Problem::Empty => f.write_str("there is no token"),
            Problem::Form => f.write_str("expected NAME SCOPE SECRET"),
            Problem::NameForm => f.write_str(
                "a name has 1 to 64 letters, digits and characters of '-_.@', and is not 'nobody'",
            ),
            Problem::Scope => f.write_str("the scope is none of all, use, watch and metrics"),
            Problem::SecretForm => ParseSecretError::NEW.fmt(f),
            Problem::Name => f.write_str("this name is used twice with the same scope"),
            Problem::Secret => f.write_str("this secret is used twice"),
            Problem::TooMany => write!(f, "there are more than {} tokens", Tokens::MOST),
        }
    }
}

impl std::error::Error for TokensError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Principal, Scope};

    /// SHA-256 of `abc`, from FIPS 180-4's examples.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn parse(text: &str) -> Result<Tokens, String> {
        text.parse().map_err(|error: TokensError| error.to_string())
    }

    #[test]
    fn a_file_with_one_word_is_a_token_without_a_name() {
        for text in ["abc", "abc\n", "\r\n  abc  \r\n", "# c\nabc # d", ABC] {
            let tokens = parse(text).expect(text);
            let one = tokens.find("default").expect(text);
            assert_eq!((tokens.0.len(), one.scope()), (1, Scope::All));
            assert_eq!(one.principal(), Principal::Token);
            assert!(tokens.matching(b"abc").is_some() && tokens.matching(b"ab").is_none());
            assert_eq!(tokens.only().is_some(), !text.starts_with("sha256"));
        }
    }

    #[test]
    fn each_line_is_a_token() {
        let text = format!(
            "# the team\n\nada all one#1 # since May\n\tbob\tuse two\n c@d.e-f_9 watch {ABC}\ndefault metrics four"
        );
        let tokens = parse(&text).expect("valid");
        let found = |secret: &[u8]| {
            let one = tokens.get(tokens.matching(secret)?)?;
            Some((one.name(), one.scope(), one.principal()))
        };
        let named = |name: &str| Principal::Named(name.into());
        assert_eq!(found(b"one#1"), Some(("ada", Scope::All, named("ada"))));
        assert_eq!(found(b"two"), Some(("bob", Scope::Use, named("bob"))));
        let third = ("c@d.e-f_9", Scope::Watch, named("c@d.e-f_9"));
        assert_eq!(found(b"abc"), Some(third));
        let last = ("default", Scope::Metrics, Principal::Token);
        assert_eq!(found(b"four"), Some(last));
        assert_eq!((found(b"three"), found(ABC.as_bytes())), (None, None));
        assert_eq!(tokens.only(), None);
    }

    #[test]
    fn a_name_may_have_a_token_of_each_scope() {
        let tokens = parse("ada all one\nada watch two").expect("valid");
        let found = |secret: &[u8]| tokens.matching(secret).and_then(|id| tokens.get(id));
        let (one, two) = (found(b"one").expect("known"), found(b"two").expect("known"));
        assert!(one.principal().is_same(&two.principal()));
        assert_eq!((one.scope(), two.scope()), (Scope::All, Scope::Watch));
    }

    #[test]
    fn a_bad_line_is_named_and_not_shown() {
        let most: String = (0..=Tokens::MOST)
            .map(|number| format!("n{number} all s{number}\n"))
            .collect();
        let long = format!("{} all s3cret", "n".repeat(65));
        for (text, says) in [
            ("", "there is no token"),
            ("# only\n\n", "there is no token"),
            ("a all s3cret\n\nb s3cret", "line 3: expected NAME"),
            ("s3cret\ns3cret2", "line 1: expected NAME"),
            ("a all s3cret more", "line 1: expected NAME"),
            ("a root s3cret", "line 1: the scope"),
            ("a ALL s3cret", "line 1: the scope"),
            ("a:b all s3cret", "line 1: a name"),
            ("nobody all s3cret", "line 1: a name"),
            (long.as_str(), "line 1: a name"),
            ("a all s3crét", "line 1: a token"),
            ("s3crét", "line 1: a token"),
            ("a all sha256:12", "line 1: a token"),
            ("a all one\n#\na all s3cret", "line 3: this name"),
            ("a all s3cret\nb use s3cret", "line 2: this secret"),
            (&format!("a all abc\nb use {ABC}"), "line 2: this secret"),
            (most.as_str(), "line 255: there are more than 254"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(says), "{text}: {error}");
            assert!(!error.contains("s3cr") && !error.contains('\n'), "{error}");
        }
        let upper = ABC.replace("ba7816bf", "BA7816BF");
        assert_eq!(parse(&upper), parse("abc"));
    }

    #[test]
    fn a_credential_outlives_a_reload_unless_it_changes_or_allows_less() {
        let before = parse("ada use abc").expect("valid");
        let ada = before.find("ada").expect("there");
        for (after, kept) in [
            ("ada use abc", true),
            ("bob all x\nada all abc", true),
            (&*format!("ada use {ABC}"), true),
            ("ada watch abc", false),
            ("ada use abd", false),
            ("bob use abc", false),
            ("abc", false),
        ] {
            let after = parse(after).expect(after);
            let found = after.successor(ada).and_then(|id| after.get(id));
            assert_eq!(found.is_some_and(|one| one.name() == "ada"), kept);
        }
    }

    #[test]
    fn the_search_for_tokens_finds_what_a_naive_search_finds() {
        let mut random = crate::random::Random::new(7);
        let mut word = |most: usize| -> Vec<u8> {
            let len = 1 + random.below(most);
            let letters = b"aAbB%[{`@";
            (0..len).map(|_| letters[random.below(9)]).collect()
        };
        let mut found = 0;
        for _ in 0..20_000 {
            let text = word(40);
            let tokens = [word(9), word(9), word(9)];
            let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
            let naive = tokens.iter().any(|token| {
                let mut windows = text.windows(token.len());
                windows.any(|window| window.eq_ignore_ascii_case(token))
            });
            assert_eq!(contains_any(&text, &tokens), naive, "{text:?} {tokens:?}");
            found += usize::from(naive);
        }
        assert!((2_000..18_000).contains(&found), "{found}");
    }

    #[test]
    fn a_text_that_contains_a_token_is_recognized() {
        let tokens = parse("ada all s3cret\nbob all s4cret").expect("valid");
        for text in ["s3cret", "http://h/?token=s4cret", "x%733cretx", "S3CRET"] {
            assert!(tokens.are_revealed_by(text), "{text}");
        }
        assert!(!tokens.are_revealed_by("s3cre") && !tokens.are_in_path("/s3cret"));
        assert!(!Tokens::default().are_revealed_by("s3cret"));
        let long = Token::new("0123456789abcdef").expect("valid");
        let digest = Secret::from(long).to_sha256();
        let tokens = parse(&format!("ada all {digest}")).expect("valid");
        for text in ["/a/0123456789abcdef", "/?token=%30123456789abcdef&b"] {
            assert!(tokens.are_revealed_by(text) && tokens.are_in_path(text));
        }
        assert!(!tokens.are_revealed_by("/a/0123456789abcde"));
        let shown = format!("{tokens:?}");
        assert!(
            !shown.contains(&digest[7..]) && !shown.contains("[1"),
            "{shown}"
        );
    }
}
