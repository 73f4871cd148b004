//! The Rust SDK as a client, with its own WebSocket transport: a session, and turns with updates.
//!
//! usage: client URL

use std::sync::{Arc, Mutex};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, InitializeRequest, NewSessionRequest, PromptRequest, SessionNotification,
    SessionUpdate, StopReason, TextContent,
};
use agent_client_protocol::{Agent, Client};
use agent_client_protocol_http::HttpClient;

const TURNS: usize = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("a URL is needed");
    let transport = HttpClient::with_endpoint(url)?;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let updates = heard.clone();
    Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _| {
                if let SessionUpdate::AgentMessageChunk(chunk) = notification.update
                    && let ContentBlock::Text(text) = chunk.content
                {
                    updates.lock().expect("no panic").push(text.text);
                }
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .connect_with(transport, |agent: ConnectionTo<Agent>| async move {
            let hello = InitializeRequest::new(ProtocolVersion::V1);
            agent.send_request(hello).block_task().await?;
            let session = NewSessionRequest::new("/");
            let session = agent.send_request(session).block_task().await?.session_id;
            for turn in 0..TURNS {
                let text = ContentBlock::Text(TextContent::new(format!("turn {turn}")));
                let prompt = PromptRequest::new(session.clone(), vec![text]);
                let answer = agent.send_request(prompt).block_task().await?;
                assert_eq!(answer.stop_reason, StopReason::EndTurn);
            }
            Ok(())
        })
        .await?;
    let expected: Vec<_> = (0..TURNS).map(|turn| format!("turn {turn}")).collect();
    assert_eq!(heard.lock().expect("no panic").concat(), expected.concat());
    println!("  the Rust SDK: {TURNS} turns ok");
    Ok(())
}
