//! The Rust SDK's own server of WebSocket, with a process of an agent for each connection.
//!
//! usage: rust_sdk COMMAND [ARGUMENT...]        prints its URL

use agent_client_protocol::AcpAgent;
use agent_client_protocol_http::AcpHttpServer;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("ws://{}/acp", listener.local_addr()?);
    let command: Vec<String> = std::env::args().skip(1).collect();
    let agent = move || AcpAgent::from_args(command.clone()).expect("a command is needed");
    axum::serve(listener, AcpHttpServer::new(agent).into_router()).await
}
