//! Clients of the library tungstenite are served.

use crate::common::{TestServer, patient};
use outrigger::{Cause, CloseCode};
use tungstenite::protocol::CloseFrame;
use tungstenite::{Message, connect};

#[test]
fn text_binary_ping_and_close() {
    let server = TestServer::echo(patient());
    let (mut socket, response) =
        connect(format!("ws://{}/chat?room=1", server.address)).expect("a connection");
    assert_eq!(response.status(), 101);
    let client = server.connected();
    for message in [
        Message::text("hello"),
        Message::text(String::new()),
        Message::text("κόσμε ".repeat(50_000)),
        Message::binary(vec![0, 255, 7]),
        Message::binary(vec![42; 3 << 20]),
    ] {
        socket.send(message.clone()).expect("sent");
        assert_eq!(socket.read().expect("an echo"), message);
    }
    socket.send(Message::Ping("ping".into())).expect("sent");
    assert_eq!(socket.read().expect("a PONG"), Message::Pong("ping".into()));
    let frame = CloseFrame {
        code: 4321.into(),
        reason: "bye".into(),
    };
    socket.close(Some(frame)).expect("closing");
    while socket.read().is_ok() {}
    let ending = server.disconnected(client);
    assert_eq!(
        (ending.cause, ending.code, &*ending.reason),
        (Cause::PeerClose, CloseCode(4321), "bye")
    );
}

#[test]
fn fifty_concurrent_clients_each_get_their_own_echoes() {
    let server = TestServer::echo(patient());
    let address = server.address;
    let threads: Vec<_> = (0..50)
        .map(|n| {
            std::thread::spawn(move || {
                let (mut socket, _) = connect(format!("ws://{address}/{n}")).expect("a connection");
                for round in 0..100 {
                    let message = Message::text(format!("{n}-{round}"));
                    socket.send(message.clone()).expect("sent");
                    assert_eq!(socket.read().expect("an echo"), message);
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("all its own"));
}
