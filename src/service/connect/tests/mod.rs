mod requests;

use serde_json::Value;

use super::input::size_of_pending;
use crate::OwnedMessage;

fn value(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// The bug: what each message takes in addition was not counted, and together many short ones exceeded the buffer.
#[test]
fn a_short_message_counts_with_the_longest_frame_header() {
    let empty = OwnedMessage::Text(String::new());
    // RFC 6455, section 5.2: 2 bytes, 8 of the length, 4 of the mask.
    assert!(size_of_pending(&empty) >= 14);
}
