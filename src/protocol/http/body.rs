//! The body of a message, decoded as it arrives (RFC 9112 sections 6 and 7).

use super::head::Framing;
use super::rejection::{Rejection, StatusCode};
use crate::protocol::Input;

/// The maximum number of bytes of chunk extensions and trailer fields in a body. They are ignored.
const MAX_ASIDE: usize = 4096;

/// The element that the parser expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// This many bytes of a body with Content-Length.
    Fixed(usize),
    /// A digit of a chunk's size. `begun` is true after the first digit.
    Size { size: usize, begun: bool },
    /// White space after a chunk's size.
    Space(usize),
    /// The rest of a chunk's line.
    Extension(usize),
    /// The line feed after a chunk's size.
    SizeEnd(usize),
    /// This many bytes of a chunk.
    Chunk(usize),
    /// The carriage return after a chunk.
    ChunkCr,
    /// The line feed after a chunk.
    ChunkLf,
    /// A trailer field or the final empty line. `empty` is true at the start of the line.
    Trailer { empty: bool },
    /// The line feed after a trailer field or the final empty line.
    TrailerEnd { empty: bool },
    /// The body is complete.
    Done,
}

#[cfg(feature = "server")]
crate::record::record!(enum Next {
    Fixed(left),
    Size { size, begun },
    Space(size),
    Extension(size),
    SizeEnd(size),
    Chunk(left),
    ChunkCr,
    ChunkLf,
    Trailer { empty },
    TrailerEnd { empty },
    Done,
});

/// Takes a body out of its framing, without keeping it.
#[derive(Debug)]
pub(crate) struct BodyDecoder {
    next: Next,
    /// How many more bytes the body may have.
    room: usize,
    aside: usize,
}

#[cfg(feature = "server")]
crate::record::record!(BodyDecoder { next, room, aside });

impl BodyDecoder {
    /// Begins a body of at most `max` bytes.
    ///
    /// # Errors
    ///
    /// The length is known and over `max` bytes.
    pub(crate) fn new(framing: Framing, max: usize) -> Result<Self, Rejection> {
        let next = match framing {
            Framing::Length(0) => Next::Done,
            Framing::Length(length) => match usize::try_from(length) {
                Ok(length) if length <= max => Next::Fixed(length),
                _ => return Err(too_large()),
            },
            Framing::Chunked => Next::Size {
                size: 0,
                begun: false,
            },
        };
        Ok(Self {
            next,
            room: max,
            aside: 0,
        })
    }

    /// Whether the body is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.next == Next::Done
    }

    /// Consumes input up to the end of the next piece of the body, and returns the piece. Returns `None` if the body is complete, or
    /// if the rest of the input held no byte of it.
    ///
    /// # Errors
    ///
    /// The body is malformed or too long.
    pub(crate) fn decode<'a>(
        &mut self,
        input: &mut Input<'a>,
    ) -> Result<Option<&'a [u8]>, Rejection> {
        while self.next != Next::Done && !input.is_empty() {
            let (left, is_chunk) = match self.next {
                Next::Fixed(left) => (left, false),
                Next::Chunk(left) => (left, true),
                _ => {
                    let byte = input.take(1)[0];
                    self.next = self.step(byte)?;
                    continue;
                }
            };
            let piece: &'a [u8] = input.take(left);
            self.room = self.room.saturating_sub(piece.len());
            self.next = match (left - piece.len(), is_chunk) {
                (0, false) => Next::Done,
                (0, true) => Next::ChunkCr,
                (left, false) => Next::Fixed(left),
                (left, true) => Next::Chunk(left),
            };
            return Ok(Some(piece));
        }
        Ok(None)
    }

    /// Parses one byte between the chunks.
    fn step(&mut self, byte: u8) -> Result<Next, Rejection> {
        let malformed = || Rejection::new(StatusCode::BAD_REQUEST, "malformed chunked body");
        Ok(match (self.next, byte) {
            (Next::Size { size, begun }, _) => match (char::from(byte).to_digit(16), byte) {
                (Some(digit), _) => {
                    let size = size.saturating_mul(16).saturating_add(digit as usize);
                    if size > self.room {
                        return Err(too_large());
                    }
                    Next::Size { size, begun: true }
                }
                (None, b'\r') if begun => Next::SizeEnd(size),
                (None, b';') if begun => Next::Extension(size),
                (None, b' ' | b'\t') if begun => {
                    self.pass_over()?;
                    Next::Space(size)
                }
                _ => return Err(malformed()),
            },
            (Next::Space(size), b' ' | b'\t') => {
                self.pass_over()?;
                Next::Space(size)
            }
            (Next::Space(size), b';') => Next::Extension(size),
            (Next::Space(size) | Next::Extension(size), b'\r') => Next::SizeEnd(size),
            (Next::Extension(size), _) if is_text(byte) => {
                self.pass_over()?;
                Next::Extension(size)
            }
            (Next::SizeEnd(0), b'\n') => Next::Trailer { empty: true },
            (Next::SizeEnd(size), b'\n') => Next::Chunk(size),
            (Next::ChunkCr, b'\r') => Next::ChunkLf,
            (Next::ChunkLf, b'\n') => Next::Size {
                size: 0,
                begun: false,
            },
            (Next::Trailer { empty }, b'\r') => Next::TrailerEnd { empty },
            (Next::Trailer { .. }, _) if is_text(byte) => {
                self.pass_over()?;
                Next::Trailer { empty: false }
            }
            (Next::TrailerEnd { empty: true }, b'\n') => Next::Done,
            (Next::TrailerEnd { empty: false }, b'\n') => Next::Trailer { empty: true },
            _ => return Err(malformed()),
        })
    }

    fn pass_over(&mut self) -> Result<(), Rejection> {
        self.aside += 1;
        if self.aside > MAX_ASIDE {
            let why = "chunk extensions and trailers are too long";
            return Err(Rejection::new(StatusCode::HEADERS_TOO_LARGE, why));
        }
        Ok(())
    }
}

