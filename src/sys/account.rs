//! User accounts that programs can run as.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{self, User};
use rustix::process::{Gid, Uid, getegid, geteuid};

/// The default search paths for programs, those of login(1): for root, and for other users.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The shell of an account whose entry names none.
const SHELL: &str = "/bin/sh";

/// How long accounts that were found are remembered, and how many.
const REMEMBERED: Duration = Duration::from_secs(60);
const MOST_REMEMBERED: usize = 64;

/// The accounts that were found, the latest first.
static FOUND: Mutex<Vec<Found>> = Mutex::new(Vec::new());

/// An account that was found.
#[derive(Debug)]
struct Found {
    /// The text that it was found by.
    wanted: String,
    account: Account,
    at: Instant,
}

/// A user with the groups that login(1) would set.
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
    /// Finds an account by `USER` or `USER:GROUP`, where `USER` is a name or a number and `GROUP` is a number that
    /// replaces the user's own group. Returns `None` if the user does not exist.
    ///
    /// The user database may be on the network, so an account that was found is remembered for a minute.
    ///
    /// # Errors
    ///
    /// The group is not a number, or the user database cannot be read.
    pub(crate) fn find(wanted: &str) -> io::Result<Option<Self>> {
        // A panic cannot leave the list in an invalid state.
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|known| known.at.elapsed() < REMEMBERED);
        if let Some(known) = found.iter().find(|known| known.wanted == wanted) {
            return Ok(Some(known.account.clone()));
        }
        let account = Self::look_up(wanted)?;
        if let Some(account) = account.clone() {
            found.truncate(MOST_REMEMBERED - 1);
            let (wanted, at) = (wanted.to_owned(), Instant::now());
            found.insert(
                0,
                Found {
                    wanted,
                    account,
                    at,
                },
            );
        }
        Ok(account)
    }

    fn look_up(wanted: &str) -> io::Result<Option<Self>> {
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
        let groups = groups_of(&CString::new(user.name.as_str())?, gid)?;
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

    /// The environment variables that login(1) sets.
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

    /// Whether this process already runs as the account. `wanted` is the text that the account was found by.
    pub(crate) fn is_ours(&self, wanted: &str) -> bool {
        geteuid() == self.uid && (!wanted.contains(':') || getegid() == self.gid)
    }

    /// Whether this process may switch to another account.
    pub(crate) fn may_change() -> bool {
        geteuid().is_root()
    }

    /// Switches this process, a child that has one thread, to the account. It only makes system calls, so it may run
    /// between fork and exec.
    #[cfg(target_os = "linux")]
    pub(super) fn switch_to(&self) -> io::Result<()> {
        use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(self.gid, self.gid, self.gid)?;
        Ok(set_thread_res_uid(self.uid, self.uid, self.uid)?)
    }

    /// Switches this process, a child, to the account with its first 16 groups, which is the maximum of macOS. It only
    /// makes system calls, so it may run between fork and exec.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn switch_to(&self) -> io::Result<()> {
        use nix::errno::Errno;
        use nix::libc::{c_int, setgroups};
        /// `NGROUPS_MAX`.
        const MOST_GROUPS: usize = 16;
        let mut groups = [0; MOST_GROUPS];
        let count = self.groups.len().min(MOST_GROUPS);
        for (raw, group) in groups.iter_mut().zip(&self.groups) {
            *raw = group.as_raw();
        }
        // SAFETY: the call reads the first `count` numbers of the array, which has at least as many.
        #[allow(unsafe_code)]
        Errno::result(unsafe { setgroups(count as c_int, groups.as_ptr()) })?;
        // Only root gets here, as only root may set groups. For root, each call sets the real, effective and saved id.
        unistd::setgid(unistd::Gid::from_raw(self.gid.as_raw()))?;
        Ok(unistd::setuid(unistd::Uid::from_raw(self.uid.as_raw()))?)
    }
}

/// The groups of a user, beginning with `gid`.
#[cfg(not(target_vendor = "apple"))]
fn groups_of(user: &CStr, gid: unistd::Gid) -> io::Result<Vec<unistd::Gid>> {
    Ok(unistd::getgrouplist(user, gid)?)
}

/// The groups of a user, beginning with `gid`. The system does not tell how many there are, so the buffer grows until they
/// fit.
#[cfg(target_vendor = "apple")]
fn groups_of(user: &CStr, gid: unistd::Gid) -> io::Result<Vec<unistd::Gid>> {
    use nix::libc::{c_int, getgrouplist};
    const FIRST_SIZE: usize = 64;
    const MOST: usize = 1 << 16;
    let mut groups: Vec<c_int> = vec![0; FIRST_SIZE];
    loop {
        let mut count = groups.len() as c_int;
        // SAFETY: the name ends with a zero byte. The call writes at most `count` numbers to the buffer, which has as many.
        #[allow(unsafe_code)]
        let result = unsafe {
            getgrouplist(
                user.as_ptr(),
                gid.as_raw() as c_int,
                groups.as_mut_ptr(),
                &raw mut count,
            )
        };
        if result >= 0 {
            groups.truncate(usize::try_from(count).unwrap_or_default());
            let gids = groups.into_iter().map(|gid| gid as u32);
            return Ok(gids.map(unistd::Gid::from_raw).collect());
        }
        if groups.len() >= MOST {
            return Err(io::Error::other("the user has too many groups"));
        }
        groups.resize(groups.len() * 2, 0);
    }
}

/// Parses the number of a user or group. The system reserves the largest number for "none".
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

    /// The bug: only names were accepted.
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
        for unknown in ["", "no such user", "4294967295", "-1", "+0", "#0"] {
            assert!(find(unknown).is_none(), "{unknown:?}");
        }
        for bad in ["root:", "root:wheel", "0:-1", "0:4294967295", ":0x"] {
            assert!(Account::find(bad).is_err(), "{bad:?}");
        }
        let known = |wanted: &str| {
            let found = FOUND.lock().expect("valid");
            found.iter().filter(|known| known.wanted == wanted).count()
        };
        assert_eq!((known("root:7"), known("no such user")), (1, 0));
        for group in 100..300 {
            let _ = Account::find(&format!("root:{group}"));
        }
        assert_eq!(FOUND.lock().expect("valid").len(), MOST_REMEMBERED);
        let account = find("root").expect("root");
        assert!(account.is_ours("root") == geteuid().is_root());
        assert!(!find("root:7").expect("root").is_ours("root:7"));
    }
}
