//! A chat room in one Rust program: `examples/chat.py` with the server inside.
//!
//! It shows a service with state: how to follow clients, send to one client, and publish to all clients of a room.
//!
//!     cargo run --release --example chat               or `... chat 8080` for another port
//!     python3 -m websockets ws://127.0.0.1:7070/       (run it several times)

use std::collections::HashMap;

use outrigger::{ClientId, CloseReason, Config, Context, Message, Request, Server, Service};

/// The topic of all clients that have a name.
const ROOM: &str = "room";

/// The names of the clients. The first message of a client is its name.
#[derive(Default)]
struct Room {
    names: HashMap<ClientId, String>,
}

impl Service for Room {
    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        ctx.send(client, Message::Text("What is your name?"));
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Message::Text(text) = message else { return };
        match self.names.get(&client) {
            Some(name) => {
                ctx.publish(ROOM, &format!("{name}: {text}"));
            }
            // A client that is being closed cannot be subscribed.
            None if ctx.subscribe(client, ROOM).is_ok() => {
                self.names.insert(client, text.to_owned());
                let count = self.names.len();
                ctx.publish(ROOM, &format!("{text} is here, one of {count}."));
            }
            None => {}
        }
    }

    /// Called exactly once for each connected client, however the connection ends. The client has left its topics.
    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        if let Some(name) = self.names.remove(&client) {
            ctx.publish(ROOM, &format!("{name} has left."));
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
