//! The key of a session.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::record::{Loader, Record, RecordError, Saver};

/// Identifies a session in the table. It dereferences to the session's id, which two processes may both use, but is compared by
/// identity: two keys are equal only if they are clones.
#[derive(Clone, Debug)]
pub(crate) struct SessionKey(Arc<str>);

impl SessionKey {
    pub(super) fn new(id: &str) -> Self {
        Self(id.into())
    }

    /// The id of the session.
    pub(super) fn id(&self) -> &Arc<str> {
        &self.0
    }

    fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

/// The session id that the agent has chosen.
impl Deref for SessionKey {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq for SessionKey {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SessionKey {}

impl Hash for SessionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl Record for SessionKey {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.shared(&self.0);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.shared().map(Self)
    }
}
