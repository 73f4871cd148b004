//! Echo servers of other libraries, which `cargo bench --bench throughput` compares with Outrigger.
//!
//! usage: peers tungstenite|tokio-tungstenite|fastwebsockets
//!
//! It listens on a free port of 127.0.0.1 and prints the port. Each server follows the library's own examples, with
//! TCP_NODELAY. Those on tokio have one thread, as Outrigger has.

use std::io;
use std::net::TcpListener;

use fastwebsockets::{FragmentCollector, OpCode, upgrade};
use futures_util::{SinkExt, StreamExt};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

fn main() -> io::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    if name == "tungstenite" {
        return serve_with_threads(&listener);
    }
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            match name.as_str() {
                "tokio-tungstenite" => drop(tokio::spawn(echo_with_tungstenite(stream))),
                "fastwebsockets" => drop(tokio::spawn(echo_with_fastwebsockets(stream))),
                _ => {
                    return Err(io::Error::other(
                        "usage: peers tungstenite|tokio-tungstenite|fastwebsockets",
                    ));
                }
            }
        }
    })
}

fn serve_with_threads(listener: &TcpListener) -> io::Result<()> {
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        std::thread::spawn(move || {
            let Ok(mut socket) = tungstenite::accept(stream) else {
                return;
            };
            while let Ok(message) = socket.read() {
                if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

async fn echo_with_tungstenite(stream: tokio::net::TcpStream) {
    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else {
        return;
    };
    let (mut writer, mut reader) = socket.split();
    while let Some(Ok(message)) = reader.next().await {
        if (message.is_text() || message.is_binary()) && writer.send(message).await.is_err() {
            return;
        }
    }
}

async fn echo_with_fastwebsockets(stream: tokio::net::TcpStream) {
    let service = hyper::service::service_fn(|mut request: Request<Incoming>| async move {
        let (response, socket) = upgrade::upgrade(&mut request)?;
        tokio::spawn(async move {
            let Ok(socket) = socket.await else { return };
            let mut socket = FragmentCollector::new(socket);
            while let Ok(frame) = socket.read_frame().await {
                match frame.opcode {
                    OpCode::Close => return,
                    OpCode::Text | OpCode::Binary => {
                        if socket.write_frame(frame).await.is_err() {
                            return;
                        }
                    }
                    _ => {}
                }
            }
        });
        Ok::<Response<Empty<Bytes>>, fastwebsockets::WebSocketError>(response)
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let _ = connection.with_upgrades().await;
}
