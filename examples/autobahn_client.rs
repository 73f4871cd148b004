//! A client that runs the cases of the Autobahn test suite against its fuzzing server: it sends each message back.
//!
//! ```sh
//! cargo run --example autobahn_client -- ws://127.0.0.1:9001
//! ```
//!
//! With the feature `tls`, the URL can begin with `wss:`. The second argument is then the certificate of the server, in PEM.

use std::error::Error;
use std::time::Duration;

use outrigger::protocol::client::ResponseHead;
use outrigger::protocol::deflate::DeflateConfig;
use outrigger::{
    ClientId, CloseReason, Config, Connect, ConnectError, Context, Limits, Message, Outgoing,
    Retry, Server, Service, Timeouts,
};

/// Which connection is open.
#[derive(Debug, PartialEq)]
enum Step {
    /// The one that tells the number of cases.
    Count,
    /// A case.
    Case(u32),
    /// The one that makes the server write its report.
    Report,
}

#[derive(Debug)]
struct Cases {
    url: String,
    #[cfg(feature = "tls")]
    tls: outrigger::ClientTls,
    step: Step,
    count: u32,
    failed: Option<String>,
}

impl Cases {
    fn connect(&self, ctx: &mut Context) {
        let url = &self.url;
        let url = match self.step {
            Step::Count => format!("{url}/getCaseCount"),
            Step::Case(case) => format!("{url}/runCase?case={case}&agent=outrigger"),
            Step::Report => format!("{url}/updateReports?agent=outrigger"),
        };
        let target = url.parse().expect("the URL was checked");
        // The fuzzing server may not be ready yet.
        let retry = Retry::default().with_give_up(Duration::from_secs(30));
        let connect = Connect::new(target).with_deflate(true).with_retry(retry);
        #[cfg(feature = "tls")]
        let connect = connect.with_tls(self.tls.clone());
        if let Err(error) = ctx.connect(connect) {
            println!("{error}");
            ctx.stop();
        }
    }
}

impl Service for Cases {
    fn started(&mut self, ctx: &mut Context) {
        self.connect(ctx);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        match (&self.step, message) {
            (Step::Count, Message::Text(count)) => self.count = count.parse().unwrap_or_default(),
            (Step::Case(_), message) => ctx.send(client, message),
            _ => {}
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, _: ClientId, _: &CloseReason) {
        self.step = match self.step {
            Step::Count => Step::Case(1),
            Step::Case(case) if case < self.count => Step::Case(case + 1),
            Step::Case(_) => Step::Report,
            Step::Report => return ctx.stop(),
        };
        self.connect(ctx);
    }

    fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
}

impl Outgoing for Cases {
    fn connect_opened(&mut self, _: &mut Context, _: ClientId, _: &ResponseHead<'_>) {
        if let Step::Case(case) = self.step {
            println!("case {case} of {}", self.count);
        }
    }

    fn connect_failed(&mut self, ctx: &mut Context, _: ClientId, error: &ConnectError) {
        self.failed = Some(error.to_string());
        ctx.stop();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args()
        .nth(1)
        .ok_or("usage: autobahn_client URL [CERTIFICATE.pem]")?;
    let cases = Cases {
        url: url.trim_end_matches('/').to_owned(),
        #[cfg(feature = "tls")]
        tls: match std::env::args().nth(2) {
            Some(path) => outrigger::ClientTls::new().with_ca_pem(&std::fs::read(path)?)?,
            None => outrigger::ClientTls::new(),
        },
        step: Step::Count,
        count: 0,
        failed: None,
    };
    url.parse::<outrigger::Target>()?;
    let mut config = Config::default();
    config.limits = Limits::default().with_max_message(64 << 20);
    config.timeouts = Timeouts::default();
    config.deflate = Some(DeflateConfig::default());
    config.max_outbound = 128 << 20;
    let (cases, _) = Server::without_listeners(config, cases)?.run()?;
    match cases.failure() {
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}
