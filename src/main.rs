//! The `outrigger` program. Its code is the library's `cli` module.

use std::process::ExitCode;

fn main() -> ExitCode {
    outrigger::cli::main()
}
