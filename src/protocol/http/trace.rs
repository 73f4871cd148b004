//! The request field `traceparent` (W3C Trace Context, section 3.2).

use std::fmt;

/// The position of a request in a distributed trace, from its field `traceparent`.
///
/// ```
/// use outrigger::protocol::http::TraceParent;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent = TraceParent::parse(text.as_bytes()).expect("valid");
/// assert_eq!(parent.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert_eq!(parent.to_string(), text);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

#[cfg(feature = "server")]
crate::record::record!(TraceParent as String, ToString::to_string, |text| {
    Self::parse(text.as_bytes())
});

/// The only flag of version 00 (section 3.2.2.5). The others are sent as zero.
const SAMPLED: u8 = 0x01;

impl TraceParent {
    /// Parses the value of the field. Of a later version than 00, only the part that version 00 has is read (section 4.3), and
    /// flags that version 00 does not have are left out.
    /// Returns `None` if the value is malformed, or an id is zero.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let value = value.trim_ascii();
        let (known, more) = value.split_at_checked(55)?;
        let version = hex(&known[..2])?;
        let is_whole = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more[0] == b'-',
        };
        if !is_whole || [known[2], known[35], known[52]] != *b"---" {
            return None;
        }
        let parent = Self {
            trace_id: hex(&known[3..35])?,
            parent_id: hex(&known[36..52])? as u64,
            flags: hex(&known[53..])? as u8 & SAMPLED,
        };
        (parent.trace_id != 0 && parent.parent_id != 0).then_some(parent)
    }

    /// The id of the whole trace: 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The id of the span that made the request: 16 lower-case hexadecimal digits.
    #[must_use]
    pub fn parent_id(&self) -> String {
        format!("{:016x}", self.parent_id)
    }
}

impl fmt::Display for TraceParent {
    /// Writes the field's value in version 00.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace_id,
            parent_id,
            flags,
        } = self;
        write!(f, "00-{trace_id:032x}-{parent_id:016x}-{flags:02x}")
    }
}

/// The number in lower-case hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_valid_fields_are_taken() {
        let parse =
            |text: &str| TraceParent::parse(text.as_bytes()).map(|parent| parent.to_string());
        assert_eq!(parse(VALID).as_deref(), Some(VALID));
        assert_eq!(parse(&format!(" {VALID}\t")).as_deref(), Some(VALID));
        let flagged = VALID.replace("-01", "-ff");
        assert_eq!(parse(&flagged).as_deref(), Some(VALID));
        let later = VALID.replacen("00", "cc", 1);
        assert_eq!(parse(&later).as_deref(), Some(VALID));
        assert_eq!(parse(&format!("{later}-more")).as_deref(), Some(VALID));
        for wrong in [
            String::new(),
            VALID[..54].to_owned(),
            format!("{VALID}-more"),
            format!("{later}more"),
            VALID.replacen("00", "ff", 1),
            VALID.replacen("00", "0g", 1),
            VALID.replace("4bf9", "4BF9"),
            VALID.replace('-', "_"),
            VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
    }
}
