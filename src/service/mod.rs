//! What a client reaches: the services of the `outrigger` program.

pub mod agent;
pub mod app;
mod child;
mod echo;
mod endpoint;
mod lines;
mod pipe;
pub mod process;
mod routes;
mod text;

pub use agent::{Agent, AgentConfig, AgentPerClient};
pub use app::{App, AppConfig};
pub use echo::Echo;
pub use endpoint::{Endpoint, ParseEndpointError};
pub use process::{Processes, ProcessesConfig, Terminal, TerminalConfig};
pub use routes::Routes;
