//! Exit statuses as codes, names of signals, and text.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The name of a signal, such as `SIGTERM`; `unknown` for a signal without a name.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("unknown")
}

/// The exit code of a process, or the name of the signal that killed it.
pub(crate) fn code_and_signal(status: Option<ExitStatus>) -> (Option<i32>, Option<&'static str>) {
    let Some(status) = status else {
        return (None, None);
    };
    (status.code(), status.signal().map(signal_name))
}

/// Describes how a process ended, as the end of a sentence.
pub(crate) fn describe(status: Option<ExitStatus>) -> String {
    let Some(status) = status else {
        return "exited with unknown status".to_owned();
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "exited".to_owned(),
    }
}
