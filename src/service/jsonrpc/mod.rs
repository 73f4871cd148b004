//! JSON-RPC 2.0, for all services that speak it: the parts of a message that routing needs, the rule for ids, edits that keep all
//! other bytes, error responses, messages as lines, and the multiplexer that puts many callers on few processes.

mod batch;
mod envelope;
mod id;
mod members;
mod multiplexer;
mod spelling;
mod text;

pub(super) use self::batch::{batch_messages, is_array};
pub(crate) use self::envelope::{Envelope, EnvelopeError, MessageKind};
pub(super) use self::id::{IdKey, WaitingIds, assigned, is_same};
pub(crate) use self::id::{IdRecovery, MAX_ID, RecoveredId};
pub(crate) use self::members::member;
#[cfg(feature = "mcp")]
pub(super) use self::multiplexer::SUBSCRIPTION;
pub(super) use self::multiplexer::{
    Forwarded, IdRanges, PROGRESS, Pending, Reference, RequestKind, SenderIds, UpstreamIds,
    cancellation, sole_member,
};
pub(super) use self::spelling::folded;
pub(crate) use self::spelling::is_spelling_of;
pub(super) use self::text::{
    LineDecoder, MessageLine, TOO_LONG, code, error, error_with, insert_member,
    invalid_message_error, parse_error, push_line, splice, success, with_id,
};
#[cfg(feature = "mcp")]
pub(super) use self::text::{start_of, with_params_meta, without};
