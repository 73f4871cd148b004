//! Any operations on the readers of a program.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::attachments(data));
