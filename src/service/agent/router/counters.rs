//! The counters of the router.

use super::requests::RequestClass;
use crate::record::record;
use crate::{ClientId, Histogram};

/// The router's counters since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RouterCounters {
    /// Requests of clients that concern sessions, other than prompts.
    pub(crate) session_requests: u64,
    pub(crate) prompts: u64,
    pub(crate) other_requests: u64,
    pub(crate) initializes: u64,
    pub(crate) notifications: u64,
    /// Messages that were rejected because of the session that they name.
    pub(crate) denied: u64,
    /// Messages that had no receiver.
    pub(crate) dropped: u64,
    /// Messages of the agent that were dropped because they name sessions of several clients, or that of another client.
    pub(crate) crossing: u64,
    /// Requests that were not answered in time.
    pub(crate) timed_out: u64,
    /// The time from a request to its response.
    pub(crate) answers: Histogram,
}

record!(RouterCounters {
    session_requests,
    prompts,
    other_requests,
    initializes,
    notifications,
    denied,
    dropped,
    crossing,
    timed_out,
    answers,
});

impl RouterCounters {
    /// Counts and logs a message from the agent that refers to sessions of several clients.
    pub(super) fn drop_crossing(&mut self, method: &str) {
        self.crossing += 1;
        let start = &method[..method.floor_char_boundary(100)];
        log::warn!("dropped a message of the agent: {start:?} names sessions of several clients");
    }

    /// Counts and logs a response of the agent to no request.
    pub(super) fn drop_response(&mut self, id: &str) {
        self.dropped += 1;
        let start = &id[..id.floor_char_boundary(100)];
        log::debug!("dropped a response of the agent: no request has the id {start}");
    }

    /// Counts and logs a notification of the agent about a request that is not pending.
    pub(super) fn drop_notification(&mut self, method: &str) {
        self.dropped += 1;
        let start = &method[..method.floor_char_boundary(100)];
        log::debug!("dropped a notification of the agent: {start:?} is about no pending request");
    }

    /// Counts a request of a client that is passed on.
    pub(super) fn count_request(&mut self, class: RequestClass) {
        *match class {
            RequestClass::Create | RequestClass::Claim | RequestClass::End | RequestClass::List => {
                &mut self.session_requests
            }
            RequestClass::Prompt => &mut self.prompts,
            RequestClass::Listen | RequestClass::Other => &mut self.other_requests,
        } += 1;
    }

    /// Counts and logs a response or a notification of a client that has no receiver.
    pub(super) fn drop_client_message(&mut self, client: ClientId, why: &str) {
        self.dropped += 1;
        log::debug!("dropped a response or a notification of {client}: {why}");
    }
}
