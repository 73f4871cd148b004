//! Several services behind one listener, each at its own path.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value, json};

use super::Endpoint;
use crate::record::{Elements, Loader, RecordError, Saver};
use crate::server::{continue_service, save_service};
use crate::upgrade::Portable;
use crate::{
    ClientId, Context, Histogram, LinkTarget, Metrics, Principal, Rejection, Report, Request,
    Route, Scope, Service, ServiceId, StatusFields,
};

/// A service that combines others. A request goes to the service at its path. All other events go to the service that
/// owns the client, file descriptor or timer.
///
/// If several endpoints match a path, the longest one wins. If there is only one service, it gets every request.
///
/// ```
/// use outrigger::service::{Echo, Endpoint, Routes};
/// use outrigger::{Config, Server};
///
/// let echo: Endpoint = "/echo".parse()?;
/// let other: Endpoint = "/other".parse()?;
/// let routes = Routes::builder()
///     .add(echo.clone(), Box::new(Echo::new(echo)))
///     .add_without_idle_timeout(other.clone(), Box::new(Echo::new(other)))
///     .build()?;
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, routes)?;
/// # server.handle().stop()?;
/// server.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Routes {
    services: Vec<Mounted>,
    pages: Option<Box<dyn Pages>>,
}

/// A service that answers requests of browsers, also at the paths of other services.
pub(crate) trait Pages: Service {
    /// Whether it answers a request. `route` is the index of the service at the path, in the order of the routes.
    fn answers(&self, request: &Request<'_>, route: Option<usize>) -> bool;
}

struct Mounted {
    endpoint: Endpoint,
    service: Box<dyn Service>,
    /// What kind of service it is, for the status.
    kind: &'static str,
    /// Whether the idle timeout of the server applies to this service's clients.
    has_idle_timeout: bool,
    /// Whether clients can resume their connections.
    is_resumable: bool,
}

impl Mounted {
    /// A service that is moved, or that becomes another one, does not continue. Stored states have these names.
    fn state_name(&self) -> String {
        let portable = self.service.portable();
        let variant = portable.and_then(|service| service.state_name(ServiceId::ALL));
        let parts = [
            self.endpoint.path(),
            self.kind,
            variant.as_deref().unwrap_or_default(),
        ];
        parts.join(" ").trim_end().to_owned()
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_endpoints(&self.services, f)
    }
}

fn fmt_endpoints(services: &[Mounted], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let endpoints = services.iter().map(|mounted| &mounted.endpoint);
    f.debug_list().entries(endpoints).finish()
}

/// Builds [`Routes`].
#[derive(Default)]
#[must_use]
pub struct RoutesBuilder {
    services: Vec<Mounted>,
    pages: Option<Box<dyn Pages>>,
}

impl fmt::Debug for RoutesBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_endpoints(&self.services, f)
    }
}

impl RoutesBuilder {
    /// Adds a service.
    pub fn add(self, endpoint: Endpoint, service: Box<dyn Service>) -> Self {
        self.push(Mounted {
            endpoint,
            service,
            kind: "",
            has_idle_timeout: true,
            is_resumable: true,
        })
    }

    /// Adds a service whose clients may be idle for any time.
    pub fn add_without_idle_timeout(self, endpoint: Endpoint, service: Box<dyn Service>) -> Self {
        self.push(Mounted {
            endpoint,
            service,
            kind: "",
            has_idle_timeout: false,
            is_resumable: true,
        })
    }

    /// Offers no connections that can be resumed to the clients of the service that was added last.
    pub fn without_resume(mut self) -> Self {
        if let Some(last) = self.services.last_mut() {
            last.is_resumable = false;
        }
        self
    }

    /// Names the kind of the service that was added last. `/status` lists the services with their kinds.
    pub fn named(mut self, kind: &'static str) -> Self {
        if let Some(last) = self.services.last_mut() {
            last.kind = kind;
        }
        self
    }

    /// Adds the service that answers requests of browsers.
    #[cfg_attr(not(feature = "cli"), expect(dead_code))]
    pub(crate) fn pages(mut self, pages: Box<dyn Pages>) -> Self {
        self.pages = Some(pages);
        self
    }

    fn push(mut self, mounted: Mounted) -> Self {
        self.services.push(mounted);
        self
    }

