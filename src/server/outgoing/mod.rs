//! Outgoing connections: settings, URLs, name resolution, proxies, and the state of a connection until it is open.
//! [`connecting`] opens them in the loop.

mod answer;
mod attempt;
pub(super) mod connecting;
mod cookies;
mod error;
mod proxies;
pub(super) mod requesting;
mod resolver;
mod target;

pub(super) use self::answer::handle_answer;
pub(super) use self::attempt::{Failures, Outgoing, Phase, Requesting, Returning};
pub(crate) use self::cookies::Cookies;
pub use self::error::ConnectError;
#[cfg(feature = "client")]
pub(crate) use self::error::said_by;
pub use self::proxies::Proxies;
pub(super) use self::resolver::{Resolved, Resolver};
pub(super) use self::target::Place;
pub use self::target::{ParseTargetError, Target};

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::access::Token;
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::{ClientTls, TlsStream};
use crate::protocol::client::{HandshakeRequest, HttpRequest, ResponseHead, is_reserved};
use crate::protocol::http::is_field;

/// When to try again after an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Whether to try again before a connection was opened for the first time.
    pub first: bool,
    /// How long to try before giving up. The time during which the machine sleeps does not count.
    pub give_up: Duration,
}

impl Retry {
    /// The default of `give_up`: an hour.
    pub const GIVE_UP: Duration = Duration::from_secs(3600);

    /// Sets whether to try again before a connection was opened for the first time.
    #[must_use]
    pub fn with_first(self, first: bool) -> Self {
        Self { first, ..self }
    }

    /// Sets how long to try before giving up.
    #[must_use]
    pub fn with_give_up(self, give_up: Duration) -> Self {
        Self { give_up, ..self }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: true,
            give_up: Self::GIVE_UP,
        }
    }
}

/// The settings of an outgoing connection, for [`Context::connect`](crate::Context::connect).
///
/// ```
/// use std::time::Duration;
/// use outrigger::{Connect, Token};
///
/// let connect = Connect::new("ws://127.0.0.1:7070/acp".parse()?)
///     .with_token(Token::new("s3cret").expect("a token"))
///     .with_timeout(Duration::from_secs(5))
///     .resumable();
/// # Ok::<(), outrigger::ParseTargetError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connect {
    pub(super) target: Target,
    token: Option<Token>,
    fields: Vec<(String, String)>,
    protocols: Vec<String>,
    deflate: bool,
    timeout: Duration,
    pub(super) retry: Option<Retry>,
    resumable: bool,
    /// The cookies of the server. Clones share them.
    cookies: Option<Arc<Mutex<Cookies>>>,
    proxies: Proxies,
    #[cfg(feature = "tls")]
    pub(super) tls: ClientTls,
}

