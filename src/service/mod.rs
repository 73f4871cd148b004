//! The services of the `outrigger` program. A library user can serve each of them too.
//!
//! | service | a client gets |
//! |---|---|
//! | [`Echo`] | every message back |
//! | [`App`] | a program that reads events and writes commands, one JSON object per line |
//! | [`Agent`] | one JSON-RPC agent process, shared by all clients |
//! | [`Mcp`] | an MCP server over Streamable HTTP or WebSocket |
//! | [`PipePerClient`] | a program of its own, whose standard input and output are the messages |
//! | [`PipeShared`] | the same program as all other clients |
//! | [`Terminal`] | a program on a terminal of its own |
//! | [`Processes`] | an HTTP API that starts, watches and signals processes |
//!
//! [`Bridge`] is a client instead: it connects to a server and carries messages between it and the process's own standard
//! streams.
//!
//! [`Routes`] combines several services behind one listener.

/// The methods of a [`Service`](crate::Service) that is a [`State`](crate::record::State), and whose clients pass to the next program.
/// `check_state` checks in the rehearsal, too, that the state agrees with the settings. `watch_again` follows if this is no rehearsal.
macro_rules! passes_on {
    () => {
        fn save<'a>(&'a self, to: &mut crate::record::Saver<'a>) {
            crate::record::State::save(self, to);
        }

        fn restore(
            &mut self,
            ctx: &mut crate::Context,
            from: &mut crate::record::Loader,
        ) -> Result<(), crate::record::RecordError> {
            crate::record::State::load(self, from)?;
            self.check_state()?;
            match from.is_rehearsal() {
                true => Ok(()),
                false => self.watch_again(ctx),
            }
        }
    };
}

mod advice;
pub mod agent;
pub mod app;
#[cfg(feature = "client")]
pub(crate) mod attach;
mod child;
pub(crate) mod connect;
mod deadlines;
mod echo;
mod endpoint;
pub(crate) mod framing;
pub(crate) mod id_map;
mod json;
pub(crate) mod jsonrpc;
pub(crate) mod lines;
#[cfg(feature = "mcp")]
pub(crate) mod mcp;
#[cfg(any(feature = "mcp", feature = "client"))]
mod mcp_tools;
mod pipe;
mod pipe_program;
pub mod process;
mod routes;
mod sharing;
mod silence;

pub use advice::{Advise, Problem};
pub use agent::{Agent, AgentConfig};
pub use app::{App, AppConfig};
pub use child::{OnFailure, RestartLimit};
#[cfg(feature = "client")]
pub(crate) use connect::{Answer, HttpBridge, HttpBridgeConfig, Inquiry, mcp_paths};
pub use connect::{Bridge, BridgeConfig};
pub use echo::Echo;
pub use endpoint::{Endpoint, ParseEndpointError};
pub use framing::{Framing, ParseFramingError};
#[cfg(feature = "mcp")]
pub use mcp::{Mcp, McpConfig, McpShare, McpStart, ProgramPlace};
pub use pipe_program::{PipeConfig, PipePerClient, PipeShared};
pub use process::{
    Compat, Processes, ProcessesConfig, RecordConfig, SessionCommand, Terminal, TerminalConfig,
};
#[cfg(feature = "cli")]
pub(crate) use routes::Pages;
pub use routes::{Routes, RoutesBuilder, RoutesError};