    /// Checks the services and combines them.
    ///
    /// # Errors
    ///
    /// Two services have the same path, or there are more than [`ServiceId::MOST`] services.
    pub fn build(self) -> Result<Routes, RoutesError> {
        if self.services.len() > ServiceId::MOST {
            return Err(RoutesError::TooManyServices);
        }
        for (index, mounted) in self.services.iter().enumerate() {
            let path = mounted.endpoint.path();
            let mut earlier = self.services[..index].iter();
            if earlier.any(|earlier| earlier.endpoint.path() == path) {
                return Err(RoutesError::DuplicatePath(path.to_owned()));
            }
        }
        Ok(Routes {
            services: self.services,
            pages: self.pages,
        })
    }
}

/// The services cannot be combined.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoutesError {
    /// There are more than [`ServiceId::MOST`] services.
    TooManyServices,
    /// Two services have this path.
    DuplicatePath(String),
}

impl fmt::Display for RoutesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyServices => {
                write!(f, "a server can have at most {} services", ServiceId::MOST)
            }
            Self::DuplicatePath(path) => write!(f, "two services have the path {path}"),
        }
    }
}

impl std::error::Error for RoutesError {}

impl Routes {
    /// Starts building routes.
    pub fn builder() -> RoutesBuilder {
        RoutesBuilder::default()
    }

    /// 404 for a path that no service has. The detail names what the client probably meant.
    fn not_found(&self, path: &str) -> Rejection {
        let rejection = Rejection::not_found();
        let without_slash = path.trim_end_matches('/');
        if without_slash.len() < path.len() && self.find_exactly(without_slash).is_some() {
            return rejection.detail(format!(
                "the path is {without_slash}, without the final '/'"
            ));
        }
        let mut kinds = self.services.iter().map(|mounted| mounted.kind);
        if path.ends_with("/sse") && kinds.any(|kind| kind == "mcp") {
            let why = "HTTP with SSE (MCP of 2024-11-05) is not supported: use Streamable HTTP at the path of the server";
            return rejection.detail(why);
        }
        rejection
    }

    /// The service with this id.
    fn mounted(&self, id: ServiceId) -> Option<&Mounted> {
        match id.index() {
            Some(index) => self.services.get(index),
            // The only service has no index.
            None => self.services.first().filter(|_| self.services.len() == 1),
        }
    }

    /// The pages, if they answer a request.
    fn pages_for(&self, request: &Request<'_>) -> Option<&dyn Service> {
        let pages = self.pages.as_deref()?;
        let is_theirs = || pages.answers(request, self.find_exactly(request.path()));
        (!request.wants_websocket() && is_theirs()).then_some(pages as &dyn Service)
    }

    /// The index of the service at a path. A single service gets every request.
    fn find(&self, path: &str) -> Option<usize> {
        if self.services.len() == 1 {
            return Some(0);
        }
        self.find_exactly(path)
    }

    /// The index of the service with the longest endpoint path that matches.
    fn find_exactly(&self, path: &str) -> Option<usize> {
        let matching = self.services.iter().enumerate();
        matching
            .filter(|(_, mounted)| mounted.endpoint.matches(path))
            .max_by_key(|(_, mounted)| mounted.endpoint.path().len())
            .map(|(index, _)| index)
    }

    /// The services that report about themselves.
    fn reports(&self) -> impl Iterator<Item = &dyn Report> {
        let services = self.services.iter();
        services.filter_map(|mounted| mounted.service.report())
    }

    /// Calls `act` with each service, after making it the current service of the context.
    fn each(
        &mut self,
        ctx: &mut Context,
        mut act: impl FnMut(&mut dyn Service, &Endpoint, &mut Context),
    ) {
        for index in 0..self.services.len() {
            self.at(ctx, index, &mut act);
        }
    }

    /// Calls `act` with one service, after making it the current service of the context.
    fn at<R>(
        &mut self,
        ctx: &mut Context,
        index: usize,
        act: impl FnOnce(&mut dyn Service, &Endpoint, &mut Context) -> R,
    ) -> R {
        let alone = self.services.len() == 1;
        let mounted = &mut self.services[index];
        ctx.set_service_id(service_id(index, alone));
        let done = act(&mut *mounted.service, &mounted.endpoint, ctx);
        ctx.set_service_id(ServiceId::ALL);
        done
    }
}

