//! The body of a request, put together as it arrives (RFC 9112 sections 6 and 7).

use super::head::Framing;
use super::response::{Rejection, StatusCode};
use crate::protocol::Input;

/// The most bytes of chunk extensions and trailer fields, over a whole body. They are read past.
const MAX_ASIDE: usize = 4096;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Bytes of the body: this many of a fixed length.
    Fixed(usize),
    /// A digit of a chunk's size; whether there was one already.
    Size {
        size: usize,
        begun: bool,
    },
    /// White space behind a chunk's size.
    Space(usize),
    /// The rest of a chunk's line.
    Extension(usize),
    /// The line feed after a chunk's size.
    SizeEnd(usize),
    /// Bytes of a chunk.
    Chunk(usize),
    /// The line end after a chunk.
    ChunkCr,
    ChunkLf,
    /// A trailer field, or the empty line; whether this line has any bytes.
    Trailer {
        empty: bool,
    },
    /// The line feed after a trailer field or the empty line.
    TrailerEnd {
        empty: bool,
    },
    /// Nothing.
    Done,
}

/// A body that is arriving.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    next: Next,
    max: usize,
    aside: usize,
}

impl Body {
    /// A body of at most `max` bytes. One whose length is known to be more is refused at once.
    pub fn new(framing: Framing, max: usize) -> Result<Self, Rejection> {
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
            bytes: Vec::new(),
            next,
            max,
            aside: 0,
        })
    }

    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        self.next == Next::Done
    }

    /// The body.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Bytes of memory that it takes.
    #[cfg(any(test, fuzzing))]
    pub(in crate::protocol) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes what belongs to the body from the input.
    pub fn push(&mut self, input: &mut Input<'_>) -> Result<(), Rejection> {
        while self.next != Next::Done && !input.is_empty() {
            match self.next {
                Next::Fixed(left) => {
                    let taken = self.take(left, input);
                    self.next = match left - taken {
                        0 => Next::Done,
                        left => Next::Fixed(left),
                    };
                }
                Next::Chunk(left) => {
                    let taken = self.take(left, input);
                    self.next = match left - taken {
                        0 => Next::ChunkCr,
                        left => Next::Chunk(left),
                    };
                }
                _ => {
                    let byte = input.take(1)[0];
                    self.next = self.step(byte)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, most: usize, input: &mut Input<'_>) -> usize {
        let piece = input.take(most);
        self.bytes.extend_from_slice(piece);
        piece.len()
    }

    /// One byte of what stands between the chunks.
    fn step(&mut self, byte: u8) -> Result<Next, Rejection> {
        let malformed = || Rejection::new(StatusCode::BAD_REQUEST, "malformed chunked body");
        Ok(match (self.next, byte) {
            (Next::Size { size, begun }, _) => match (char::from(byte).to_digit(16), byte) {
                (Some(digit), _) => {
                    let size = size.saturating_mul(16).saturating_add(digit as usize);
                    if self.bytes.len().saturating_add(size) > self.max {
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
            let why = "too much beside the chunks";
            return Err(Rejection::new(StatusCode::HEADERS_TOO_LARGE, why));
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
    fn a_body_is_the_same_however_it_is_cut() {
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
    fn what_is_malformed_or_too_large_is_refused() {
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
