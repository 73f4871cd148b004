//! Subscriptions of clients of revision 2026-07-28 to changes of a server of an older revision.

use uuid::Uuid;

use super::Mcp;
use super::translated_call::Kind;
use crate::Context;
use crate::service::mcp::to_older;

/// The id of the request of a subscription that learns what the server reports, as JSON.
pub(super) const BEGIN: &str = r#""begin""#;

impl Mcp {
    /// Handles the server's response to a request that a subscription has sent with the id `own`. After the last response, the client
    /// gets the acknowledgement.
    pub(super) fn handle_subscribing(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        own: &str,
        text: &str,
    ) {
        let Some(call) = self.translated.get_mut(&id) else {
            return;
        };
        let seat = call.seat;
        let Kind::Subscribing {
            filter,
            uris,
            waiting,
        } = &mut call.kind
        else {
            return;
        };
        let result = to_older::result_of(text);
        let mut requests = Vec::new();
        match (own == BEGIN, result) {
            (true, None) => return self.finish_translated(ctx, id, text),
            (true, Some(result)) => {
                filter.restrict(&to_older::capabilities(text, &result));
                uris.extend(filter.uris().map(Box::from));
                let numbered = uris.iter().enumerate();
                requests.extend(numbered.map(|(at, uri)| to_older::subscribe(at, uri)));
                *waiting = requests.len();
            }
            (false, result) => {
                let uri = own.parse().ok().and_then(|at: usize| uris.get(at));
                if let (None, Some(uri)) = (result, uri) {
                    filter.remove(uri);
                }
                *waiting -= 1;
            }
        }
        if *waiting == 0 {
            return self.acknowledge(ctx, id);
        }
        for request in &requests {
            self.send_from_seat(ctx, seat, request);
        }
    }

    /// Tells a client which changes it gets from now on.
    fn acknowledge(&mut self, ctx: &mut Context, id: Uuid) {
        let Some(call) = self.translated.get_mut(&id) else {
            return;
        };
        let seat = call.seat;
        if let Kind::Subscribing { filter, .. } = &mut call.kind {
            let filter = std::mem::take(filter);
            let first = to_older::acknowledgement(&call.id, &filter.to_json());
            call.kind = Kind::Listen(filter);
            self.tell_translated(ctx, id, &first, false);
        }
        let mut out = Vec::new();
        if let Some(server) = self.shared.get_mut(seat.server) {
            server.sessions.listen(seat.member, &mut out);
            server.start_if_needed(ctx);
        }
        self.act(ctx, seat.server, out);
    }
}
