//! The place of `screen` in a build without the feature `screen`: there is no [`Follower`], so no screen is ever asked for anything.

#![expect(
    clippy::needless_pass_by_ref_mut,
    reason = "the methods are those of the other build"
)]

use std::convert::Infallible;

use super::scrollback::Scrollback;
use crate::record::{Loader, Record, RecordError, Saver};
use crate::sys::TerminalSize;

/// The settings of screens, of which there are none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScreenSettings(Infallible);

impl ScreenSettings {
    pub(crate) fn new(_: usize) -> Option<Self> {
        None
    }
}

/// The screen of a program.
#[derive(Debug)]
pub(crate) struct Follower(Infallible);

/// A screen that another program has kept is dropped.
impl Record for Option<Box<Follower>> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.null();
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.skip().map(|()| None)
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl Follower {
    pub(crate) fn new(_: TerminalSize, settings: ScreenSettings) -> Self {
        match settings.0 {}
    }

    pub(crate) fn make_portable(&mut self, _: &Scrollback, _: bool) {
        match self.0 {}
    }

    pub(crate) fn take_work(&mut self) -> usize {
        match self.0 {}
    }

    pub(crate) fn held(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn held_at(_: TerminalSize) -> usize {
        0
    }

    pub(crate) fn growth(&self, _: TerminalSize) -> usize {
        match self.0 {}
    }

    pub(crate) fn shrink(&mut self, _: &Scrollback) {
        match self.0 {}
    }

    pub(crate) fn held_above(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn pending(&self, _: &Scrollback) -> usize {
        match self.0 {}
    }

    pub(crate) fn follow(&mut self, _: &Scrollback) {
        match self.0 {}
    }

    pub(crate) fn resize(&mut self, _: &Scrollback, _: TerminalSize) {
        match self.0 {}
    }

    pub(crate) fn rebuild(&mut self, _: &Scrollback, _: usize) -> (String, u64) {
        match self.0 {}
    }

    pub(crate) fn key_modes(&mut self, _: &Scrollback) -> KeyModes {
        match self.0 {}
    }
}

/// The format of a screen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    Json,
    Text,
    Ansi,
}

/// The modes that keys depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyModes;

/// A key that has no bytes.
#[derive(Debug)]
pub(crate) struct InvalidKey(pub(crate) String);

/// `input` is refused before its body is read, because no terminal has a screen.
pub(crate) fn key_bytes(key: &str, _: KeyModes) -> Result<Vec<u8>, InvalidKey> {
    Err(InvalidKey(key.to_owned()))
}

pub(crate) fn paste_bytes(text: &str, _: KeyModes) -> Vec<u8> {
    text.as_bytes().to_vec()
}
