//! A chat room as a Rust program with the library: a service with state that sends to one client and to all.
//!
//!     cargo run --release --example chat               listens on port 7070; `chat 8080` on port 8080
//!     python3 -m websockets ws://127.0.0.1:7070/       run several of these

use std::collections::HashMap;

use outrigger::{ClientId, CloseReason, Config, Context, Message, Request, Server, Service};

/// The names of the clients. The first message of a client is its name.
#[derive(Default)]
struct Room {
    names: HashMap<ClientId, String>,
}

impl Room {
    fn tell_all(&self, ctx: &mut Context, text: &str) {
        ctx.broadcast(Message::Text(text), |client, _| {
            self.names.contains_key(&client)
        });
    }
}

impl Service for Room {
    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        // If the client is gone, `disconnected` follows.
        ctx.send(client, Message::Text("What is your name?"));
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Message::Text(text) = message else { return };
        match self.names.get(&client) {
            Some(name) => {
                let line = format!("{name}: {text}");
                self.tell_all(ctx, &line);
            }
            None => {
                self.names.insert(client, text.to_owned());
                self.tell_all(
                    ctx,
                    &format!("{text} is here, one of {}.", self.names.len()),
                );
            }
        }
    }

    /// Called exactly once for each connected client, whatever ended the connection.
    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        if let Some(name) = self.names.remove(&client) {
            self.tell_all(ctx, &format!("{name} has left."));
        }
    }
}

fn main() -> std::io::Result<()> {
    let port = std::env::args()
        .nth(1)
        .map_or(7070, |port| port.parse().expect("a port"));
    let config = Config {
        listen: vec![([127, 0, 0, 1], port).into()],
        ..Config::default()
    };
    let mut server = Server::bind(config, Room::default())?;
    server.stop_on_signals(false)?;
    println!("ws://{}/", server.local_addresses()[0]);
    server.run().map(drop)
}
