//! Both sides of TLS, with any cuts and corrupted bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::tls(data));
