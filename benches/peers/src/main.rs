//! Servers of other libraries, which `cargo bench --bench throughput` and `--bench tls` compare with Outrigger.
//!
//! usage: peers tungstenite|tokio-tungstenite|fastwebsockets|tokio-tungstenite-publish
//!        peers tokio-rustls|tokio-rustls-batched CERTIFICATE KEY
//!
//! It listens on a free port of 127.0.0.1 and prints the port. Each server follows the library's own examples, with
//! TCP_NODELAY. All but one send each message back. The one with "publish" sends it to all clients on the path /member. Those on tokio have one thread, as Outrigger has. The two with tokio-rustls serve tokio-tungstenite over TLS.
//! The first one flushes each echo. The second one flushes when it has echoed all that it received.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use fastwebsockets::{FragmentCollector, OpCode, upgrade};
use futures_util::future::ready;
use futures_util::{SinkExt, StreamExt, TryStreamExt};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let tls = match (arguments.next(), arguments.next()) {
        (Some(certificate), Some(key)) => Some(acceptor(&certificate, &key)?),
        _ => None,
    };
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
        let sender = broadcast::Sender::new(1024);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            match (name.as_str(), tls.clone()) {
                ("tokio-tungstenite", None) => drop(tokio::spawn(echo_with_tungstenite(stream))),
                ("tokio-tungstenite-publish", None) => {
                    drop(tokio::spawn(publish_with_tungstenite(
                        stream,
                        sender.clone(),
                    )));
                }
                ("fastwebsockets", None) => drop(tokio::spawn(echo_with_fastwebsockets(stream))),
                ("tokio-rustls", Some(tls)) => drop(tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        echo_with_tungstenite(stream).await;
                    }
                })),
                ("tokio-rustls-batched", Some(tls)) => drop(tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        echo_in_batches(stream).await;
                    }
                })),
                _ => return Err(io::Error::other("see the comment in src/main.rs")),
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

/// TLS 1.2 and 1.3 with session tickets.
fn acceptor(certificate: &str, key: &str) -> io::Result<TlsAcceptor> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
        .map_err(io::Error::other)?
        .collect();
    let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain.map_err(io::Error::other)?, key)
        .map_err(io::Error::other)?;
    config.ticketer = ring::Ticketer::new().map_err(io::Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn echo_with_tungstenite<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
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

async fn echo_in_batches<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else {
        return;
    };
    let (writer, reader) = socket.split();
    let messages = reader.try_filter(|message| ready(message.is_text() || message.is_binary()));
    let _ = messages.forward(writer).await;
}

async fn publish_with_tungstenite<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    sender: broadcast::Sender<Message>,
) {
    let mut is_member = false;
    let look = |request: &server::Request, response| {
        is_member = request.uri().path() == "/member";
        Ok(response)
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, look).await else {
        return;
    };
    let (mut writer, mut reader) = socket.split();
    let read = async {
        while let Some(Ok(message)) = reader.next().await {
            if message.is_text() || message.is_binary() {
                // Without members, nobody gets it.
                let _ = sender.send(message);
            }
        }
    };
    if !is_member {
        return read.await;
    }
    let mut receiver = sender.subscribe();
    // Flushes when it has taken all messages that are there.
    let write = async {
        while let Ok(message) = receiver.recv().await {
            writer.feed(message).await?;
            while let Ok(message) = receiver.try_recv() {
                writer.feed(message).await?;
            }
            writer.flush().await?;
        }
        Ok::<(), tungstenite::Error>(())
    };
    tokio::select! {
        () = read => {}
        _ = write => {}
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