/// Whether a service can serve clients now.
fn is_ready(service: &dyn Service) -> bool {
    service.report().is_none_or(Report::is_ready)
}

fn service_id(index: usize, alone: bool) -> ServiceId {
    if alone {
        return ServiceId::ALL;
    }
    ServiceId::new(index).unwrap_or_default()
}

impl Service for Routes {
    fn select(&mut self, id: ServiceId) -> Option<&mut dyn Service> {
        match self.services.get_mut(id.index().unwrap_or(0)) {
            Some(mounted) => Some(&mut *mounted.service),
            None => Some(self.pages.as_deref_mut()?),
        }
    }

    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        // An operator needs the pages when the server is full.
        if let Some(pages) = self.pages_for(request) {
            let route = pages.route(request).unwrap_or_else(Route::from);
            return Ok(route.with_service_id(ServiceId::ALWAYS_SERVED));
        }
        let Some(index) = self.find(request.path()) else {
            let rejection = self.not_found(request.path());
            return Ok(Route::from(rejection).with_scope(Scope::Watch));
        };
        let mounted = &self.services[index];
        let mut route = mounted.service.route(request).unwrap_or_else(Route::from);
        // A service that is alone gets all requests.
        if self.find_exactly(request.path()).is_none() {
            route = route.with_not_found(self.not_found(request.path()));
        }
        let route = route.with_service_id(service_id(index, self.services.len() == 1));
        Ok(if mounted.is_resumable {
            route
        } else {
            route.with_resumption(false)
        })
    }

    fn share(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        target: &LinkTarget,
    ) -> Result<(), Rejection> {
        let index = self.find(target.path()).ok_or_else(Rejection::not_found)?;
        let alone = self.services.len() == 1;
        ctx.set_service_id(service_id(index, alone));
        self.services[index].service.share(ctx, caller, target)
    }

    fn started(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, _, ctx| service.started(ctx));
    }

    fn is_waiting(&self, ctx: &Context, client: ClientId) -> bool {
        let index = ctx.service_id().index().unwrap_or(0);
        let mounted = self.services.get(index);
        mounted.is_some_and(|mounted| mounted.service.is_waiting(ctx, client))
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        let index = ctx.service_id().index().unwrap_or(0);
        let mounted = self.services.get(index);
        mounted.is_some_and(|mounted| {
            !mounted.has_idle_timeout || mounted.service.may_idle(ctx, client)
        })
    }

    fn draining(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, _, ctx| service.draining(ctx));
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        for mounted in &self.services {
            mounted.service.clients(visit);
        }
    }

    fn keeps_every_client(&self, id: ServiceId) -> bool {
        let mounted = self.mounted(id);
        mounted.is_some_and(|mounted| mounted.service.keeps_every_client(ServiceId::ALL))
    }

    fn orphans_changed(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, _, ctx| service.orphans_changed(ctx));
    }

    fn failure(&self) -> Option<&str> {
        self.services
            .iter()
            .find_map(|mounted| mounted.service.failure())
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, _, ctx| service.stopping(ctx));
    }

    fn is_stopped(&self) -> bool {
        self.services
            .iter()
            .all(|mounted| mounted.service.is_stopped())
    }

    /// The service that holds most for the principal is asked first.
    fn free_memory(&mut self, ctx: &mut Context, principal: &Principal, bytes: usize) -> usize {
        let mut held: Vec<(usize, usize)> = Vec::new();
        for (index, mounted) in self.services.iter().enumerate() {
            let mut own = 0;
            if let Some(report) = mounted.service.report() {
                report.held(&mut |other, bytes| own += if other == principal { bytes } else { 0 });
            }
            held.push((own, index));
        }
        held.sort_unstable();
        let (mut freed, alone) = (0, self.services.len() == 1);
        while freed < bytes
            && let Some((_, index)) = held.pop()
        {
            ctx.set_service_id(service_id(index, alone));
            let service = &mut self.services[index].service;
            freed += service.free_memory(ctx, principal, bytes - freed);
        }
        ctx.set_service_id(ServiceId::ALL);
        freed
    }

    fn report(&self) -> Option<&dyn Report> {
        Some(self)
    }

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

