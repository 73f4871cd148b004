//! Asks an Outrigger which MCP servers it serves.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use super::post::shown;
use crate::protocol::client::HttpRequest;
use crate::{ClientId, CloseCode, Connect, Context, ResponseEvent, Service};

/// The maximum length of the status that is read, in bytes.
const MAX_STATUS: usize = 16 << 20;

/// The paths of the MCP servers, or why they are not known.
type Listed = Result<Vec<String>, String>;

/// A service that asks for the status of a server, and ends.
#[derive(Debug)]
pub(crate) struct Listing {
    connect: Arc<Connect>,
    /// The refusal of the server, if it refuses.
    refusal: Option<String>,
    body: Vec<u8>,
    listed: Rc<RefCell<Listed>>,
}

impl Listing {
    /// Asks the server of `connect` for its status. The result is there when the loop has ended.
    pub(crate) fn new(mut connect: Connect) -> (Self, Rc<RefCell<Listed>>) {
        connect.target_mut().set_path("/status".to_owned());
        let listed = Rc::new(RefCell::new(Err("it was interrupted".to_owned())));
        let service = Self {
            connect: Arc::new(connect),
            refusal: None,
            body: Vec::new(),
            listed: Rc::clone(&listed),
        };
        (service, listed)
    }

    fn end(&self, ctx: &mut Context, listed: Listed) {
        *self.listed.borrow_mut() = listed;
        ctx.stop();
    }

    /// The paths of the services for MCP in a status.
    fn paths(&self) -> Listed {
        let status: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let services = status["services"].as_array();
        let services = services.ok_or("it is not an Outrigger")?.iter();
        let of_mcp = services.filter(|service| service["service"] == "mcp");
        let paths = of_mcp.filter_map(|service| service["path"].as_str());
        let paths: Vec<String> = paths.map(shown).collect();
        if paths.is_empty() {
            return Err("it serves no MCP server".to_owned());
        }
        Ok(paths)
    }
}

impl Service for Listing {
    fn started(&mut self, ctx: &mut Context) {
        let request = HttpRequest::without_body("GET").with_field("Accept", "application/json");
        if let Err(error) = ctx.request(&self.connect, request) {
            self.end(ctx, Err(error.to_string()));
        }
    }

    fn response(&mut self, ctx: &mut Context, client: ClientId, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Head(head) if head.status() != 200 => {
                let reason = shown(head.reason());
                self.refusal = Some(format!("it answered {} {reason}", head.status()));
            }
            ResponseEvent::Head(_) => {}
            ResponseEvent::Data(data) if self.body.len() + data.len() > MAX_STATUS => {
                self.end(ctx, Err("its status is too long".to_owned()));
                ctx.close(client, CloseCode::NORMAL, "");
            }
            ResponseEvent::Data(data) => self.body.extend_from_slice(data),
            ResponseEvent::End { .. } => {
                let listed = match self.refusal.take() {
                    Some(refusal) => Err(refusal),
                    None => self.paths(),
                };
                self.end(ctx, listed);
            }
            ResponseEvent::Failed { error, .. } if !ctx.is_stopping() => {
                self.end(ctx, Err(error.to_string()));
            }
            ResponseEvent::Failed { .. } => {}
        }
    }
}
