//! Standard input, divided into messages.

use std::io;
use std::ops::ControlFlow;

use super::output::Output;
use crate::service::Framing;
use crate::service::framing::{Decoder, FramingError};
use crate::service::jsonrpc::{IdRecovery, RecoveredId, code, error, parse_error};
use crate::service::lines::Line;
use crate::service::pipe::{LineReader, PipeState};
use crate::sys::NonblockingFd;
use crate::text::without_mark;
use crate::{Context, SourceId, TimerId};

/// What was read.
#[derive(Debug)]
pub(super) enum Input<'a> {
    /// A message, or the error in place of a response that is too long.
    Text(&'a str),
    /// A message that is not UTF-8. Not if messages are JSON.
    Binary(&'a [u8]),
    /// The answer to a message that cannot be used.
    Refused(String),
}

/// Standard input. It stays open after its end, because it may be the same socket as the output.
#[derive(Debug)]
pub(super) struct Stdin {
    reader: LineReader,
    is_json: bool,
    /// The message over the limit that is being skipped.
    skipped: Option<IdRecovery>,
    /// Why it cannot be divided into messages any further.
    broken: Option<FramingError>,
}

/// Opens the standard streams.
pub(super) fn open_streams(
    ctx: &mut Context,
    framing: Framing,
    is_json: bool,
) -> io::Result<(Stdin, Output)> {
    let limit = ctx.config().limits.max_message;
    let output = NonblockingFd::shared(io::stdout())?;
    let output = Output::new(ctx, output, framing)?;
    let input = NonblockingFd::shared(io::stdin())?;
    let input = Stdin {
        reader: LineReader::with_decoder(ctx, input, Decoder::new(framing, limit))?,
        is_json,
        skipped: None,
        broken: None,
    };
    Ok((input, output))
}

impl Stdin {
    /// Whether an event is for this input.
    pub(super) fn is(&self, source: SourceId) -> bool {
        self.reader.is(source)
    }

    /// Whether a timer belongs to this input.
    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        self.reader.is_timer(timer)
    }

    /// Reads until `handle` returns `Break` or there is no more. Returns `Closed` at the end.
    pub(super) fn read(
        &mut self,
        ctx: &mut Context,
        mut handle: impl FnMut(&mut Context, Input<'_>) -> ControlFlow<()>,
    ) -> PipeState {
        let Self {
            reader,
            is_json,
            skipped,
            broken,
        } = self;
        reader.read(ctx, |ctx, _, line| match line {
            Line::Whole(bytes) if *is_json => match std::str::from_utf8(bytes).map(without_mark) {
                Ok(text) if text.trim_ascii().is_empty() => ControlFlow::Continue(()),
                Ok(text) => handle(ctx, Input::Text(text)),
                Err(error) => {
                    let why = format!("byte {}: not UTF-8", error.valid_up_to());
                    handle(ctx, Input::Refused(parse_error(&why)))
                }
            },
            Line::Whole(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => handle(ctx, Input::Text(text)),
                Err(_) => handle(ctx, Input::Binary(bytes)),
            },
            Line::TooLong(_) => {
                if *is_json {
                    *skipped = Some(IdRecovery::default());
                } else {
                    log::warn!(
                        "a line of standard input is over the message limit and is not sent"
                    );
                }
                ControlFlow::Continue(())
            }
            Line::Skipped(bytes) => {
                if let Some(skipped) = skipped {
                    skipped.push(bytes);
                }
                ControlFlow::Continue(())
            }
            Line::SkippedEnd => match skipped.take().map(over_limit) {
                Some(Ok(response)) => handle(ctx, Input::Text(&response)),
                Some(Err(refusal)) => handle(ctx, Input::Refused(refusal)),
                None => ControlFlow::Continue(()),
            },
            Line::Broken(error) => {
                *broken = Some(error.clone());
                ControlFlow::Continue(())
            }
        })
    }

    /// Reads again when there is something to read.
    pub(super) fn resume(&mut self, ctx: &mut Context) {
        self.reader.resume(ctx);
    }

    pub(super) fn close(&mut self, ctx: &mut Context) {
        self.reader.close(ctx);
    }

    /// Why it cannot be read any further.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        let broken = self.broken.take().map(|error| match error {
            FramingError::Truncated => "it ended inside a message".to_owned(),
            error => error.to_string(),
        });
        let why = broken.or_else(|| Some(self.reader.error()?.to_string()))?;
        Some(format!("cannot read standard input: {why}"))
    }
}

/// What takes the place of a message over the limit: an error instead of a response, so that the remote side does not wait for it, or the
/// answer to the local side.
fn over_limit(skipped: IdRecovery) -> Result<String, String> {
    let invalid = |id: &str, what: &str| {
        let why = format!("the {what} is over the message limit");
        error(id, code::INVALID, "Invalid request", Some(&why))
    };
    match skipped.finish() {
        Some(RecoveredId::Response(id)) => {
            let why = Some("the answer is over the message limit");
            Ok(error(&id, code::INTERNAL, "Internal error", why))
        }
        Some(RecoveredId::Request(id)) => Err(invalid(&id, "request")),
        None => Err(invalid("null", "message")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_over_the_limit_fails_for_the_side_that_waits_for_it() {
        let long = |text: &str| {
            let mut skipped = IdRecovery::default();
            skipped.push(text.as_bytes());
            over_limit(skipped)
        };
        let refused = long(r#"{"id":7,"method":"x"}"#).expect_err("it is refused");
        assert!(refused.contains(r#""id":7"#) && refused.contains("-32600"));
        let failed = long(r#"{"id":8,"result":"long"}"#).expect("it is sent");
        assert!(failed.contains(r#""id":8"#) && failed.contains("-32603"));
        let refused = long("[1,2]").expect_err("it is refused");
        assert!(refused.contains(r#""id":null"#) && refused.contains("-32600"));
    }
}
