//! User accounts that programs can run as.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{self, User};
use rustix::process::{Gid, Uid, getegid, geteuid};

use super::upgrade::start_thread;

/// The default search paths for programs, those of login(1): for root, and for other users.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The shell of an account whose entry names none.
const SHELL: &str = "/bin/sh";

/// How long accounts that were found are remembered, and how many.
const REMEMBERED: Duration = Duration::from_secs(60);
const MOST_REMEMBERED: usize = 64;

/// How long a late answer is remembered that there is no such account or that the look-up has failed, for the caller that asks again.
const REMEMBERED_BRIEFLY: Duration = Duration::from_secs(5);

/// The maximum number of look-ups that run at a time, each on a thread of its own.
const MAX_LOOKUPS: usize = 8;

/// The stack of such a thread, in bytes.
const STACK: usize = 256 << 10;

/// What is known of accounts.
static KNOWN: Mutex<Known> = Mutex::new(Known {
    found: Vec::new(),
    pending: Vec::new(),
});

/// The result of a look-up: `None` if there is no such account.
type Answer = io::Result<Option<Account>>;

#[derive(Debug)]
struct Known {
    /// The accounts that were found, the latest first.
    found: Vec<Found>,
    /// The texts that are being looked up.
    pending: Vec<String>,
}

/// The result of a look-up.
#[derive(Debug)]
struct Found {
    wanted: String,
    /// The account, if there is one, or why the look-up has failed.
    account: Result<Option<Account>, String>,
    until: Instant,
}

/// Marks a name as being looked up until it is dropped.
struct Pending(String);

impl Drop for Pending {
    fn drop(&mut self) {
        Known::lock().pending.retain(|other| *other != self.0);
    }
}

impl Known {
    fn lock() -> MutexGuard<'static, Self> {
        // A panic cannot leave the lists in an invalid state.
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&mut self, wanted: &str) -> Option<Answer> {
        let now = Instant::now();
        self.found.retain(|known| now < known.until);
        let known = self.found.iter().find(|known| known.wanted == wanted)?;
        Some(known.account.clone().map_err(io::Error::other))
    }

    fn remember(&mut self, wanted: &str, account: Result<Option<Account>, String>) {
        let time = match account {
            Ok(Some(_)) => REMEMBERED,
            Ok(None) | Err(_) => REMEMBERED_BRIEFLY,
        };
        self.found.truncate(MOST_REMEMBERED - 1);
        let found = Found {
            wanted: wanted.to_owned(),
            account,
            until: Instant::now() + time,
        };
        self.found.insert(0, found);
    }
}

/// A user with the groups that login(1) would set.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    name: String,
    home: String,
    shell: String,
    pub(crate) uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Account {
    /// Finds an account by `USER` or `USER:GROUP`, where `USER` is a name or a number and `GROUP` is a number that
    /// replaces the user's own group. Returns `None` if the user does not exist.
    ///
    /// The user database may be on the network, so an account that was found is remembered for a minute, and the caller waits for
    /// at most `most`. The look-up goes on then, and a later call gets its answer.
    ///
    /// # Errors
    ///
    /// The group is not a number, or the user database cannot be read. [`io::ErrorKind::TimedOut`] if it has not answered yet.
    pub(crate) fn find_within(wanted: &str, most: Duration) -> Answer {
        Self::ask(wanted, most, Self::look_up)
    }

    /// Finds an account with `look_up`, which may block, on a thread of its own.
    fn ask(wanted: &str, most: Duration, look_up: fn(&str) -> Answer) -> Answer {
        let pending = || io::Error::new(io::ErrorKind::TimedOut, "the user database is slow");
        let mut known = Known::lock();
        if let Some(answer) = known.answer(wanted) {
            return answer;
        }
        let is_pending = known.pending.iter().any(|other| other == wanted);
        if is_pending || known.pending.len() >= MAX_LOOKUPS {
            return Err(pending());
        }
        known.pending.push(wanted.to_owned());
        drop(known);
        let (sender, receiver) = mpsc::sync_channel(1);
        let wanted = Pending(wanted.to_owned());
        let thread = thread::Builder::new()
            .name("accounts".to_owned())
            .stack_size(STACK);
        start_thread(thread, move || {
            let answer = look_up(&wanted.0);
            if let Ok(Some(account)) = &answer {
                let account = Ok(Some(account.clone()));
                Known::lock().remember(&wanted.0, account);
            }
            // Nobody waits for a late answer.
            if let Err(late) = sender.send(answer)
                && !matches!(late.0, Ok(Some(_)))
            {
                let answer = late.0.map_err(|error| error.to_string());
                Known::lock().remember(&wanted.0, answer);
            }
        })?;
        receiver
            .recv_timeout(most)
            .unwrap_or_else(|_| Err(pending()))
    }

    /// Finds an account as [`Account::find_within`] does, and blocks until the user database answers.
    pub(crate) fn look_up(wanted: &str) -> Answer {
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

    /// Only one test uses the list at a time.
    static TURN: Mutex<()> = Mutex::new(());

    const LONG: Duration = Duration::from_secs(60);

    fn ask(wanted: &str) -> Answer {
        Account::find_within(wanted, LONG)
    }

    /// The bug: the loop stood still until the user database answered, for everybody.
    #[test]
    fn a_caller_does_not_wait_for_a_slow_database_and_gets_its_answer_later() {
        static GATE: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let slow: fn(&str) -> Answer = |wanted| {
            drop(GATE.lock());
            Account::look_up(wanted)
        };
        let closed = GATE.lock().expect("open");
        let ask = |wanted: &str| Account::ask(wanted, Duration::from_millis(1), slow);
        let is_pending =
            |wanted: &str| ask(wanted).is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
        let users: Vec<String> = (0..10 * MAX_LOOKUPS).map(|at| format!("0:{at}")).collect();
        // A name of its own: a test in another file may have its late answer in the list.
        assert!(is_pending("nobody here") && is_pending("nobody here"));
        assert!(users.iter().all(|user| is_pending(user)));
        assert_eq!(Known::lock().pending.len(), MAX_LOOKUPS);
        drop(closed);
        let deadline = Instant::now() + LONG;
        while !Known::lock().pending.is_empty() {
            assert!(Instant::now() < deadline, "the look-ups end");
            thread::yield_now();
        }
        let answer = |wanted: &str| ask(wanted).expect("an answer");
        assert!(answer("nobody here").is_none() && answer("0:0").is_some());
        // What was refused because of the limit is looked up now.
        assert!(Account::find_within("0:79", LONG).is_ok_and(|found| found.is_some()));
    }

    /// The bug: only names were accepted.
    #[test]
    fn a_user_is_found_by_name_by_number_and_with_a_group() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |wanted| ask(wanted).expect("accounts are read");
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
            assert!(ask(bad).is_err(), "{bad:?}");
        }
        let known = |wanted: &str| {
            let known = Known::lock();
            let found = known.found.iter();
            found.filter(|known| known.wanted == wanted).count()
        };
        assert_eq!((known("root:7"), known("-1")), (1, 0));
        for group in 100..300 {
            let _ = ask(&format!("root:{group}"));
        }
        assert_eq!(Known::lock().found.len(), MOST_REMEMBERED);
        let account = find("root").expect("root");
        assert!(account.is_ours("root") == geteuid().is_root());
        assert!(!find("root:7").expect("root").is_ours("root:7"));
    }
}
