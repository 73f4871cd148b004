//! The connections that the recording service opens, and what it is told about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::protocol::{CloseCode, Message};
use crate::server::outgoing::{Connect, ConnectError, Proxies, Retry};
use crate::server::{ClientId, Context};

/// The maximum number of connections that the service opens, so that it does not go on for ever.
const MOST: u32 = 40;

/// What the service knows about the connections that it opens.
#[derive(Debug, Default)]
pub(crate) struct Ours {
    /// The connections whose service will see `connect_opened` or `connect_failed`.
    pub(crate) connecting: BTreeSet<ClientId>,
    /// Those that were opened, and whether they are cut.
    pub(crate) open: BTreeMap<ClientId, bool>,
    /// All connections that were ever begun.
    known: BTreeSet<ClientId>,
    /// The messages that were received from each.
    pub(crate) heard: BTreeMap<ClientId, Vec<Vec<u8>>>,
    /// The number of numbered messages that were sent to each.
    pub(crate) said: BTreeMap<ClientId, u64>,
    /// What the service does in its next methods: one step for each.
    pub(crate) plan: Vec<u8>,
    /// The number of connections.
    count: u32,
    /// The settings of those that can be opened again after an upgrade.
    settings: BTreeMap<ClientId, Connect>,
}

impl Ours {
    pub(crate) fn is_ours(&self, client: ClientId) -> bool {
        self.known.contains(&client)
    }

    /// Opens a connection as `argument` says.
    pub(crate) fn connect(&mut self, ctx: &mut Context, argument: u8) {
        if self.count >= MOST {
            return;
        }
        self.count += 1;
        let url = match argument % 8 {
            0 | 1 => "ws://name.example/x",
            2 => "ws+unix:/nonexistent/socket:/x",
            _ => "ws://10.0.0.1:81/x",
        };
        let mut connect = Connect::new(url.parse().expect("a URL"));
        if argument & 8 == 0 {
            connect = connect.resumable();
        }
        if argument & 0x10 != 0 {
            let retry = Retry::default().with_first(argument & 0x20 != 0);
            connect = connect.with_retry(retry.with_give_up(Duration::from_secs(30)));
        }
        if argument & 0xc0 == 0xc0 {
            let proxies = Proxies::from_variables(connect.target(), |name| {
                (name == "http_proxy").then(|| "http://u:p@10.0.0.9:3128".to_owned())
            });
            connect = connect.with_proxies(proxies.expect("valid"));
        }
        let is_valid = argument % 8 != 7 || argument & 0x20 == 0;
        if !is_valid {
            connect = connect.with_protocol("not valid");
        }
        let is_stopping = ctx.is_stopping() || ctx.core.is_replaced;
        let id = match ctx.connect(connect.clone()) {
            Ok(id) => id,
            Err(ConnectError::Cancelled) if is_stopping => return,
            Err(ConnectError::Invalid(_)) if !is_valid => return,
            Err(error) => panic!("{error}"),
        };
        assert!(is_valid && !is_stopping);
        assert!(
            self.known.insert(id) && self.connecting.insert(id),
            "ids are not reused"
        );
        // The service knows nothing of some of them any more.
        if argument & 0x30 != 0x30 {
            self.settings.insert(id, connect);
        }
        if argument & 0x40 != 0 {
            ctx.set_held(id, true);
        }
    }

    /// Sends a numbered message.
    fn say(&mut self, ctx: &mut Context, client: ClientId, filler: usize) {
        let said = self.said.entry(client).or_default();
        let text = format!("n:{said}:{}", "x".repeat(filler));
        let sent = ctx.try_send(client, Message::Text(&text));
        *said += u64::from(sent.is_ok());
        let is_open = self.open.contains_key(&client);
        assert!(
            is_open || !self.is_ours(client) || sent.is_err(),
            "only an open connection takes messages"
        );
    }

    /// Takes the next step of the plan.
    pub(crate) fn act(&mut self, ctx: &mut Context, client: ClientId) {
        let Some(step) = self.plan.pop() else {
            return;
        };
        let mut other = self.connecting.iter().chain(self.open.keys()).copied();
        let other = other.nth(usize::from(step >> 4)).unwrap_or(client);
        match step % 12 {
            0 => ctx.close(client, CloseCode::NORMAL, "enough"),
            1 => ctx.close(other, CloseCode(4000), "other"),
            2 => ctx.close(client, CloseCode::POLICY, "final"),
            3 | 4 => self.connect(ctx, step.rotate_left(4)),
            5 => self.say(ctx, client, usize::from(step)),
            6 => self.say(ctx, other, usize::from(step) * 40),
            7 => ctx.set_held(client, true),
            8 => {
                ctx.broadcast(Message::Text("to all"), |_, _| true);
            }
            9 => ctx.cut_off(other),
            10 if step >> 4 == 15 => ctx.stop(),
            _ => (0..8).for_each(|_| self.say(ctx, client, 3000)),
        }
    }

    pub(crate) fn heard(&mut self, client: ClientId, bytes: &[u8]) {
        assert_eq!(
            self.open.get(&client),
            Some(&false),
            "{client} is connected"
        );
        self.heard.entry(client).or_default().push(bytes.to_vec());
    }

    pub(crate) fn opened(&mut self, client: ClientId) {
        assert!(self.connecting.remove(&client), "{client} was being opened");
        self.open.insert(client, false);
    }

    pub(crate) fn failed(&mut self, client: ClientId, error: &ConnectError) {
        let text = error.to_string();
        assert!(
            !text.contains(['\n', '\r', '\u{1b}']) && !text.ends_with('.'),
            "{text}"
        );
        assert!(self.connecting.remove(&client), "{client} was being opened");
    }

    pub(crate) fn retrying(&self, client: ClientId, error: &ConnectError, delay: Duration) {
        assert!(error.is_retryable() && delay <= Duration::from_secs(300));
        let is_cut = self.open.get(&client) == Some(&true);
        assert!(
            self.connecting.contains(&client) || is_cut,
            "{client} is being opened"
        );
    }

    pub(crate) fn cut(&mut self, client: ClientId) {
        assert_eq!(
            self.open.insert(client, true),
            Some(false),
            "{client} was connected"
        );
    }

    pub(crate) fn resumed(&mut self, client: ClientId) {
        assert_eq!(
            self.open.insert(client, false),
            Some(true),
            "{client} was cut"
        );
    }

    /// The settings of a connection after an upgrade.
    pub(crate) fn settings(&self, client: ClientId) -> Option<Connect> {
        assert!(self.open.contains_key(&client), "{client} is open");
        self.settings.get(&client).cloned()
    }

    pub(crate) fn disconnected(&mut self, client: ClientId) {
        self.open.remove(&client);
    }

    /// Checks that the service has seen everything at the end.
    pub(crate) fn check_end(&self) {
        assert!(self.connecting.is_empty(), "every attempt has ended");
        assert!(self.open.is_empty());
    }
}