impl Report for Routes {
    fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        self.reports().for_each(|report| report.held(visit));
    }

    fn name(&self, id: ServiceId) -> Option<&str> {
        if id == ServiceId::ALWAYS_SERVED {
            return Some("pages");
        }
        self.mounted(id).map(|mounted| mounted.endpoint.path())
    }

    /// A service that is alone decides. One of several does not keep clients from the others.
    fn is_ready(&self) -> bool {
        match &*self.services {
            [alone] => is_ready(&*alone.service),
            _ => true,
        }
    }

    fn routes(&self, visit: &mut dyn FnMut(&str, bool)) {
        for mounted in &self.services {
            visit(mounted.endpoint.path(), is_ready(&*mounted.service));
        }
    }

    /// The sum of the services' fields. With several services, `routes` has the fields of each one by its path.
    fn status(&self) -> StatusFields {
        let mut all = Map::new();
        let mut routes = Map::new();
        for mounted in &self.services {
            let report = mounted.service.report();
            let status = report.map(Report::status).unwrap_or_default().0;
            routes.insert(mounted.endpoint.path().to_owned(), status.clone().into());
            add_up(&mut all, status);
        }
        if let Some(pages) = self.pages.as_ref().and_then(|pages| pages.report()) {
            add_up(&mut all, pages.status().0);
        }
        if self.services.len() > 1 {
            all.insert("routes".to_owned(), routes.into());
        }
        let named = self
            .services
            .iter()
            .filter(|mounted| !mounted.kind.is_empty());
        let named =
            named.map(|mounted| json!({"path": mounted.endpoint.path(), "service": mounted.kind}));
        let named: Vec<Value> = named.collect();
        if !named.is_empty() {
            all.insert("services".to_owned(), named.into());
        }
        StatusFields(all)
    }

    fn answer_times(&self) -> Option<Histogram> {
        let times = self.reports().filter_map(Report::answer_times);
        times.reduce(|mut all, one| {
            all.merge(&one);
            all
        })
    }

    fn metrics(&self, out: &mut Metrics) {
        for mounted in &self.services {
            if self.services.len() > 1 {
                out.set_label("route", mounted.endpoint.path());
            }
            if let Some(report) = mounted.service.report() {
                report.metrics(out);
            }
        }
        out.set_label("route", "");
    }
}

impl Portable for Routes {
    fn state_name(&self, id: ServiceId) -> Option<Cow<'_, str>> {
        match self.mounted(id) {
            Some(mounted) => Some(mounted.state_name().into()),
            None => Report::name(self, id).map(Cow::Borrowed),
        }
    }

    fn carries(&self, id: ServiceId) -> bool {
        let mounted = self.mounted(id);
        let portable = mounted.and_then(|mounted| mounted.service.portable());
        portable.is_some_and(|service| service.carries(ServiceId::ALL))
    }

    fn carries_calls(&self, id: ServiceId) -> bool {
        let mounted = self.mounted(id);
        let portable = mounted.and_then(|mounted| mounted.service.portable());
        portable.is_some_and(|service| service.carries_calls(ServiceId::ALL))
    }

    fn make_portable(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, _, ctx| {
            if let Some(service) = service.portable_mut() {
                service.make_portable(ctx);
            }
        });
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.open(b'{');
        for mounted in &self.services {
            to.any_key(&mounted.state_name());
            save_service(&*mounted.service, to);
            to.next();
        }
        to.close(b'}');
    }

    fn restore(&mut self, ctx: &mut Context, from: &mut Loader) -> Result<(), RecordError> {
        let names: Vec<String> = self.services.iter().map(Mounted::state_name).collect();
        let mut continued = vec![false; names.len()];
        let mut states = Elements::of_object(from)?;
        while states.has_next(from)? {
            let name = from.string()?;
            from.expect(b':')?;
            let Some(at) = names.iter().position(|one| *one == name) else {
                from.skip()?;
                continue;
            };
            continued[at] = true;
            self.at(ctx, at, |service, endpoint, ctx| {
                let restored = continue_service(service, ctx, from);
                restored.map_err(|error| error.inside(endpoint.path()))
            })?;
        }
        if !from.is_rehearsal() {
            for at in (0..names.len()).filter(|at| !continued[*at]) {
                self.at(ctx, at, |service, _, ctx| service.started(ctx));
            }
        }
        Ok(())
    }
}

