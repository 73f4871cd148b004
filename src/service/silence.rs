//! Notices early that a connection to a server no longer works, for example because a NAT has forgotten it.

use std::time::Duration;

use crate::{ClientId, Context, Time, TimerId};

/// How long nothing arrives after something was sent before the server is asked for a PONG.
const SILENCE: Duration = Duration::from_secs(2);

/// How long the PONG may take. The connection then counts as cut.
const PATIENCE: Duration = Duration::from_secs(4);

/// The watch over one connection. Its owner calls `sent` after each message, and `check` when its timer has expired.
#[derive(Debug, Default)]
pub(super) struct SilenceWatch {
    timer: Option<TimerId>,
    sent: Time,
}

impl SilenceWatch {
    /// Something was sent, which usually has an effect that the server tells.
    pub(super) fn sent(&mut self, ctx: &mut Context) {
        self.sent = ctx.now();
        if self.timer.is_none() {
            self.timer = Some(ctx.set_timer(SILENCE));
        }
    }

    /// Whether a timer is that of the watch.
    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        self.timer == Some(timer)
    }

    /// Asks for a PONG if nothing has arrived for [`SILENCE`] and something was sent after that.
    pub(super) fn check(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        self.timer = None;
        // A connection that cannot be resumed loses messages if it is cut, so that the usual PINGs decide.
        let may_cut = |client: &ClientId| ctx.is_resumable(*client) && !ctx.is_detached(*client);
        let Some(client) = client.filter(may_cut) else {
            return;
        };
        let silence = ctx.silent_for(client);
        if ctx.now().since(self.sent) > silence {
            // Something has arrived since.
        } else if silence < SILENCE {
            self.timer = Some(ctx.set_timer(SILENCE - silence));
        } else {
            ctx.probe(client, PATIENCE);
        }
    }
}
