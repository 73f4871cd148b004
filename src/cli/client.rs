//! The settings of commands that connect to a server.

use std::cell::RefCell;
use std::env::VarError;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

#[cfg(feature = "tls")]
use super::client_flags::ClientTlsFlags;
use super::defaults::TOKEN_VARIABLE;
use super::outcome::Failure;
use super::settings::Settings;
#[cfg(feature = "tls")]
use super::tls::read;
use crate::service::{Answer, Inquiry, Problem, Routes};
use crate::sys::mask_arguments;
use crate::text::without_mark;
#[cfg(feature = "tls")]
use crate::{ClientTls, TlsError};
use crate::{Connect, ParseTargetError, Proxies, Server, Target, Token};

/// The maximum size of a token file.
const MAX_TOKEN_FILE: u64 = 64 << 10;

impl Settings {
    /// Checks the flags of a client against each other and reads its token.
    pub(super) fn complete_client(&mut self) -> Result<(), String> {
        #[cfg(feature = "tls")]
        if self.client.tls.ca.is_some() && self.client.tls.fingerprint.is_some() {
            return Err("--ca cannot be combined with --fingerprint".to_owned());
        }
        let url = self.operand.as_deref().unwrap_or_default();
        let target: Target = url.parse().map_err(|error: ParseTargetError| {
            let advice = if error.is_user_name() {
                "; use --token-file or --header"
            } else {
                ""
            };
            format!("URL: {error}{advice}")
        })?;
        #[cfg(feature = "tls")]
        if let Some(flag) = self.client.tls.given().filter(|_| !target.is_tls()) {
            return Err(format!("{flag} has no effect without TLS; use wss://"));
        }
        let has_token = target.token().is_some();
        self.client.token = match (&self.token_file, std::env::var(TOKEN_VARIABLE)) {
            (Some(_), _) if has_token => {
                return Err("--token-file cannot be combined with a token in URL".to_owned());
            }
            (Some(file), _) => Some(read_token(file)?),
            // What is in the URL is more specific.
            (None, _) if has_token => None,
            (None, Ok(text)) if text.trim_ascii().is_empty() => None,
            (None, Ok(text)) => Some(parse_token(&text, TOKEN_VARIABLE)?),
            (None, Err(VarError::NotPresent)) => None,
            (None, Err(VarError::NotUnicode(_))) => {
                return Err(format!("{TOKEN_VARIABLE} is not UTF-8"));
            }
        };
        self.client.target = Some(target);
        #[cfg(feature = "deflate")]
        if self.has("deflate") {
            self.server.deflate = Some(self.deflate);
        }
        if self.has("no-resume") {
            self.server.resume = None;
        }
        Ok(())
    }

    /// Sends a request to a server and returns the answer.
    pub(super) fn ask(
        &self,
        (inquiry, answer): (Inquiry, Rc<RefCell<Answer>>),
    ) -> Result<Answer, Failure> {
        // As for a server, so that the loop is compiled once.
        let routes = Routes::builder().add_without_idle_timeout("/...".parse()?, Box::new(inquiry));
        let mut server = Server::without_listeners(self.server.clone(), routes.build()?)?;
        server.stop_on_signals()?;
        server.run()?;
        Ok(answer.replace(Ok(Value::Null)))
    }

    /// The outgoing connection that the flags describe. Takes the token out of the process list.
    pub(super) fn connection(&self) -> Result<Connect, String> {
        let client = &self.client;
        let target = client.target.clone().ok_or("missing URL")?;
        hide_token(self.operand.as_deref().unwrap_or_default());
        let proxies = Proxies::from_env(&target).map_err(|name| {
            format!(
                "{name}: only HTTP proxies are supported, as http://HOST:PORT; unset the variable to connect directly"
            )
        })?;
        let mut connect = Connect::new(target)
            .with_cookies()
            .with_timeout(client.connect_timeout)
            .with_proxies(proxies);
        if let Some(token) = &client.token {
            connect = connect.with_token(token.clone());
        }
        for (name, value) in &client.fields {
            let added = connect.with_field(name, value);
            connect = added.ok_or_else(|| format!("--header: '{name}' is not valid"))?;
        }
        #[cfg(feature = "deflate")]
        {
            connect = connect.with_deflate(self.has("deflate"));
        }
        #[cfg(feature = "tls")]
        {
            connect = connect.with_tls(client.tls.load()?);
        }
        Ok(if self.has("no-resume") {
            connect
        } else {
            connect.resumable()
        })
    }

    /// How long to try to connect.
    pub(super) fn give_up(&self) -> Duration {
        self.client.give_up.unwrap_or(Duration::MAX)
    }
}

