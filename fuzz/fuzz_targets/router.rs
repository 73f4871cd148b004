//! Runs any operations of clients and of an agent on the router.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| outrigger::fuzz::router(data));
