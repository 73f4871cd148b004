mod requests;

use serde_json::Value;

fn value(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}
