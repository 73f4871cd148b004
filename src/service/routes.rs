//! Several services behind one listener, each at its path.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Endpoint;
use crate::{
    Accept, ClientId, CloseReason, Context, Message, Metrics, Readiness, Rejection, Request, Route,
    Service, ServiceId, SourceId, StatusFields, TimerId,
};

/// A service that is made of others. Requests go by their path, and everything else goes to the service whose client,
/// file descriptor or timer it is.
///
/// Where several paths match, the longest one wins. One service alone has the server for itself.
#[derive(Default)]
pub struct Routes {
    services: Vec<Mounted>,
}

struct Mounted {
    endpoint: Endpoint,
    service: Box<dyn Service>,
    /// Whether clients may be idle here for any time.
    patient: bool,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let endpoints = self.services.iter().map(|mounted| &mounted.endpoint);
        f.debug_list().entries(endpoints).finish()
    }
}

impl Routes {
    /// Adds a service. The server's idle timeout is not for the clients of a `patient` one.
    ///
    /// # Panics
    ///
    /// When there are [`ServiceId::MOST`] already.
    pub fn add(&mut self, endpoint: Endpoint, service: Box<dyn Service>, patient: bool) {
        assert!(self.services.len() < ServiceId::MOST, "too many services");
        self.services.push(Mounted {
            endpoint,
            service,
            patient,
        });
    }

    /// Which service a path belongs to.
    fn find(&self, path: &str) -> Option<usize> {
        if self.services.len() == 1 {
            return Some(0);
        }
        let matching = self.services.iter().enumerate();
        matching
            .filter(|(_, mounted)| mounted.endpoint.matches(path))
            .max_by_key(|(_, mounted)| mounted.endpoint.path().len())
            .map(|(index, _)| index)
    }

    /// The service that is at work.
    fn at(&mut self, ctx: &Context) -> Option<&mut Box<dyn Service>> {
        let index = ctx.service_id().index().unwrap_or(0);
        self.services
            .get_mut(index)
            .map(|mounted| &mut mounted.service)
    }

    /// Puts one service after the other to work.
    fn each(&mut self, ctx: &mut Context, act: impl Fn(&mut dyn Service, &mut Context)) {
        let alone = self.services.len() == 1;
        for (index, mounted) in self.services.iter_mut().enumerate() {
            ctx.set_service_id(service_id(index, alone));
            act(&mut *mounted.service, ctx);
        }
        ctx.set_service_id(ServiceId::ALL);
    }
}

fn service_id(index: usize, alone: bool) -> ServiceId {
    if alone {
        return ServiceId::ALL;
    }
    ServiceId::new(index).unwrap_or_default()
}

impl Service for Routes {
    fn started(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, ctx| service.started(ctx));
    }

    fn service_id(&self, request: &Request<'_>) -> ServiceId {
        let alone = self.services.len() == 1;
        self.find(request.path())
            .map_or(ServiceId::ALL, |index| service_id(index, alone))
    }

    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        let index = self.find(request.path()).ok_or_else(Rejection::not_found)?;
        self.services[index].service.route(request)
    }

    fn max_body(&self, request: &Request<'_>) -> usize {
        self.find(request.path()).map_or(usize::MAX, |index| {
            self.services[index].service.max_body(request)
        })
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        let service = self.at(ctx).ok_or_else(Rejection::not_found)?;
        service.accept(ctx, request)
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        if let Some(service) = self.at(ctx) {
            service.connected(ctx, client, request);
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        if let Some(service) = self.at(ctx) {
            service.message(ctx, client, message);
        }
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(service) = self.at(ctx) {
            service.drained(ctx, client);
        }
    }

    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        self.at(ctx)
            .map_or(Duration::ZERO, |service| service.input_ended(ctx, client))
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        if let Some(service) = self.at(ctx) {
            service.disconnected(ctx, client, ending);
        }
    }

    fn is_waiting(&self, ctx: &Context, client: ClientId) -> bool {
        let index = ctx.service_id().index().unwrap_or(0);
        let mounted = self.services.get(index);
        mounted.is_some_and(|mounted| mounted.service.is_waiting(ctx, client))
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        let index = ctx.service_id().index().unwrap_or(0);
        let mounted = self.services.get(index);
        mounted.is_some_and(|mounted| mounted.patient || mounted.service.may_idle(ctx, client))
    }

    fn draining(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, ctx| service.draining(ctx));
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        if let Some(service) = self.at(ctx) {
            service.call(ctx, caller, request, body);
        }
    }

    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        if let Some(service) = self.at(ctx) {
            service.abandoned(ctx, caller);
        }
    }

    fn is_ready(&self) -> bool {
        self.services
            .iter()
            .all(|mounted| mounted.service.is_ready())
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        if let Some(service) = self.at(ctx) {
            service.ready(ctx, source, readiness);
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if let Some(service) = self.at(ctx) {
            service.timer(ctx, timer);
        }
    }

    fn orphans_changed(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, ctx| service.orphans_changed(ctx));
    }

    /// What each service says, numbers of one name added up; with several, each one's own under `routes` and its path.
    fn status(&self) -> StatusFields {
        let mut all = Map::new();
        let mut routes = Map::new();
        for mounted in &self.services {
            let status = mounted.service.status().0;
            routes.insert(mounted.endpoint.path().to_owned(), status.clone().into());
            add_up(&mut all, status);
        }
        if self.services.len() > 1 {
            all.insert("routes".to_owned(), routes.into());
        }
        StatusFields(all)
    }

    fn metrics(&self, out: &mut Metrics) {
        for mounted in &self.services {
            if self.services.len() > 1 {
                out.set_label("route", mounted.endpoint.path());
            }
            mounted.service.metrics(out);
        }
        out.set_label("route", "");
    }

    fn failure(&self) -> Option<&str> {
        self.services
            .iter()
            .find_map(|mounted| mounted.service.failure())
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.each(ctx, |service, ctx| service.stopping(ctx));
    }

    fn is_stopped(&self) -> bool {
        self.services
            .iter()
            .all(|mounted| mounted.service.is_stopped())
    }
}

/// Adds fields to others: numbers to numbers, objects field by field, and what is true is true of all. Of what cannot be added, the first stays.
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
    use serde_json::json;

    use super::*;

    struct Nothing;

    impl Service for Nothing {}

    #[test]
    fn the_longest_path_wins() {
        let mut routes = Routes::default();
        for path in ["/...", "/a/...", "/a/b"] {
            routes.add(path.parse().expect("an endpoint"), Box::new(Nothing), false);
        }
        for (path, index) in [("/", 0), ("/b", 0), ("/a", 1), ("/a/c", 1), ("/a/b", 2)] {
            assert_eq!(routes.find(path), Some(index), "{path}");
        }
    }

    #[test]
    fn numbers_add_up() {
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
