//! Takes the place of the crate `serde_json` in the build of `tool.rs`, which saves and restores nothing.

/// Any value.
#[derive(Debug)]
pub struct Value;

/// Makes nothing of an object.
#[macro_export]
macro_rules! json {
    ($($object:tt)*) => {
        $crate::Value
    };
}
