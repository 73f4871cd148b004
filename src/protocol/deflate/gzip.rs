//! Bodies of HTTP responses, compressed whole.

use zlib_rs::{DeflateConfig, ReturnCode, compress_bound, compress_slice};

/// The level of compressed bodies. Higher levels save a tenth, and take twice the time.
const BODY_LEVEL: i32 = 4;

/// A body in gzip (RFC 1952). `None` if the compressor fails, which is not expected.
pub(crate) fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let config = DeflateConfig {
        level: BODY_LEVEL,
        // 16 more than the window: the gzip format.
        window_bits: 15 + 16,
        ..DeflateConfig::default()
    };
    let mut out = vec![0; compress_bound(body.len()) + 64];
    let (compressed, code) = compress_slice(&mut out, body, config);
    let length = compressed.len();
    out.truncate(length);
    (code == ReturnCode::Ok).then_some(out)
}