/// Merges fields into others: adds numbers, merges objects and combines booleans with AND. Keeps the first of two values
/// of any other kind.
fn add_up(all: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (all.get_mut(&name), value) {
            (None, value) => _ = all.insert(name, value),
            (Some(Value::Object(all)), Value::Object(more)) => add_up(all, more),
            (Some(Value::Number(sum)), Value::Number(number)) => {
                if let (Some(one), Some(other)) = (sum.as_u64(), number.as_u64()) {
                    *sum = (one + other).into();
                }
            }
            (Some(Value::Bool(all)), Value::Bool(one)) => *all &= one,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Service for Nothing {}

    fn builder(paths: &[&str]) -> RoutesBuilder {
        paths.iter().fold(Routes::builder(), |builder, path| {
            builder.add(path.parse().expect("an endpoint"), Box::new(Nothing))
        })
    }

    #[test]
    fn the_longest_path_wins() {
        let of = |path: &str| {
            let routes = builder(&["/a"]).named("mcp").build().expect("valid");
            routes.not_found(path).to_string()
        };
        assert!(of("/a/").ends_with("the path is /a, without the final '/'"));
        assert!(of("/sse").ends_with("use Streamable HTTP at the path of the server"));
        assert_eq!(of("/b/"), "404 nothing is served at this path");
        let routes = builder(&["/...", "/a/...", "/a/b"]).build().expect("valid");
        for (path, index) in [("/", 0), ("/b", 0), ("/a", 1), ("/a/c", 1), ("/a/b", 2)] {
            assert_eq!(routes.find(path), Some(index), "{path}");
        }
    }

    #[test]
    fn a_duplicate_path_and_too_many_services_are_errors() {
        let duplicate = builder(&["/a", "/b", "/a/..."]).build().map(drop);
        assert_eq!(duplicate, Err(RoutesError::DuplicatePath("/a".to_owned())));
        let paths: Vec<String> = (0..=ServiceId::MOST).map(|at| format!("/{at}")).collect();
        let paths: Vec<&str> = paths.iter().map(|path| &**path).collect();
        let too_many = builder(&paths).build().map(drop);
        assert_eq!(too_many, Err(RoutesError::TooManyServices));
        assert!(builder(&paths[1..]).build().is_ok());
    }

    /// A service that keeps state for one client.
    struct One(ClientId);

    impl Service for One {
        fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
            visit(self.0);
        }
    }

    #[test]
    fn the_clients_of_all_services_are_visited() {
        let ids: Vec<ClientId> = ["c1", "c2.1"].map(|id| id.parse().expect("an id")).into();
        let builder = Routes::builder()
            .add("/a".parse().expect("an endpoint"), Box::new(One(ids[0])))
            .add("/b".parse().expect("an endpoint"), Box::new(One(ids[1])));
        let mut visited = Vec::new();
        let routes = builder.build().expect("valid");
        routes.clients(&mut |client| visited.push(client));
        assert_eq!(visited, ids);
    }

    struct Shared;

    impl Service for Shared {
        fn portable(&self) -> Option<&dyn Portable> {
            Some(self)
        }
    }

    impl Portable for Shared {
        fn state_name(&self, _: ServiceId) -> Option<Cow<'_, str>> {
            Some("shared".into())
        }
    }

    /// With other names, an upgrade would end all programs.
    #[test]
    fn services_keep_their_names_in_stored_states() {
        let path = |path: &str| path.parse().expect("an endpoint");
        let routes = Routes::builder()
            .add(path("/a/..."), Box::new(Nothing))
            .named("app")
            .add(path("/b"), Box::new(Shared))
            .named("pipe")
            .build()
            .expect("valid");
        let names = (0..3).map(|index| routes.state_name(ServiceId::new(index).expect("an id")));
        let names: Vec<_> = names.map(|name| name.map(Cow::into_owned)).collect();
        let want = [Some("/a app"), Some("/b pipe shared"), None];
        assert_eq!(names, want.map(|name| name.map(str::to_owned)));
    }

    #[test]
    fn status_fields_are_added_up() {
        let object = |value: Value| value.as_object().cloned().expect("an object");
        let mut all = object(json!({"a": 1, "b": {"c": 2}, "d": "x", "e": true}));
        add_up(
            &mut all,
            object(json!({"a": 2, "b": {"c": 3, "e": 4}, "d": "y", "e": false})),
        );
        let sum = json!({"a": 3, "b": {"c": 5, "e": 4}, "d": "x", "e": false});
        assert_eq!(Value::from(all), sum);
    }
}
