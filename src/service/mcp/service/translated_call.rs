//! A call of a client of 2026-07-28 that a process of an older revision has not answered.

use uuid::Uuid;

use crate::service::mcp::pool::Filter;
use crate::service::mcp::reply::Reply;
use crate::service::mcp::shared::Seat;
use crate::service::mcp::to_older::Question;
use crate::{Principal, Time};

/// What a call is.
#[derive(Debug)]
pub(super) enum Kind {
    Discover,
    /// `subscriptions/listen`, with the changes that the client wants.
    Listen(Filter),
    Other {
        method: Box<str>,
        target: Option<String>,
        /// What the server may ask the client.
        questions: Vec<&'static str>,
    },
}

/// Where a call is.
#[derive(Debug)]
pub(super) enum Stage {
    /// A caller waits for the answer.
    Open(Reply),
    /// The client was asked for input, and continues the call with this state.
    Input {
        state: Uuid,
        since: Time,
        /// The answer, if the server did not wait for the input.
        answer: Option<String>,
    },
}

/// A call that is not answered.
#[derive(Debug)]
pub(super) struct TranslatedCall {
    pub(super) seat: Seat,
    pub(super) principal: Principal,
    pub(super) kind: Kind,
    /// The id and the progress token of the client's last request.
    pub(super) id: Box<str>,
    pub(super) token: Option<Box<str>>,
    /// What the server has asked and the client has not answered.
    pub(super) questions: Vec<Question>,
    /// The bytes of questions and of an answer that are kept for it.
    pub(super) kept: usize,
    pub(super) stage: Stage,
}

impl TranslatedCall {
    pub(super) fn reply(&mut self) -> Option<&mut Reply> {
        match &mut self.stage {
            Stage::Open(reply) => Some(reply),
            Stage::Input { .. } => None,
        }
    }

    /// Whether the server can ask the client for input.
    pub(super) fn may_be_asked(&self) -> bool {
        matches!(&self.kind, Kind::Other { questions, .. } if !questions.is_empty())
    }

    /// Whether the answer becomes a stream when it takes long.
    pub(super) fn may_begin(&self) -> bool {
        matches!(&self.stage, Stage::Open(reply) if !reply.is_streaming())
    }

    /// The changes that a subscription wants.
    pub(super) fn listens(&self) -> bool {
        matches!(self.kind, Kind::Listen(_))
    }
}
