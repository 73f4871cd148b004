//! What stands in for TLS in a build without the feature `tls`. There are no values of [`TlsStream`].

#![expect(
    clippy::needless_pass_by_ref_mut,
    reason = "the methods have the signatures of the real ones"
)]

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::server::core::Core;
use crate::server::stream::{LastRead, LastWrite, Stream};

/// Buffers that the streams of a loop share: none.
#[derive(Debug, Default)]
pub(super) struct Scratch(());

/// The certificate of a peer, which outlasts its connection.
#[derive(Debug)]
pub(super) struct PeerCertificate(Infallible);

impl PeerCertificate {
    pub(super) fn name(&self) -> &Arc<str> {
        match self.0 {}
    }
}

crate::record::record!(PeerCertificate as Infallible);

/// A connection over TLS.
#[derive(Debug)]
pub(super) enum TlsStream {}

impl TlsStream {
    pub(super) fn held(&self) -> usize {
        match *self {}
    }

    pub(super) fn is_certificate_error(&self) -> bool {
        match *self {}
    }

    pub(super) fn socket(&self) -> &Stream {
        match *self {}
    }

    pub(super) fn socket_mut(&mut self) -> &mut Stream {
        match *self {}
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(super) fn has_failed_handshake(&self) -> bool {
        match *self {}
    }

    pub(super) fn is_inside_handshake(&self) -> bool {
        match *self {}
    }

    pub(super) fn is_resumed(&self) -> bool {
        match *self {}
    }

    pub(super) fn describe(&self) -> String {
        match *self {}
    }

    pub(super) fn peer(&self) -> Option<&Arc<str>> {
        match *self {}
    }

    pub(super) fn certificate(&self) -> Option<PeerCertificate> {
        match *self {}
    }

    pub(super) fn sealed(&self) -> usize {
        match *self {}
    }

    pub(super) fn begin_handshake(&mut self, _: &[u8]) {
        match *self {}
    }

    pub(super) fn read(&mut self, _: &mut [u8], _: &mut Scratch) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn write(&mut self, _: &[IoSlice<'_>], _: &mut Scratch) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn last_read(&self) -> LastRead {
        match *self {}
    }

    pub(super) fn last_write(&self) -> LastWrite {
        match *self {}
    }

    pub(super) fn flush(&mut self) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn close(&mut self, _: &mut Scratch) {
        match *self {}
    }

    pub(super) fn sealed_len(len: usize) -> usize {
        len
    }
}

impl Core {
    pub(super) fn check_certificate(&mut self) {
        self.certificate_check = None;
    }
}
