//! Other servers whose clients the process API accepts without a change.

use crate::{Rejection, Request, StatusCode};

/// The server whose clients the process API accepts without a change.
///
/// `docs/migrating.md` compares the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compat {
    /// No other server. Bodies are checked strictly, and a process of another user has a login environment.
    #[default]
    None,
    /// kernel-images:
    ///
    /// * Bodies may have unknown and repeated fields, and no `Content-Type` unless a browser sends them.
    /// * `exec` waits until every process that holds the output open has closed it, and answers a time-out with 500.
    /// * A process of another user keeps the server's environment.
    /// * A process waits for its readers, as with [`ProcessesConfig::wait_for_readers`].
    /// * `GET /spec.yaml` and `/spec.json` describe the API, without a token.
    /// * Base64 may have line breaks, and any bits after its last byte.
    /// * A client that attaches without parameters of Outrigger gets output and the exit, and no other message.
    ///
    /// [`ProcessesConfig::wait_for_readers`]: super::ProcessesConfig::wait_for_readers
    KernelImages,
}

impl Compat {
    /// Whether bodies are read as Go's `encoding/json` reads them.
    pub(super) fn is_lenient(self) -> bool {
        self == Self::KernelImages
    }

    /// Rejects a request without a body, or with a body of another type than JSON.
    ///
    /// kernel-images does not look at the type. Here, only a program may leave it out: a page of another origin could
    /// otherwise send a body without a preflight request.
    pub(super) fn expect_json_body(self, request: &Request<'_>) -> Result<(), Rejection> {
        match request.expect_json_body() {
            Err(rejection)
                if rejection.status == StatusCode::UNSUPPORTED_MEDIA_TYPE
                    && self.is_lenient()
                    && !is_from_browser(request) =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// Logs that a body was accepted whose type is not JSON.
    pub(super) fn log_body_type(self, request: &Request<'_>) {
        if self.is_lenient() && request.expect_json_body().is_err() {
            log::info!("accepted as kernel-images does: a body whose type is not application/json");
        }
    }
}

/// Whether a browser has sent a request. Browsers send `Origin` with every `POST`, and `Sec-Fetch-Site` with every request
/// to an origin that they trust.
fn is_from_browser(request: &Request<'_>) -> bool {
    ["origin", "sec-fetch-site"]
        .iter()
        .any(|name| request.header(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_may_leave_out_the_type_of_a_body() {
        let status = |compat: Compat, fields: &str| {
            let head = format!(
                "POST /process/exec HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n{fields}\r\n"
            );
            let request = Request::parse(head.as_bytes()).expect("a request");
            let result = compat.expect_json_body(&request);
            result.map_err(|rejection| rejection.status.0)
        };
        let typed = "Content-Type: application/json\r\n";
        for fields in [typed, &format!("{typed}Origin: http://h\r\n")] {
            assert_eq!(status(Compat::None, fields), Ok(()));
            assert_eq!(status(Compat::KernelImages, fields), Ok(()));
        }
        for fields in ["", "Content-Type: text/plain\r\n"] {
            assert_eq!(status(Compat::None, fields), Err(415));
            assert_eq!(status(Compat::KernelImages, fields), Ok(()));
            for browser in [
                "Origin: http://h\r\n",
                "Origin: null\r\n",
                "Sec-Fetch-Site: none\r\n",
            ] {
                let fields = format!("{fields}{browser}");
                assert_eq!(status(Compat::KernelImages, &fields), Err(415), "{fields}");
            }
        }
        let empty = "POST / HTTP/1.1\r\nHost: h\r\n\r\n";
        let empty = Request::parse(empty.as_bytes()).expect("a request");
        let result = Compat::KernelImages.expect_json_body(&empty);
        assert_eq!(result.map_err(|rejection| rejection.status.0), Err(400));
    }
}
