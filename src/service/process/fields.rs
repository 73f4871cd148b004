//! Parses the JSON bodies of calls field by field, each with its expected type.
//!
//! A body is rejected at the first field that is unknown, repeated or of the wrong type. With [`Compat::KernelImages`],
//! unknown fields are ignored, the last of several equal fields counts, names may differ in case, and anything may follow
//! the object. Only the fields are built, so memory is bounded by the length of the body.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::compat::Compat;
use crate::text::bytes_without_mark;
use crate::{Rejection, StatusCode};

/// The maximum number of arguments and of variables. The kernel would reject more later.
const MAX_WORDS: usize = 10_000;

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldType {
    Text,
    Flag,
    Number,
    /// A list of strings.
    Words,
    /// An object of strings.
    Variables,
}

impl FieldType {
    fn expected(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Flag => "true or false",
            Self::Number => "a number",
            Self::Words => "a list of strings",
            Self::Variables => "an object of strings",
        }
    }
}

/// A rejection with 400.
pub(super) fn bad_request(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(StatusCode::BAD_REQUEST, message)
}

/// The fields that a body may have, with their types.
pub(super) type Schema = [(&'static str, FieldType)];

#[derive(Debug, PartialEq)]
enum FieldValue<'a> {
    Text(Cow<'a, str>),
    Flag(bool),
    Number(f64),
    Words(Vec<String>),
    Variables(Vec<(String, String)>),
}

/// The fields of a JSON body. `null` means the same as an absent field.
#[derive(Debug)]
pub(super) struct BodyFields<'a>(Vec<(&'static str, Option<FieldValue<'a>>)>);

impl<'a> BodyFields<'a> {
    pub(super) fn read(body: &'a [u8], schema: &Schema, compat: Compat) -> Result<Self, Rejection> {
        let mut json = serde_json::Deserializer::from_slice(bytes_without_mark(body));
        let is_lenient = compat.is_lenient();
        let fields = FieldsVisitor { schema, is_lenient };
        let fields = json.deserialize_map(fields).and_then(|fields| {
            if !is_lenient {
                json.end()?;
            }
            Ok(fields)
        });
        fields.map(Self).map_err(|error| {
            let what = if error.is_data() { "valid" } else { "JSON" };
            bad_request(format!("the body is not {what}: {error}"))
        })
    }

    fn get(&self, name: &str) -> Option<&FieldValue<'a>> {
        let mut fields = self.0.iter();
        fields.find(|(given, _)| *given == name)?.1.as_ref()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(FieldValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some(FieldValue::Flag(true)))
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(FieldValue::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn words(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(FieldValue::Words(words)) => words,
            _ => &[],
        }
    }

    pub(super) fn variables(&self, name: &str) -> &[(String, String)] {
        match self.get(name) {
            Some(FieldValue::Variables(variables)) => variables,
            _ => &[],
        }
    }
}

struct FieldsVisitor<'s> {
    schema: &'s Schema,
    is_lenient: bool,
}

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = Vec<(&'static str, Option<FieldValue<'de>>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields: Self::Value = Vec::new();
        let mut ignored = None;
        while let Some(name) = map.next_key_seed(NameSeed(&self))? {
            let (name, field_type) = match name {
                FieldName::Known(name, field_type) => (name, field_type),
                FieldName::Unknown(shown) => {
                    ignored.get_or_insert(shown);
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let given = fields.iter().position(|(given, _)| *given == name);
            if let Some(given) = given {
                if !self.is_lenient {
                    return Err(de::Error::custom(format_args!("{name:?} is given twice")));
                }
                fields.swap_remove(given);
                ignored.get_or_insert_with(|| name.to_owned());
            }
            fields.push((name, map.next_value_seed(ValueSeed { name, field_type })?));
        }
        if let Some(ignored) = ignored {
            log::info!(
                "accepted as kernel-images does: a body with unknown or repeated fields, of which {ignored:?} is the first"
            );
        }
        Ok(fields)
    }
}

/// The name of a field.
enum FieldName {
    Known(&'static str, FieldType),
    /// The beginning of a name that is not in the schema.
    Unknown(String),
}

/// Deserializes the name of a field.
struct NameSeed<'v>(&'v FieldsVisitor<'v>);

impl<'de> DeserializeSeed<'de> for NameSeed<'_> {
    type Value = FieldName;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed<'_> {
    type Value = FieldName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: de::Error>(self, given: &str) -> Result<Self::Value, E> {
        let FieldsVisitor { schema, is_lenient } = self.0;
        let field = schema
            .iter()
            .find(|(name, _)| *name == given || (*is_lenient && name.eq_ignore_ascii_case(given)));
        if let Some((name, field_type)) = field {
            return Ok(FieldName::Known(name, *field_type));
        }
        let shown: String = given.chars().take(40).collect();
        if *is_lenient {
            return Ok(FieldName::Unknown(shown));
        }
        let names: Vec<&str> = schema.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        Err(E::custom(format_args!(
            "unknown field {shown:?}, expected one of {names}"
        )))
    }
}

/// Deserializes the value of a field.
struct ValueSeed {
    name: &'static str,
    field_type: FieldType,
}

impl ValueSeed {
    fn only<'de, E: de::Error>(
        &self,
        field_type: FieldType,
        value: FieldValue<'de>,
        unexpected: de::Unexpected<'_>,
    ) -> Result<Option<FieldValue<'de>>, E> {
        if self.field_type == field_type {
            Ok(Some(value))
        } else {
            Err(E::invalid_type(unexpected, self))
        }
    }

    fn text<'de, E: de::Error>(&self, text: Cow<'de, str>) -> Result<Option<FieldValue<'de>>, E> {
        if self.field_type != FieldType::Text {
            return Err(E::invalid_type(de::Unexpected::Other("string"), self));
        }
        no_zero_byte(self.name, &text)?;
        Ok(Some(FieldValue::Text(text)))
    }
}

