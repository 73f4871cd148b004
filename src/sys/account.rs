//! User accounts: whom a program runs as.

use std::ffi::CString;
use std::io;

use nix::unistd::{self, User, getgrouplist};
use rustix::process::{Gid, Uid, getegid, geteuid};

/// Where programs are looked for, unless the caller says otherwise: as login has it for root, and for others.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The shell of an account that names none.
const SHELL: &str = "/bin/sh";

/// A user with the groups that login would give.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) home: String,
    pub(crate) shell: String,
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    pub(crate) groups: Vec<Gid>,
}

impl Account {
    /// The account that `wanted` stands for: a name or the number of a user, and behind a colon the number of a group in
    /// place of the user's own. `None` if there is no such user.
    ///
    /// # Errors
    ///
    /// A group that is not a number, or accounts that cannot be read.
    pub(crate) fn find(wanted: &str) -> io::Result<Option<Self>> {
        let (user, group) = match wanted.split_once(':') {
            Some((user, group)) => (user, Some(parse_id(group).ok_or_else(bad_group)?)),
            None => (wanted, None),
        };
        let found = match User::from_name(user)? {
            Some(found) => Some(found),
            None => match parse_id(user) {
                Some(uid) => User::from_uid(unistd::Uid::from_raw(uid))?,
                None => None,
            },
        };
        let Some(user) = found else {
            return Ok(None);
        };
        let gid = group.map_or(user.gid, unistd::Gid::from_raw);
        let groups = getgrouplist(&CString::new(user.name.as_str())?, gid)?;
        let shell = user.shell.to_string_lossy().into_owned();
        Ok(Some(Self {
            home: user.dir.to_string_lossy().into_owned(),
            shell: if shell.is_empty() {
                SHELL.to_owned()
            } else {
                shell
            },
            name: user.name,
            uid: Uid::from_raw(user.uid.as_raw()),
            gid: Gid::from_raw(gid.as_raw()),
            groups: groups
                .into_iter()
                .map(|gid| Gid::from_raw(gid.as_raw()))
                .collect(),
        }))
    }

    /// The variables that login sets in the environment.
    pub(crate) fn environment(&self) -> [(&'static str, &str); 5] {
        let path = if self.uid.is_root() {
            ROOT_PATH
        } else {
            USER_PATH
        };
        [
            ("HOME", &self.home),
            ("USER", &self.name),
            ("LOGNAME", &self.name),
            ("SHELL", &self.shell),
            ("PATH", path),
        ]
    }

    /// Whether this process runs as the account already. `wanted` is what it was found by.
    pub(crate) fn is_ours(&self, wanted: &str) -> bool {
        geteuid() == self.uid && (!wanted.contains(':') || getegid() == self.gid)
    }

    /// Whether this process may become another.
    pub(crate) fn may_change() -> bool {
        geteuid().is_root()
    }
}

/// A number of a user or group. The largest one means "none" to the system.
fn parse_id(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.filter(|number| *number != u32::MAX)
}

fn bad_group() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the group is not a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It took names only, where the process API that it follows takes numbers too.
    #[test]
    fn a_user_is_found_by_name_by_number_and_with_a_group() {
        let find = |wanted| Account::find(wanted).expect("accounts are read");
        let ids = |wanted| find(wanted).map(|account| (account.uid.as_raw(), account.gid.as_raw()));
        assert_eq!(ids("root"), Some((0, 0)));
        assert_eq!(ids("0"), Some((0, 0)));
        assert_eq!(ids("0:7"), Some((0, 7)));
        assert_eq!(ids("root:7"), Some((0, 7)));
        let groups = find("root:7").expect("root").groups;
        assert!(groups.contains(&Gid::from_raw(7)), "{groups:?}");
        for nobody in ["", "no such user", "4294967295", "-1", "+0", "#0"] {
            assert!(find(nobody).is_none(), "{nobody:?}");
        }
        for bad in ["root:", "root:wheel", "0:-1", "0:4294967295", ":0x"] {
            assert!(Account::find(bad).is_err(), "{bad:?}");
        }
        let account = find("root").expect("root");
        assert!(account.is_ours("root") == geteuid().is_root());
        assert!(!find("root:7").expect("root").is_ours("root:7"));
    }
}
