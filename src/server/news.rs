//! News of clients for the loop.

/// A change of a client that the loop handles before the next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Its deadline may have changed.
    Rearm,
    /// Its output has drained after it was congested.
    Drained,
    /// Its connection is over.
    Closing,
}
