//! A chat room in one Rust program: `examples/chat.py` with the server inside.
//!
//! It shows a service with state: how to follow clients, send to one client, and send to all others.
//!
//!     cargo run --release --example chat               or `... chat 8080` for another port
//!     python3 -m websockets ws://127.0.0.1:7070/       (run it several times)

use std::collections::HashMap;

use outrigger::{ClientId, CloseReason, Config, Context, Message, Request, Server, Service};

/// The clients by name. The first message of a client is its name.
#[derive(Default)]
struct Room {
    names: HashMap<ClientId, String>,
}

impl Room {
    fn send_to_all(&self, ctx: &mut Context, text: &str) {
        ctx.broadcast(Message::Text(text), |client, _| {
            self.names.contains_key(&client)
        });
    }
}

impl Service for Room {
    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        ctx.send(client, Message::Text("What is your name?"));
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Message::Text(text) = message else { return };
        match self.names.get(&client) {
            Some(name) => {
                let line = format!("{name}: {text}");
                self.send_to_all(ctx, &line);
            }
            None => {
                self.names.insert(client, text.to_owned());
                self.send_to_all(
                    ctx,
                    &format!("{text} is here, one of {}.", self.names.len()),
                );
            }
        }
    }

    /// Called exactly once for each connected client, however the connection ends.
    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        if let Some(name) = self.names.remove(&client) {
            self.send_to_all(ctx, &format!("{name} has left."));
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args()
        .nth(1)
        .map_or(Ok(7070), |port| port.parse())?;
    let config = Config::new(([127, 0, 0, 1], port).into());
    let mut server = Server::bind(config, Room::default())?;
    server.stop_on_signals()?;
    println!("ws://{}/", server.local_addresses()[0]);
    server.run()?;
    Ok(())
}
