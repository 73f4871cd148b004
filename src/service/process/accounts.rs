//! The accounts that programs run as.

use std::time::Duration;

use super::fields::bad_request;
use crate::sys::Account;
use crate::{Rejection, StatusCode};

/// How long the loop waits for the user database. One that takes longer, such as a server on the network, answers the next call.
const MAX_LOOKUP: Duration = Duration::from_millis(20);

/// Finds an account by name or number, like [`find_account`], but waits for the user database only for a short time.
pub(super) fn find_account_within(wanted: &str) -> Result<Option<Account>, Rejection> {
    usable_account(wanted, Account::find_within(wanted, MAX_LOOKUP))
}

/// Finds an account by name or number, and blocks until the user database answers. Returns `None` if the server already runs as
/// it.
pub(crate) fn find_account(wanted: &str) -> Result<Option<Account>, Rejection> {
    usable_account(wanted, Account::look_up(wanted))
}

/// The account that was found, if a program can run as it.
fn usable_account(
    wanted: &str,
    found: std::io::Result<Option<Account>>,
) -> Result<Option<Account>, Rejection> {
    let account = found.map_err(|error| {
        let why = format!("looking up user {wanted:?} failed: {error}");
        match error.kind() {
            std::io::ErrorKind::InvalidInput => bad_request(why),
            // The answer is there when the caller tries again.
            std::io::ErrorKind::TimedOut => Rejection::unavailable(why),
            _ => Rejection::new(StatusCode::INTERNAL, why),
        }
    })?;
    let account = account.ok_or_else(|| bad_request(format!("there is no user {wanted:?}")))?;
    if account.is_ours(wanted) {
        Ok(None)
    } else if Account::may_change() {
        Ok(Some(account))
    } else {
        Err(bad_request("only root can run programs as another user"))
    }
}
