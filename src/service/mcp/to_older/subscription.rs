//! Subscriptions of clients of revision 2026-07-28 to changes of a server of an older revision.

use uuid::Uuid;

use super::call::Kind;
use super::{Output, ToOlder, messages};
use crate::service::mcp::quota::Quota;
use crate::service::mcp::shared::ENDED;

/// The id of the request of a subscription that learns what the server reports, as JSON.
pub(super) const BEGIN: &str = r#""begin""#;

impl<R> ToOlder<R> {
    /// Handles the server's response to a subscription's request with the id `own`. With the id [`ENDED`], it is the error that the
    /// process has ended. After the last response, the client gets the acknowledgement.
    pub(super) fn handle_subscribing(
        &mut self,
        id: Uuid,
        own: &str,
        text: &str,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let Kind::Subscribing {
            filter,
            uris,
            waiting,
        } = &mut call.kind
        else {
            return;
        };
        match (own, messages::result_of(text)) {
            (BEGIN | ENDED, None) => return self.finish(id, text, bytes, out),
            (BEGIN, Some(result)) => {
                out.push(Output::Listen(call.seat));
                filter.restrict(&messages::capabilities(text, &result));
                uris.extend(filter.uris().map(Box::from));
                let numbered = uris.iter().enumerate();
                let requests = numbered.map(|(at, uri)| messages::subscribe(at, uri));
                out.extend(requests.map(|request| Output::Process(call.seat, request)));
                *waiting = uris.len();
            }
            (_, result) => {
                let uri = own.parse().ok().and_then(|at: usize| uris.get(at));
                if let (None, Some(uri)) = (result, uri) {
                    filter.remove(uri);
                }
                *waiting -= 1;
            }
        }
        if *waiting == 0 {
            let filter = std::mem::take(filter);
            let first = messages::acknowledgement(&call.id, &filter.to_json());
            call.kind = Kind::Listen(filter);
            out.push(Output::Event(id, first));
        }
    }
}
