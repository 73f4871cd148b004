//! Outrigger in a program that uses tokio, in two ways:
//!
//! 1. The server has a thread of its own. Its messages go to a task through a channel, and tasks answer through a handle.
//! 2. Only the protocol, in a task for each connection, with permessage-deflate.
//!
//! Run `cargo run --example tokio [PORT] [PORT]`, then for example `outrigger connect --no-json ws://127.0.0.1:7001/`.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use outrigger::protocol::deflate::DeflateConfig;
use outrigger::protocol::driver::{Driver, Event};
use outrigger::protocol::{NextStep, Time};
use outrigger::{
    Accept, ClientId, Config, Context, Handle, Message, OwnedMessage, Server, Service,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A service that passes messages on to a task.
struct Forward {
    messages: UnboundedSender<(ClientId, OwnedMessage)>,
}

impl Service for Forward {
    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        // Until the task has answered, the client is not read, so the channel holds one message for each client.
        ctx.set_held(client, true);
        if self.messages.send((client, message.into())).is_err() {
            ctx.stop();
        }
    }
}

/// Answers the messages of the server's clients, in any task.
async fn answer(
    mut messages: UnboundedReceiver<(ClientId, OwnedMessage)>,
    handle: Handle<Forward>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    while let Some((client, message)) = messages.recv().await {
        tokio::time::sleep(Duration::from_millis(10)).await; // A database, another service, ...
        handle.send(client, message)?;
        handle.post(move |_, ctx| ctx.set_held(client, false))?;
    }
    Ok(())
}

/// Echoes the messages of one connection.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let begin = Instant::now();
    let now = || Time::from_millis(begin.elapsed().as_millis() as u64);
    let mut driver =
        Driver::new(now(), |_| Ok(Accept::default())).with_deflate(DeflateConfig::default());
    let mut buffer = vec![0; 16 << 10];
    while driver.next_step() == NextStep::Continue {
        let deadline = driver.deadline().map(|at| at.since(now()));
        let patience = deadline.unwrap_or(Duration::from_secs(3600));
        match tokio::time::timeout(patience, stream.read(&mut buffer)).await {
            Ok(count) => match count? {
                0 => driver.handle_end(now()),
                count => driver.handle_input(&buffer[..count]),
            },
            Err(_) => driver.handle_timeout(now()),
        }
        while let Some(event) = driver.poll_event(now()) {
            match event {
                Event::Opened => println!("a client is connected"),
                Event::Message(message) => driver.send(now(), &message),
                Event::Closed(reason) => println!("closed: {reason}"),
            }
            // A peer that does not read makes this wait, and is not read meanwhile.
            stream.write_all(&driver.take_output()).await?;
        }
        stream.write_all(&driver.take_output()).await?;
    }
    // A peer whose request was rejected reads the response before the connection ends.
    stream.shutdown().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut ports = std::env::args().skip(1);
    let mut address = |port: &str| format!("127.0.0.1:{}", ports.next().as_deref().unwrap_or(port));

    // 1. A thread with the event loop, and a task that answers.
    let (messages, received) = unbounded_channel();
    let config = Config::new(address("7001").parse()?);
    let server = Server::bind(config, Forward { messages })?;
    println!(
        "outrigger: listening on {}",
        server.local_addresses()[0].url("/")
    );
    let handle = server.handle();
    let thread = std::thread::spawn(move || server.run().map(drop));
    tokio::spawn(answer(received, handle.clone()));

    // 2. A task for each connection.
    let listener = TcpListener::bind(address("7002")).await?;
    println!("tokio: listening on ws://{}/", listener.local_addr()?);
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(async move {
                if let Err(error) = echo(stream).await {
                    eprintln!("a connection failed: {error}");
                }
            });
        }
    };
    tokio::select! {
        ended = accept => { let ended: io::Result<()> = ended; ended? }
        signal = tokio::signal::ctrl_c() => signal?,
    }
    handle.stop()?;
    thread.join().expect("the server does not panic")?;
    Ok(())
}