impl Connect {
    /// The default time limit of an attempt.
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    /// Connects to `target` directly, without retries. The token of the target is presented to the server.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            token: target.token().cloned(),
            target,
            fields: Vec::new(),
            protocols: Vec::new(),
            deflate: false,
            timeout: Self::TIMEOUT,
            retry: None,
            resumable: false,
            cookies: None,
            proxies: Proxies::default(),
            #[cfg(feature = "tls")]
            tls: ClientTls::default(),
        }
    }

    /// Presents this token to the server, as `Authorization: Bearer`.
    #[must_use]
    pub fn with_token(self, token: Token) -> Self {
        Self {
            token: Some(token),
            ..self
        }
    }

    /// Adds a header field to the handshake. Returns `None` if it contains characters that HTTP does not allow, or if the
    /// handshake sets the field itself.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: &str) -> Option<Self> {
        self.fields.push((name.to_owned(), value.to_owned()));
        (is_field(name, value) && !is_reserved(name)).then_some(self)
    }

    /// Offers a subprotocol. Earlier ones are preferred.
    #[must_use]
    pub fn with_protocol(mut self, name: impl Into<String>) -> Self {
        self.protocols.push(name.into());
        self
    }

    /// Offers permessage-deflate. [`Config::deflate`](crate::Config) must be set, too.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn with_deflate(self, deflate: bool) -> Self {
        Self { deflate, ..self }
    }

    /// Limits the time of an attempt, from the resolution of the name to the response of the server.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Tries again when an attempt fails.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Self {
            retry: Some(retry),
            ..self
        }
    }

    /// Asks for a resumable connection. If it is cut, the loop connects again, and no message is lost or repeated.
    /// [`Config::resume`](crate::Config), or its default, limits the messages that are kept meanwhile.
    #[must_use]
    pub fn resumable(self) -> Self {
        Self {
            resumable: true,
            retry: Some(self.retry.unwrap_or(Retry {
                first: false,
                ..Retry::default()
            })),
            ..self
        }
    }

    /// Keeps the cookies that the server sets when it accepts a connection, and returns them with each later one, also of clones of
    /// these settings (RFC 6265). They lead to the same server behind a load balancer, for example. They are kept in memory only.
    #[must_use]
    pub fn with_cookies(self) -> Self {
        Self {
            cookies: Some(Arc::default()),
            ..self
        }
    }

    /// Uses these HTTP proxies.
    #[must_use]
    pub fn with_proxies(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// Sets how the server's certificate is verified.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(self, tls: ClientTls) -> Self {
        Self { tls, ..self }
    }

    /// Where to connect to.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The target, to change its parameters before the next connection.
    #[must_use]
    pub fn target_mut(&mut self) -> &mut Target {
        &mut self.target
    }

    /// The request of the handshake. `resume` is the value of the field Outrigger-Resume.
    pub(super) fn request(&self, resume: Option<&str>, has_compression: bool) -> HandshakeRequest {
        let mut request =
            HandshakeRequest::new(self.target.authority(), self.target.request_target());
        for name in &self.protocols {
            request = request.with_protocol(name);
        }
        if self.deflate && has_compression {
            request = request.with_deflate();
        }
        for (name, value) in self.common_fields() {
            request = request.with_field(name, value);
        }
        if let Some(resume) = resume {
            request = request.with_field("Outrigger-Resume", resume);
        }
        request
    }

    /// Writes an HTTP request to the target. Fields of the request replace those of the settings.
    pub(super) fn write_request(&self, request: &HttpRequest, out: &mut Vec<u8>) {
        let fields = self.common_fields();
        let fields = fields.iter().filter(|(name, _)| !request.sets(name));
        let fields = fields.map(|(name, value)| (*name, &**value));
        let target = self.target.request_target();
        request.write(&self.target.authority(), &target, fields, out);
    }

    /// The fields of each request to the target: the token, the cookies, and what the caller has added.
    fn common_fields(&self) -> Vec<(&str, String)> {
        let mut fields = Vec::new();
        if let Some(token) = &self.token {
            fields.push(("Authorization", format!("Bearer {}", token.reveal())));
        }
        let cookies = self.cookies.as_ref().and_then(|cookies| {
            let cookies = cookies.lock().unwrap_or_else(PoisonError::into_inner);
            cookies.field(&self.target, SystemTime::now())
        });
        // A request has only one Cookie field.
        let is_cookie = |name: &str| name.eq_ignore_ascii_case("cookie");
        let own = self.fields.iter().filter(|(name, _)| is_cookie(name));
        let own = own.map(|(_, value)| value.clone());
        let all: Vec<_> = own.chain(cookies).collect();
        if !all.is_empty() {
            fields.push(("Cookie", all.join("; ")));
        }
        let others = self.fields.iter().filter(|(name, _)| !is_cookie(name));
        fields.extend(others.map(|(name, value)| (&**name, value.clone())));
        fields
    }
}

impl Connect {
    /// Keeps the cookies that the server has set.
    pub(super) fn keep_cookies(&self, response: &ResponseHead<'_>) {
        if let Some(cookies) = &self.cookies {
            let mut cookies = cookies.lock().unwrap_or_else(PoisonError::into_inner);
            for field in response.values("set-cookie") {
                cookies.set(field, &self.target, SystemTime::now());
            }
        }
    }

    /// Whether to request a resumable connection.
    pub(super) fn is_resumable(&self) -> bool {
        self.resumable
    }

    /// The host and port to ask the proxy for, and the credentials for the proxy. `None` without a proxy.
    pub(super) fn tunnel(&self) -> Option<(String, Option<&str>)> {
        let proxy = self.proxies.find(&self.target)?;
        let credentials = proxy.credentials.as_ref();
        Some((
            self.target.host_and_port(),
            credentials.map(|secret| secret.0.as_str()),
        ))
    }

    /// Begins TLS on a socket.
    pub(super) fn encrypt(&self, socket: Stream) -> Result<Stream, ConnectError> {
        #[cfg(feature = "tls")]
        {
            let stream = TlsStream::connect(socket, &self.tls, self.target.server_name());
            stream.map(Stream::Tls).map_err(|error| ConnectError::Tls {
                message: error.to_string(),
                is_certificate: true,
            })
        }
        #[cfg(not(feature = "tls"))]
        {
            drop(socket);
            Err(ConnectError::Invalid("this build has no TLS".to_owned()))
        }
    }

    /// Where to connect to: the server, or its proxy.
    pub(super) fn place(&self) -> Cow<'_, Place> {
        match self.proxies.find(&self.target) {
            Some(proxy) => Cow::Owned(Place::Tcp {
                host: proxy.host.clone(),
                port: proxy.port,
            }),
            None => Cow::Borrowed(&self.target.place),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConnectError> {
        if self.request(None, false).is_valid() {
            Ok(())
        } else {
            let why = "the URL or a header field contains characters that HTTP does not allow";
            Err(ConnectError::Invalid(why.to_owned()))
        }
    }
}
