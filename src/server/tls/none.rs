//! What stands in for TLS in a build without the feature `tls`. There are no values of [`TlsStream`].

#![expect(
    clippy::needless_pass_by_ref_mut,
    reason = "the methods have the signatures of the real ones"
)]

use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::server::core::Core;
use crate::server::stream::{LastRead, LastWrite, Stream};

/// Buffers that the streams of a loop share: none.
#[derive(Debug, Default)]
pub(in crate::server) struct Scratch(());

/// The certificate of a peer, which outlasts its connection.
#[derive(Debug)]
pub(in crate::server) enum PeerCertificate {}

impl PeerCertificate {
    pub(in crate::server) fn name(&self) -> &Arc<str> {
        match *self {}
    }
}

/// A connection over TLS.
#[derive(Debug)]
pub(in crate::server) enum TlsStream {}

impl TlsStream {
    pub(in crate::server) fn held(&self) -> usize {
        match *self {}
    }

    pub(in crate::server) fn is_certificate_error(&self) -> bool {
        match *self {}
    }

    pub(in crate::server) fn socket(&self) -> &Stream {
        match *self {}
    }

    pub(in crate::server) fn socket_mut(&mut self) -> &mut Stream {
        match *self {}
    }

    pub(in crate::server) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(in crate::server) fn has_failed_handshake(&self) -> bool {
        match *self {}
    }

    pub(in crate::server) fn is_inside_handshake(&self) -> bool {
        match *self {}
    }

    pub(in crate::server) fn is_resumed(&self) -> bool {
        match *self {}
    }

    pub(in crate::server) fn describe(&self) -> String {
        match *self {}
    }

    pub(in crate::server) fn peer(&self) -> Option<&Arc<str>> {
        match *self {}
    }

    pub(in crate::server) fn certificate(&self) -> Option<PeerCertificate> {
        match *self {}
    }

    pub(in crate::server) fn sealed(&self) -> usize {
        match *self {}
    }

    pub(in crate::server) fn begin_handshake(&mut self, _: &[u8]) {
        match *self {}
    }

    pub(in crate::server) fn read(&mut self, _: &mut [u8], _: &mut Scratch) -> io::Result<usize> {
        match *self {}
    }

    pub(in crate::server) fn write(
        &mut self,
        _: &[IoSlice<'_>],
        _: &mut Scratch,
    ) -> io::Result<usize> {
        match *self {}
    }

    pub(in crate::server) fn last_read(&self) -> LastRead {
        match *self {}
    }

    pub(in crate::server) fn last_write(&self) -> LastWrite {
        match *self {}
    }

    pub(in crate::server) fn flush(&mut self) -> io::Result<usize> {
        match *self {}
    }

    pub(in crate::server) fn close(&mut self, _: &mut Scratch) {
        match *self {}
    }

    pub(in crate::server) fn sealed_len(len: usize) -> usize {
        len
    }
}

impl Core {
    pub(in crate::server) fn check_certificate(&mut self) {
        self.certificate_check = None;
    }
}