#[cfg(feature = "tls")]
impl ClientTlsFlags {
    /// One of the flags that were given.
    fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--ca", self.ca.is_some()),
            ("--fingerprint", self.fingerprint.is_some()),
            ("--tls-client-cert", self.cert.is_some()),
            ("--tls-client-key", self.key.is_some()),
        ];
        let given = flags.into_iter().find(|(_, is_given)| *is_given);
        given.map(|(flag, _)| flag)
    }

    /// Reads the files that the flags name.
    fn load(&self) -> Result<ClientTls, String> {
        let mut tls = ClientTls::new();
        if let Some(file) = &self.ca {
            let from = format!("--ca: {}", file.display());
            let text = read(file, false).map_err(|error| format!("{from}: {error}"))?;
            tls = tls
                .with_ca_pem(&text)
                .map_err(|error| format!("{from}: {error}"))?;
        }
        if let Some(fingerprint) = &self.fingerprint {
            tls = tls
                .with_fingerprint(fingerprint)
                .map_err(|error| format!("--fingerprint: {error}"))?;
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let (from, from_key) = (
                format!("--tls-client-cert: {}", cert.display()),
                format!("--tls-client-key: {}", key.display()),
            );
            let chain = read(cert, false).map_err(|error| format!("{from}: {error}"))?;
            let key = read(key, false).map_err(|error| format!("{from_key}: {error}"))?;
            let with_identity = tls.with_identity_pem(&chain, &key);
            tls = with_identity.map_err(|error| match error {
                TlsError::Key(_) => format!("{from_key}: {error}"),
                _ => format!("{from}: {error}"),
            })?;
        }
        Ok(tls)
    }
}

/// What the user can do about a problem of a client.
pub(super) fn advise(problem: Problem) -> &'static str {
    match problem {
        Problem::Token => "present a token with --token-file or OUTRIGGER_TOKEN",
        Problem::Untrusted => "use --ca FILE or --fingerprint SHA256",
        Problem::Unreachable => "--give-up sets for how long",
        Problem::Conflict => "use --takeover to replace the other client, or --viewer to watch",
        Problem::NoTerminal => "see 'outrigger attach --help'",
        Problem::NotJsonRpc => "use --no-json for other protocols",
    }
}

fn read_token(file: &Path) -> Result<Token, String> {
    let name = format!("--token-file: {}", file.display());
    let mut text = String::new();
    let read = File::open(file)
        .and_then(|file| file.take(MAX_TOKEN_FILE + 1).read_to_string(&mut text))
        .and_then(|length| match length as u64 > MAX_TOKEN_FILE {
            true => Err(io::Error::other("the file is too large")),
            false => Ok(()),
        });
    read.map_err(|error| format!("{name}: {error}"))?;
    parse_token(&text, &name)
}

/// The token in the first line that is neither empty nor a comment.
fn parse_token(text: &str, from: &str) -> Result<Token, String> {
    let mut lines = without_mark(text).lines().map(str::trim_ascii);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    let line = line.ok_or_else(|| format!("{from}: there is no token"))?;
    // The line itself is not shown, because it may contain the token.
    Token::new(line).ok_or_else(|| {
        format!("{from}: expected one token of visible ASCII characters, without spaces")
    })
}

/// Takes the token in a URL out of the process list.
fn hide_token(url: &str) {
    let tokens = tokens_in(url);
    if tokens.is_empty() {
        return;
    }
    let masked = mask_arguments(|argument| match argument == url.as_bytes() {
        true => tokens.clone(),
        false => Vec::new(),
    });
    if masked.is_err() {
        log::warn!("other users of this machine can see the token of the URL; use --token-file");
    }
}

/// Where a URL has tokens.
fn tokens_in(url: &str) -> Vec<Range<usize>> {
    const NAME: &str = "token=";
    let mut tokens = Vec::new();
    let mut at = url.find('?').map_or(url.len(), |at| at + 1);
    for pair in url[at..].split('&') {
        if pair.starts_with(NAME) {
            tokens.push(at + NAME.len()..at + pair.len());
        }
        at += pair.len() + 1;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_found_in_a_url() {
        for (url, token) in [
            ("ws://h/p?token=secret", &["secret"][..]),
            (
                "ws://h/token=a?a=b&token=secret&c=d&token=",
                &["secret", ""],
            ),
            ("ws://h/p?tokens=secret", &[]),
            ("ws://h/token=secret", &[]),
        ] {
            let found: Vec<&str> = tokens_in(url).into_iter().map(|at| &url[at]).collect();
            assert_eq!(found, token, "{url}");
        }
    }

    #[test]
    fn the_token_of_a_client_is_one_word() {
        let token = |text| parse_token(text, "file");
        let secret = Token::new("secret").expect("a token");
        for text in [
            "secret",
            "secret\n",
            "# a comment\r\n\n  secret \r\nother\n",
        ] {
            assert_eq!(token(text).as_ref(), Ok(&secret), "{text:?}");
        }
        for text in ["", "\n# secret\n", "name use secret", "s\u{e9}cret"] {
            let error = token(text).expect_err(text);
            assert!(
                error.starts_with("file: ") && !error.contains("cret"),
                "{error}"
            );
        }
    }
}
