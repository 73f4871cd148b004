//! The place of `waits` in a build without the feature `screen`: nobody waits for a screen.

#![expect(
    clippy::needless_pass_by_ref_mut,
    reason = "the methods are those of the other build"
)]

use std::convert::Infallible;

use uuid::Uuid;

use super::program::Program;
use super::programs::Programs;
use super::screen::Format;
use crate::{ClientId, Context, Rejection, Response, StatusCode, Time, TimerId};

/// A call that waits for a screen.
#[derive(Debug)]
pub(crate) struct Wait(Infallible);

impl Wait {
    pub(crate) fn read(_: &[u8], _: Time) -> Result<Self, Rejection> {
        Err(no_screens())
    }
}

fn no_screens() -> Rejection {
    Rejection::new(StatusCode::CONFLICT, "the server keeps no screens")
}

/// The calls that wait.
#[derive(Debug, Default)]
pub(super) struct Waits(());

impl Waits {
    pub(super) fn add(
        &mut self,
        _: &mut Context,
        _: ClientId,
        _: Uuid,
        wait: Wait,
        _: &mut Programs,
    ) {
        match wait.0 {}
    }

    pub(super) fn remove(&mut self, _: ClientId) {}

    pub(super) fn contains(&self, _: ClientId) -> bool {
        false
    }

    pub(super) fn clients(&self, _: &mut dyn FnMut(ClientId)) {}

    pub(super) fn handle_timer(&mut self, _: &mut Context, _: TimerId, _: &mut Programs) -> bool {
        false
    }

    pub(super) fn end(&mut self, _: &mut Context, _: &mut Programs) {}
}

/// The answer to `GET screen`, which is refused before.
pub(super) fn screen_response(_: &mut Context, _: &mut Program, _: usize, _: Format) -> Response {
    Response::from(&no_screens())
}
