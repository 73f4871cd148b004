//! What `outrigger demo` serves beside the services: a page to watch and try them, and programs to stand behind them that
//! need nothing installed.

mod agent;
mod app;

use std::fmt::Write;

use crate::{
    ClientId, Context, ListenAddress, Message, Rejection, Request, Response, Route, Service,
    StatusCode, Token,
};
pub(crate) use agent::run as run_agent;
pub(crate) use app::run as run_app;

/// The page: what is connected, as it happens, and a console. It loads nothing from elsewhere.
const PAGE: &str = include_str!("page.html");

/// Answers every request at its path with the page.
#[derive(Debug)]
pub(crate) struct Page;

impl Service for Page {
    fn route(&mut self, _: &Request<'_>) -> Result<Route, Rejection> {
        Ok(Route::Http)
    }

    fn message(&mut self, _: &mut Context, _: ClientId, _: Message<'_>) {}

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, _: &[u8]) {
        let response = if matches!(request.method(), "GET" | "HEAD") {
            // The token is in its address, so the address goes nowhere; and whatever a program writes, it is shown as text.
            Response::new(
                StatusCode::OK,
                "text/html; charset=utf-8",
                PAGE.as_bytes(),
            )
            .field("Referrer-Policy", "no-referrer")
            .field("X-Content-Type-Options", "nosniff")
            .field(
                "Content-Security-Policy",
                "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            )
        } else {
            Response::from(&Rejection::method_not_allowed("GET, HEAD"))
        };
        ctx.respond(caller, &response);
    }
}

/// What to try, a line to paste for each. `token` is the one that is told; `asks` says whether there is one at all.
pub(crate) fn instructions(
    addresses: &[ListenAddress],
    token: Option<&Token>,
    asks: bool,
) -> String {
    let Some(address) = addresses.iter().find(|address| address.tcp().is_some()) else {
        return "\nWhat can be tried from a browser and with a line needs a port: --listen HOST:PORT.\n".to_owned();
    };
    // A token that was chosen is known to whoever has chosen it.
    let token = token.map_or("TOKEN", Token::reveal);
    let ws = |path: &str| {
        let query = if asks {
            format!("?token={token}")
        } else {
            String::new()
        };
        address.url(&format!("{path}{query}"))
    };
    let http = |path: &str| address.url(path).replacen("ws", "http", 1);
    let mut text = String::new();
    let mut line = |what: &str, how: &str| {
        let _ = writeln!(text, "\n  {what}\n    {how}");
    };
    let page = ws("/").replacen("ws", "http", 1);
    line("a page that shows all of it, with a console", &page);
    line(
        "echo: every message comes back",
        &format!("websocat '{}'", ws("/echo")),
    );
    line(
        "terminal: a shell on a terminal of its own",
        &format!(
            "stty raw -echo; websocat --binary '{}'; stty sane",
            ws("/terminal")
        ),
    );
    let header = if asks {
        format!("-H 'Authorization: Bearer {token}' ")
    } else {
        String::new()
    };
    line(
        "processes: run one, and have what it wrote",
        &format!(
            "curl -s {header}--json '{{\"command\":\"uname\",\"args\":[\"-a\"]}}' {}",
            http("/process/exec")
        ),
    );
    line(
        "app: a chat room, whose program reads and writes lines of JSON",
        &format!("python3 -m websockets '{}'", ws("/app")),
    );
    line(
        "agent: one agent of the Agent Client Protocol for all clients",
        &format!(
            "echo '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{{\"protocolVersion\":1}}}}' | websocat -n1 '{}'",
            ws("/acp")
        ),
    );
    text.push_str("\n^C ends all of it.\n");
    text
}
