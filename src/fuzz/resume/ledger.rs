//! The service of the model: it numbers its messages and keeps the accounts of its clients.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::{CloseCode, CloseReason, Message, Request};
use crate::{ClientId, Context, SendError, Service, ServiceId};

/// What the service knows of a client.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The number of messages taken from it.
    pub(super) taken: u64,
    /// The number of messages sent to it.
    pub(super) sent: u64,
    /// Whether the service owes it something.
    pub(super) is_pending: bool,
    /// Whether it ends for good: it has read too slowly, it was closed with 1008, or it leaves.
    pub(super) is_doomed: bool,
    /// Whether the service has closed it.
    pub(super) is_closed: bool,
}

/// A service that numbers its messages, and does what the last byte of a message says.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) accounts: BTreeMap<ClientId, Account>,
    pub(super) ended: BTreeMap<ClientId, (Account, CloseReason)>,
    /// Whether the service has stopped holding back messages.
    pub(super) is_settling: bool,
    /// Whether the server may end any client, because too little memory is left.
    pub(super) is_short: bool,
}

/// A numbered message. Even numbers are text.
pub(super) fn numbered(number: u64, len: usize) -> Vec<u8> {
    let mut payload = format!("{number}:").into_bytes();
    payload.resize(payload.len() + len, b'.');
    payload
}

/// The number of a message.
pub(super) fn number_of(payload: &[u8]) -> u64 {
    let digits: String = payload
        .iter()
        .map_while(|byte| byte.is_ascii_digit().then_some(char::from(*byte)))
        .collect();
    digits.parse().expect("a numbered message")
}

impl Ledger {
    pub(super) fn new(is_short: bool) -> Self {
        Self {
            is_short,
            ..Self::default()
        }
    }

    pub(super) fn send(&mut self, ctx: &mut Context, client: ClientId, len: usize) {
        let Some(account) = self.accounts.get_mut(&client) else {
            return;
        };
        let payload = numbered(account.sent + 1, len);
        let sent = match std::str::from_utf8(&payload) {
            Ok(text) if account.sent % 2 == 1 => ctx.try_send(client, Message::Text(text)),
            _ => ctx.try_send(client, Message::Binary(&payload)),
        };
        account.sent += u64::from(sent.is_ok());
        account.is_doomed |= sent == Err(SendError::SlowConsumer);
        let may_fail = account.is_doomed || account.is_closed || self.is_short;
        assert!(
            sent.is_ok() || may_fail,
            "{client} takes no message: {sent:?}"
        );
    }
}

impl Service for Ledger {
    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.accounts.keys().copied().for_each(visit);
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        let known = self.accounts.insert(client, Account::default());
        assert!(known.is_none() && !self.ended.contains_key(&client));
        self.send(ctx, client, 3);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let payload = message.as_bytes();
        let account = self.accounts.get_mut(&client).expect("connected");
        account.taken += 1;
        assert_eq!(
            number_of(payload),
            account.taken,
            "{client}: none is lost or doubled"
        );
        match payload.last() {
            Some(b'c') => {
                account.is_closed |= ctx.try_close(client, CloseCode::NORMAL, "asked").is_ok();
            }
            Some(b'p') => {
                account.is_doomed |= ctx.try_close(client, CloseCode::POLICY, "asked").is_ok();
            }
            Some(b'w') => account.is_pending = !account.is_pending,
            Some(b'h') if !self.is_settling => ctx.set_held(client, true),
            Some(b'a') => {
                let all: Vec<_> = self.accounts.keys().copied().collect();
                all.into_iter().for_each(|client| {
                    ctx.set_held(client, false);
                    self.send(ctx, client, 100);
                });
            }
            Some(b'm') => (0..12).for_each(|at| self.send(ctx, client, at * 60)),
            _ => self.send(ctx, client, payload.len()),
        }
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.send(ctx, client, 1);
    }

    fn input_ended(&mut self, _: &mut Context, client: ClientId) -> Duration {
        unreachable!("{client} is resumable")
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        let account = self.accounts.get(&client);
        account.is_some_and(|account| account.is_pending)
    }

    fn disconnected(&mut self, _: &mut Context, client: ClientId, reason: &CloseReason) {
        let account = self.accounts.remove(&client).expect("connected");
        let before = self.ended.insert(client, (account, reason.clone()));
        assert!(before.is_none(), "{client} disconnects once");
    }
}
