//! JSON-RPC 2.0, for all services that speak it: the parts of a message that routing needs, the rule for ids, edits that keep all
//! other bytes, error responses, messages as lines, and the multiplexer that puts many callers on few processes.

mod envelope;
mod error;
mod id;
mod line;
mod multiplexer;
mod recover_id;
mod splice;
mod waiting_ids;

pub(super) use self::envelope::folded;
pub(crate) use self::envelope::{Envelope, EnvelopeError, MessageKind, is_spelling_of, member};
pub(super) use self::error::{TOO_LONG, code, error, invalid_message_error, parse_error};
pub(crate) use self::id::MAX_ID;
pub(super) use self::id::{IdKey, assigned, is_same};
pub(super) use self::line::{LineDecoder, MessageLine, push_line, start_of};
pub(super) use self::multiplexer::{
    Forwarded, IdRanges, PROGRESS, Pending, Reference, RequestKind, SenderIds, cancellation,
    sole_member,
};
pub(crate) use self::recover_id::{IdRecovery, RecoveredId};
pub(super) use self::splice::{insert_member, splice, with_id};
pub(super) use self::waiting_ids::WaitingIds;
#[cfg(feature = "mcp")]
pub(super) use self::{error::error_with, multiplexer::SUBSCRIPTION};