/// The body of a request that is arriving.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    decoder: BodyDecoder,
}

#[cfg(feature = "server")]
crate::record::record!(Body { bytes, decoder });

impl Body {
    /// Creates an empty body.
    ///
    /// # Errors
    ///
    /// The length is known and over `max` bytes.
    pub fn new(framing: Framing, max: usize) -> Result<Self, Rejection> {
        Ok(Self {
            bytes: Vec::new(),
            decoder: BodyDecoder::new(framing, max)?,
        })
    }

    /// Whether the body is complete.
    pub fn is_complete(&self) -> bool {
        self.decoder.is_complete()
    }

    /// The bytes of the body.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The capacity in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Consumes the next part of the body from the input.
    ///
    /// # Errors
    ///
    /// The body is malformed or too long.
    pub fn push(&mut self, input: &mut Input<'_>) -> Result<(), Rejection> {
        while let Some(piece) = self.decoder.decode(input)? {
            self.bytes.extend_from_slice(piece);
        }
        Ok(())
    }
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn too_large() -> Rejection {
    Rejection::new(
        StatusCode::CONTENT_TOO_LARGE,
        "the request body is too large",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(framing: Framing, bytes: &[u8], cut: usize) -> Result<(Vec<u8>, usize), u16> {
        let mut body = Body::new(framing, 100).map_err(|rejection| rejection.status.0)?;
        let mut taken = 0;
        for piece in bytes.chunks(cut) {
            let mut piece = piece.to_vec();
            let length = piece.len();
            let mut input = Input::new(&mut piece);
            body.push(&mut input)
                .map_err(|rejection| rejection.status.0)?;
            taken += length - input.len();
        }
        assert!(body.is_complete());
        Ok((body.into_bytes(), taken))
    }

    #[test]
    fn a_body_does_not_depend_on_how_it_is_split() {
        let chunked = b"5\r\nhello\r\n00b ;ext=\"x\"\r\n, world 123\r\n0\r\nTrailer: y\r\n\r\nNEXT";
        for cut in 1..chunked.len() {
            let (body, taken) = read(Framing::Chunked, chunked, cut).expect("a body");
            assert_eq!(body, b"hello, world 123");
            assert_eq!(&chunked[taken..], b"NEXT");
            let (body, taken) = read(Framing::Length(7), b"1234567NEXT", cut).expect("a body");
            assert_eq!((&*body, taken), (&b"1234567"[..], 7));
        }
    }

    #[test]
    fn malformed_and_long_bodies_are_rejected() {
        let chunked = |bytes: &[u8]| read(Framing::Chunked, bytes, 3).err();
        for bad in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"0x5\r\n",
            b"5\nhello",
            b"5\r\nhelloX",
            b"5\r\nhello\n",
            b"0\r\n\n",
            b"1;\x00\r\n",
            b"2 junk\r\n",
        ] {
            assert_eq!(chunked(bad), Some(400), "{bad:?}");
        }
        assert_eq!(chunked(b"65\r\n"), Some(413), "101 bytes");
        assert_eq!(chunked(b"ffffffffffffffffffff\r\n"), Some(413));
        assert_eq!(chunked(&[b"1;", &[b'x'; 5000][..]].concat()), Some(431));
        assert_eq!(
            chunked(&[b"0\r\n", &b"A: b\r\n".repeat(1500)[..]].concat()),
            Some(431)
        );
        assert_eq!(read(Framing::Length(101), b"", 1).err(), Some(413));
        assert_eq!(read(Framing::Length(u64::MAX), b"", 1).err(), Some(413));
    }
}
