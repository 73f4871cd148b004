//! Exit statuses as codes, names of signals, and text.

use std::borrow::Cow;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The exit code of a process, or the name of the signal that killed it. A signal without a name is `SIG` and its number.
pub(crate) fn code_and_signal(
    status: Option<ExitStatus>,
) -> (Option<i32>, Option<Cow<'static, str>>) {
    let Some(status) = status else {
        return (None, None);
    };
    let name = |signal| match signal_hook::low_level::signal_name(signal) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("SIG{signal}")),
    };
    (status.code(), status.signal().map(name))
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