fn no_zero_byte<E: de::Error>(name: &str, text: &str) -> Result<(), E> {
    if text.contains('\0') {
        return Err(E::custom(format_args!("{name:?} contains a zero byte")));
    }
    Ok(())
}

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = Option<FieldValue<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = Option<FieldValue<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} to be {}", self.name, self.field_type.expected())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        self.text(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        self.text(Cow::Owned(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Self::Value, E> {
        self.only(
            FieldType::Flag,
            FieldValue::Flag(flag),
            de::Unexpected::Bool(flag),
        )
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        let value = FieldValue::Number(number as f64);
        self.only(FieldType::Number, value, de::Unexpected::Unsigned(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        let value = FieldValue::Number(number as f64);
        self.only(FieldType::Number, value, de::Unexpected::Signed(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        let value = FieldValue::Number(number);
        self.only(FieldType::Number, value, de::Unexpected::Float(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        if self.field_type != FieldType::Words {
            return Err(de::Error::invalid_type(de::Unexpected::Seq, &self));
        }
        let mut words: Vec<String> = Vec::new();
        while let Some(word) = list.next_element_seed(WordSeed(&self))? {
            if words.len() == MAX_WORDS {
                let most = format_args!("{:?} has more than {MAX_WORDS} entries", self.name);
                return Err(de::Error::custom(most));
            }
            words.push(word);
        }
        Ok(Some(FieldValue::Words(words)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        if self.field_type != FieldType::Variables {
            return Err(de::Error::invalid_type(de::Unexpected::Map, &self));
        }
        let mut names: HashSet<String> = HashSet::new();
        let mut variables = Vec::new();
        while let Some(name) = map.next_key_seed(WordSeed(&self))? {
            if names.len() == MAX_WORDS {
                let most = format_args!("{:?} has more than {MAX_WORDS} entries", self.name);
                return Err(de::Error::custom(most));
            }
            if !names.insert(name.clone()) {
                let twice = format_args!("{name:?} is given twice in {:?}", self.name);
                return Err(de::Error::custom(twice));
            }
            variables.push((name, map.next_value_seed(WordSeed(&self))?));
        }
        Ok(Some(FieldValue::Variables(variables)))
    }
}

/// Deserializes a string inside a field.
struct WordSeed<'f>(&'f ValueSeed);

impl<'de> DeserializeSeed<'de> for WordSeed<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<String, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for WordSeed<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<String, E> {
        no_zero_byte(self.0.name, word)?;
        Ok(word.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &Schema = &[
        ("text", FieldType::Text),
        ("flag", FieldType::Flag),
        ("number", FieldType::Number),
        ("words", FieldType::Words),
        ("variables", FieldType::Variables),
    ];

    fn read(body: &[u8]) -> Result<BodyFields<'_>, Rejection> {
        BodyFields::read(body, SCHEMA, Compat::None)
    }

    #[test]
    fn fields_are_read_with_their_types() {
        let body = br#" {"text":"a\u00e9","flag":true,"number":-1.5,"words":["x",""],"variables":{"A":"1","B":""}} "#;
        let fields = read(body).expect("valid");
        assert_eq!(fields.text("text"), Some("a\u{e9}"));
        assert!(fields.flag("flag"));
        assert_eq!(fields.number("number"), Some(-1.5));
        assert_eq!(fields.words("words"), ["x", ""]);
        let variables = [("A", "1"), ("B", "")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(fields.variables("variables"), variables);
        let body = br#"{"text":null,"flag":null,"number":null,"words":null,"variables":null}"#;
        let fields = read(body).expect("null means absent");
        assert!(SCHEMA.iter().all(|(name, _)| !fields.has(name)));
    }

    /// The bug: the last of several equal keys counted and unknown keys were ignored, so that a call with a misspelt limit
    /// ran without a limit.
    #[test]
    fn unknown_and_repeated_fields_are_rejected() {
        for (body, says) in [
            (
                r#"{"texts":"a"}"#,
                "unknown field \"texts\", expected one of text",
            ),
            (r#"{"Text":"a"}"#, "unknown field"),
            (r#"{"text":"a","text":"a"}"#, "\"text\" is given twice"),
            (
                r#"{"text":null,"te\u0078t":"a"}"#,
                "\"text\" is given twice",
            ),
            (
                r#"{"variables":{"A":"1","A":"2"}}"#,
                "\"A\" is given twice in \"variables\"",
            ),
            (r#"{"text":1}"#, "expected \"text\" to be a string"),
            (r#"{"text":["a"]}"#, "expected \"text\" to be a string"),
            (
                r#"{"flag":"true"}"#,
                "expected \"flag\" to be true or false",
            ),
            (r#"{"number":"1"}"#, "expected \"number\" to be a number"),
            (
                r#"{"words":"a"}"#,
                "expected \"words\" to be a list of strings",
            ),
            (
                r#"{"words":[1]}"#,
                "expected \"words\" to be a list of strings",
            ),
            (
                r#"{"words":[null]}"#,
                "expected \"words\" to be a list of strings",
            ),
            (
                r#"{"variables":["a"]}"#,
                "expected \"variables\" to be an object of strings",
            ),
            (
                r#"{"variables":{"A":null}}"#,
                "expected \"variables\" to be an object of strings",
            ),
            (r#"{"text":"a\u0000b"}"#, "\"text\" contains a zero byte"),
            (r#"{"words":["\u0000"]}"#, "\"words\" contains a zero byte"),
            ("[]", "expected a JSON object"),
            ("1", "expected a JSON object"),
            ("", "not JSON"),
            ("{", "not JSON"),
            ("{} {}", "not JSON"),
            (r#"{"text":"\ud800"}"#, "not JSON"),
        ] {
            let rejection = read(body.as_bytes()).expect_err(body);
            assert!(
                rejection.message.contains(says),
                "{body}: {}",
                rejection.message
            );
            assert_eq!(rejection.status.0, 400, "{body}");
        }
    }

    /// The bug: the fields that kernel-images ignores were rejected.
    #[test]
    fn a_body_of_kernel_images_may_have_unknown_and_repeated_fields() {
        let read = |body| BodyFields::read(body, SCHEMA, Compat::KernelImages);
        let body =
            br#"{"more":{"a":[1,{"b":null}]},"text":"a","Flag":true,"text":"b","x":1} trailing"#;
        let fields = read(body).expect("accepted");
        assert_eq!(
            (fields.text("text"), fields.flag("flag")),
            (Some("b"), true)
        );
        let fields = read(br#"{"text":"a","text":null}"#).expect("accepted");
        assert!(!fields.has("text"), "the last one counts");
        for bad in [
            &br#"{"text":1}"#[..],
            br#"{"words":"a"}"#,
            b"[]",
            b"",
            b"{",
            br#"{"x":tru}"#,
        ] {
            let body = String::from_utf8_lossy(bad);
            assert_eq!(read(bad).expect_err(&body).status.0, 400, "{body}");
        }
    }

    /// The bug: a body of 16 MB of tiny keys was parsed into a tree of 1.6 GB.
    #[test]
    fn a_body_is_rejected_at_the_first_entry_too_many() {
        let many = |entry: &dyn Fn(usize) -> String| {
            let entries: Vec<String> = (0..=MAX_WORDS).map(entry).collect();
            entries.join(",")
        };
        let words = format!(r#"{{"words":[{}"#, many(&|_| r#""""#.to_owned()));
        let pair = |at: usize| format!(r#""{at}":"""#);
        let variables = format!(r#"{{"variables":{{{}"#, many(&pair));
        for body in [words, variables] {
            // The incomplete rest of the body is not read.
            let rejection = read(body.as_bytes()).expect_err("too many");
            assert!(
                rejection.message.contains("more than 10000"),
                "{}",
                rejection.message
            );
        }
        let unknown = format!("{{{}", many(&pair));
        let rejection = read(unknown.as_bytes()).expect_err("unknown");
        assert!(
            rejection.message.contains("column 4"),
            "{}",
            rejection.message
        );
    }
}
