//! User accounts: whom a program runs as.

use std::ffi::CString;
use std::io;

use nix::unistd::{User, getgrouplist};
use rustix::process::{Gid, Uid, geteuid};

/// A user with the groups that login would give.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    pub(crate) groups: Vec<Gid>,
}

impl Account {
    /// The account of this name; `None` if there is no such user.
    pub(crate) fn find(name: &str) -> io::Result<Option<Self>> {
        let Some(user) = User::from_name(name)? else {
            return Ok(None);
        };
        let c_name = CString::new(name)?;
        let groups = getgrouplist(&c_name, user.gid)?;
        Ok(Some(Self {
            home: user.dir.to_string_lossy().into_owned(),
            name: user.name,
            uid: Uid::from_raw(user.uid.as_raw()),
            gid: Gid::from_raw(user.gid.as_raw()),
            groups: groups
                .into_iter()
                .map(|gid| Gid::from_raw(gid.as_raw()))
                .collect(),
        }))
    }

    /// Whether this process runs as the account already.
    pub(crate) fn is_ours(&self) -> bool {
        geteuid() == self.uid
    }

    /// Whether this process may become another.
    pub(crate) fn may_change() -> bool {
        geteuid().is_root()
    }
}
