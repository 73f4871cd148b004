//! One HTTP request to a server, for commands that print the answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use super::http::shown;
use crate::protocol::client::HttpRequest;
use crate::service::Endpoint;
use crate::{ClientId, CloseCode, Connect, Context, Outgoing, ResponseEvent, Service};

/// The maximum length of the answer in bytes.
const MAX_BODY: usize = 16 << 20;

/// The JSON of an answer with a status below 300, or why there is none.
pub(crate) type Answer = Result<Value, String>;

/// A service that sends a request, and ends with the answer.
#[derive(Debug)]
pub(crate) struct Inquiry {
    connect: Arc<Connect>,
    request: Option<HttpRequest>,
    status: u16,
    reason: String,
    body: Vec<u8>,
    answer: Rc<RefCell<Answer>>,
}

impl Inquiry {
    /// Sends a request to the target of `connect`. The answer is there when the loop has ended.
    pub(crate) fn new(connect: Connect, request: HttpRequest) -> (Self, Rc<RefCell<Answer>>) {
        let answer = Rc::new(RefCell::new(Err("it was interrupted".to_owned())));
        let service = Self {
            connect: Arc::new(connect),
            request: Some(request.with_field("Accept", "application/json")),
            status: 0,
            reason: String::new(),
            body: Vec::new(),
            answer: Rc::clone(&answer),
        };
        (service, answer)
    }

    /// Asks the server of `connect` for its status.
    pub(crate) fn of_status(mut connect: Connect) -> (Self, Rc<RefCell<Answer>>) {
        connect.target_mut().set_path("/status".to_owned());
        Self::new(connect, HttpRequest::without_body("GET"))
    }

    /// Asks the server of `connect` to replace its program.
    pub(crate) fn of_upgrade(mut connect: Connect) -> (Self, Rc<RefCell<Answer>>) {
        connect.target_mut().set_path("/upgrade".to_owned());
        let request = HttpRequest::new("POST", "application/json", "{}");
        Self::new(connect, request)
    }

    fn end(&self, ctx: &mut Context, answer: Answer) {
        *self.answer.borrow_mut() = answer;
        ctx.stop();
    }

    /// What the server has answered.
    fn read(&self) -> Answer {
        let body: Option<Value> = serde_json::from_slice(&self.body).ok();
        if self.status >= 300 {
            let error = body.as_ref().and_then(|body| body["message"].as_str());
            let detail = error.map_or_else(|| self.reason.clone(), shown);
            return Err(format!("it answered {} {detail}", self.status));
        }
        body.ok_or_else(|| "it is not an Outrigger".to_owned())
    }
}

/// The paths of the services for MCP in a status.
pub(crate) fn mcp_paths(status: &Value) -> Result<Vec<String>, String> {
    let services = status["services"].as_array();
    let services = services.ok_or("it is not an Outrigger")?.iter();
    let of_mcp = services.filter(|service| service["service"] == "mcp");
    let paths = of_mcp.filter_map(|service| service["path"].as_str());
    let paths: Vec<String> = paths.map(str::to_owned).collect();
    if paths.is_empty() {
        return Err("it serves no MCP server".to_owned());
    }
    match paths.iter().find(|path| path.parse::<Endpoint>().is_err()) {
        Some(path) => Err(format!(
            "its path '{}' cannot be part of a URL",
            shown(path)
        )),
        None => Ok(paths),
    }
}

impl Service for Inquiry {
    fn started(&mut self, ctx: &mut Context) {
        let Some(request) = self.request.take() else {
            return;
        };
        if let Err(error) = ctx.request(&self.connect, request) {
            self.end(ctx, Err(error.to_string()));
        }
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
}

impl Outgoing for Inquiry {
    fn response(&mut self, ctx: &mut Context, client: ClientId, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Head(head) => {
                (self.status, self.reason) = (head.status(), shown(head.reason()));
            }
            ResponseEvent::Data(data) if self.body.len() + data.len() > MAX_BODY => {
                self.end(ctx, Err("its answer is too long".to_owned()));
                ctx.close(client, CloseCode::NORMAL, "");
            }
            ResponseEvent::Data(data) => self.body.extend_from_slice(data),
            ResponseEvent::End { .. } => self.end(ctx, self.read()),
            ResponseEvent::Failed { error, .. } if !ctx.is_stopping() => {
                self.end(ctx, Err(error.to_string()));
            }
            ResponseEvent::Failed { .. } => {}
        }
    }
}
