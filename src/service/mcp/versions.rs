//! The revisions of the Model Context Protocol that use Streamable HTTP.

/// The revision without sessions: requests are independent of each other.
pub(super) const STATELESS: &str = "2026-07-28";

/// The revisions with sessions, the newest first.
pub(super) const SESSION_VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// Earlier revisions, which programs still negotiate. Clients then name them in each request.
pub(super) const EARLIER_VERSIONS: [&str; 2] = ["2024-11-05", "2024-10-07"];

/// The first revision whose clients take an event with an id and no data, which lets them resume before the first message.
const FIRST_PRIMED: &str = "2025-11-25";

/// Whether streams for clients of this revision begin with an event without data.
pub(super) fn takes_priming(version: &str) -> bool {
    version >= FIRST_PRIMED
}
