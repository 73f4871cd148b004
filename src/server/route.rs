//! How a request is handled: the answer of [`Service::route`](super::Service::route).

use super::id::ServiceId;
use super::policy::Scope;
use crate::protocol::Rejection;

/// How a request is handled, and who may make it.
///
/// ```
/// use outrigger::{Rejection, Request, Route, Scope, Service};
///
/// struct Counter;
///
/// impl Service for Counter {
///     fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
///         match request.path() {
///             "/live" => Ok(Route::web_socket().with_scope(Scope::Watch)),
///             "/reset" => Ok(Route::call().with_scope(Scope::All).with_max_body(0)),
///             _ => Err(Rejection::not_found()),
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Route {
    pub(super) handling: Handling,
    pub(super) service_id: ServiceId,
    pub(super) scope: Scope,
    pub(super) is_public: bool,
    pub(super) is_resumable: bool,
    pub(super) max_body: usize,
    pub(super) refusal: Option<Rejection>,
}

/// The methods that the loop calls for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    /// [`Service::accept`](super::Service::accept) and [`Service::connected`](super::Service::connected).
    WebSocket,
    /// [`Service::call`](super::Service::call), with the whole request.
    Call,
}

impl Route {
    fn new(handling: Handling) -> Self {
        Self {
            handling,
            service_id: ServiceId::ALL,
            scope: Scope::Use,
            is_public: false,
            is_resumable: true,
            max_body: usize::MAX,
            refusal: None,
        }
    }

    /// The request is a WebSocket handshake. [`Service::accept`](super::Service::accept) and
    /// [`Service::connected`](super::Service::connected) follow. Clients may make the connection resumable.
    #[must_use]
    pub fn web_socket() -> Self {
        Self::new(Handling::WebSocket)
    }

    /// The request is an HTTP call. [`Service::call`](super::Service::call) follows with the whole request.
    #[must_use]
    pub fn call() -> Self {
        Self::new(Handling::Call)
    }

    /// Sets the service that handles the request, for a service that combines several. From then on,
    /// [`Context::service_id`](super::Context::service_id) returns this id in every call that concerns the client.
    #[must_use]
    pub fn with_service_id(self, service_id: ServiceId) -> Self {
        Self { service_id, ..self }
    }

    /// Sets the lowest scope that the request needs; the default is [`Scope::Use`]. The server rejects the request of a client
    /// whose token has a lower scope with 403.
    #[must_use]
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Requires no token, because the answer holds nothing secret, such as a page. Host and Origin are checked.
    #[must_use]
    pub fn public(self) -> Self {
        Self {
            is_public: true,
            ..self
        }
    }

    /// Sets whether clients may make their connection resumable with this handshake.
    #[must_use]
    pub fn with_resumption(self, is_resumable: bool) -> Self {
        Self {
            is_resumable,
            ..self
        }
    }

    /// Sets the maximum length of the body of the call. A body over this limit or over `max_message` gets 413.
    #[must_use]
    pub fn with_max_body(self, max_body: usize) -> Self {
        Self { max_body, ..self }
    }
}

/// Refuses the request. Only a client whose token has the scope of the route gets the rejection; others get 403, so that they do
/// not learn the reason.
impl From<Rejection> for Route {
    fn from(rejection: Rejection) -> Self {
        Self {
            refusal: Some(rejection),
            ..Self::call()
        }
    }
}
