//! A call of a client of 2026-07-28 that a process of an older revision has not answered.

use uuid::Uuid;

use super::messages::{Question, Questions};
use crate::Principal;
use crate::record::{Record, record};
use crate::service::mcp::quota::Quota;
use crate::service::mcp::shared::{Reach, Seat};
use crate::service::mcp::subscription::Filter;

/// What a call is.
#[derive(Debug)]
pub(super) enum Kind {
    Discover,
    /// `subscriptions/listen`, until the server has said which of the changes it reports.
    Subscribing {
        filter: Filter,
        /// The resources that the server was asked for. Their places are the ids of the requests.
        uris: Vec<Box<str>>,
        /// The number of requests that the server has not answered.
        waiting: usize,
    },
    /// `subscriptions/listen`, with the changes that the client gets.
    Listen(Filter),
    Other {
        method: Box<str>,
        target: Option<String>,
        /// What the server may ask the client.
        permitted: Questions,
    },
}

record!(enum Kind {
    Discover,
    Subscribing {
        filter,
        uris,
        waiting,
    },
    Listen(filter),
    Other {
        method,
        target,
        permitted,
    },
});

/// Where a call is.
#[derive(Debug)]
pub(super) enum Stage<R> {
    /// A caller waits for the answer.
    Open(R),
    /// The client was asked for input, and continues the call with this state.
    Input {
        state: Uuid,
        /// The answer, if the server did not wait for the input.
        answer: Option<String>,
    },
}

record!(impl<R: Record> enum Stage<R> {
    Open(reply),
    Input { state, answer },
});

/// A call that is not answered.
#[derive(Debug)]
pub(super) struct Call<R> {
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
    pub(super) stage: Stage<R>,
    /// How often the stage has changed. The time limits of an earlier stage do not count.
    pub(super) round: u32,
}

record!(impl<R: Record> Call<R> {
    seat,
    principal,
    kind,
    id,
    token,
    questions,
    kept,
    stage,
    round,
});

impl<R> Call<R> {
    /// Changes the stage. Returns the one before.
    pub(super) fn enter(&mut self, stage: Stage<R>) -> Stage<R> {
        self.round = self.round.wrapping_add(1);
        std::mem::replace(&mut self.stage, stage)
    }

    /// Forgets the questions that are not open any more.
    pub(super) fn keep_questions(
        &mut self,
        bytes: &mut Quota,
        is_open: impl FnMut(&Question) -> bool,
    ) {
        let taken = |questions: &[Question]| questions.iter().map(Question::bytes).sum::<usize>();
        let before = taken(&self.questions);
        self.questions.retain(is_open);
        let freed = before - taken(&self.questions);
        self.kept -= freed;
        bytes.give_back(&self.principal, freed);
    }

    /// The questions that the server may ask the client.
    pub(super) fn permitted(&self) -> &[&'static str] {
        match &self.kind {
            Kind::Other { permitted, .. } => permitted,
            _ => &[],
        }
    }

    /// Whether the server can ask the client for input. A client that gathers input may never come back.
    pub(super) fn reach(&self) -> Reach {
        match &self.stage {
            Stage::Open(_) if !self.permitted().is_empty() => Reach::Now,
            Stage::Input { answer: None, .. } => Reach::Later,
            _ => Reach::Never,
        }
    }

    /// Whether a caller waits.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }

    pub(super) fn is_subscription(&self) -> bool {
        matches!(self.kind, Kind::Subscribing { .. } | Kind::Listen(_))
    }
}
