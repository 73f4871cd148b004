//! The server-sent events of a stream of output.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::exit::ProgramExit;
use super::fields::bad_request;
use super::scrollback::OutputStream;
use crate::record::record;
use crate::{Rejection, Request};

/// Whether answers have fields that the process API of kernel-images does not have: `?details=1`. The schema of that API
/// allows no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Details {
    Usual,
    All,
}

record!(
    enum Details {
        Usual,
        All,
    }
);

impl Details {
    /// Reads the query of a request.
    pub(crate) fn of(request: &Request<'_>) -> Result<Self, Rejection> {
        match request.parameters("details").last().as_deref() {
            None | Some("0" | "false") => Ok(Self::Usual),
            Some("1" | "true") => Ok(Self::All),
            Some(_) => Err(bad_request("'details' is not 0 or 1")),
        }
    }
}

/// Output of which `end` is the offset after the last byte.
pub(super) fn output_event(stream: OutputStream, bytes: &[u8], end: u64) -> String {
    let (stream, data) = (stream.name(), BASE64_STANDARD.encode(bytes));
    format!("id: {end}\ndata: {{\"stream\":\"{stream}\",\"data_b64\":\"{data}\"}}\n\n")
}

/// The output between two offsets is no longer kept.
pub(super) fn gap_event(details: Details, from: u64, to: u64) -> String {
    match details {
        Details::All => {
            format!("id: {to}\ndata: {{\"event\":\"gap\",\"from\":{from},\"to\":{to}}}\n\n")
        }
        // The id of the next event shows the gap as well.
        Details::Usual => format!(": gap {from} {to}\n\n"),
    }
}

/// The last event of a stream.
pub(super) fn exit_event(details: Details, exit: ProgramExit) -> String {
    let code = exit.code;
    match exit.signal.filter(|_| details == Details::All) {
        Some(signal) => {
            format!("data: {{\"event\":\"exit\",\"exit_code\":{code},\"signal\":\"{signal}\"}}\n\n")
        }
        None => format!("data: {{\"event\":\"exit\",\"exit_code\":{code}}}\n\n"),
    }
}
