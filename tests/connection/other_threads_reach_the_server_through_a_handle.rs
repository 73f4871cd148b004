//! A `Handle` sends, broadcasts, closes, runs functions with the service, queries the status and stops the server from any
//! thread.

use crate::common::{BINARY, PATIENCE, TEXT, TestServer, Told, Wire, patient};
use outrigger::{CloseCode, OwnedMessage, Stopped};

#[test]
fn commands_of_a_thread_run_in_order() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::connect(server.address, "/here");
    let client = server.connected();
    let handle = server.handle.clone();
    std::thread::spawn(move || {
        for n in 0..5000 {
            handle.send(client, n.to_string()).expect("the server runs");
        }
        handle.broadcast(vec![1, 2, 3]).expect("the server runs");
        handle
            .close(client, CloseCode(4000), "that was all")
            .expect("the server runs");
        handle
            .send(client, "too late")
            .expect("only a stopped server is an error");
    });
    for n in 0..5000 {
        let frame = wire.read_frame();
        assert_eq!(
            (frame.opcode, frame.payload),
            (TEXT, n.to_string().into_bytes())
        );
    }
    assert_eq!(wire.read_frame().payload, [1, 2, 3]);
    assert_eq!(wire.read_close(), (4000, "that was all".to_owned()));
}

#[test]
fn threads_publish_to_the_members_of_a_topic() {
    let server = TestServer::echo(patient());
    let mut wires = ["/a", "/a", "/b"].map(|path| Wire::connect(server.address, path));
    for _ in &wires {
        let client = server.connected();
        let subscribe = server.handle.post(move |_, ctx| {
            let path = ctx.path(client).expect("connected").to_owned();
            assert_eq!(ctx.subscribe(client, &path), Ok(true));
        });
        subscribe.expect("the server runs");
    }
    let handle = server.handle.clone();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let handle = handle.clone();
            std::thread::spawn(move || {
                for n in 0..1000 {
                    let message = format!("{thread} {n}");
                    handle.publish("/a", message).expect("the server runs");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("it does not panic");
    }
    handle.broadcast("end").expect("the server runs");
    for wire in &mut wires[..2] {
        let mut next = [0; 4];
        for _ in 0..4000 {
            let payload = String::from_utf8(wire.read_frame().payload).expect("UTF-8");
            let (thread, n) = payload.split_once(' ').expect("two numbers");
            let expected = &mut next[thread.parse::<usize>().expect("a number")];
            assert_eq!(n, expected.to_string(), "in the order of its thread");
            *expected += 1;
        }
    }
    for wire in &mut wires {
        assert_eq!(wire.read_frame().payload, b"end");
    }
}

#[test]
fn a_posted_function_runs_with_the_service_in_the_order_of_the_commands() {
    let server = TestServer::echo(patient());
    let mut wires = ["/a", "/b"].map(|path| Wire::connect(server.address, path));
    let clients = [server.connected(), server.connected()];
    let handle = server.handle.clone();
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        handle.send(clients[1], "before").expect("the server runs");
        handle
            .post(move |service, ctx| {
                service.waiting = None;
                ctx.broadcast("to b", |_, path| path == "/b");
                let paths = clients.map(|client| ctx.path(client).map(str::to_owned));
                answer.send(paths).expect("the test waits");
            })
            .expect("the server runs");
        handle.send(clients[1], "after").expect("the server runs");
    });
    let paths = answered.recv_timeout(PATIENCE).expect("the function runs");
    assert_eq!(paths, [Some("/a".to_owned()), Some("/b".to_owned())]);
    for expected in ["before", "to b", "after"] {
        assert_eq!(wires[1].read_frame().payload, expected.as_bytes());
    }
    for (wire, client) in wires.into_iter().zip(clients) {
        drop(wire);
        server.disconnected(client);
    }
    let (answer, answered) = std::sync::mpsc::channel();
    server
        .handle
        .post(move |_, ctx| {
            let sent = answer.send(ctx.path(clients[0]).is_none());
            sent.expect("the test waits");
        })
        .expect("the server runs");
    assert_eq!(answered.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn status_matches_the_registry() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::connect(server.address, "/here");
    let client = server.connected();
    wire.send_frame(BINARY, b"12345");
    wire.read_frame();
    let status = server.handle.status().expect("the server runs");
    assert!(status.running);
    assert_eq!(status.listen, [server.address.to_string()]);
    assert_eq!(status.client_count(), 1);
    let of_client = &status.clients[0];
    assert_eq!((of_client.id, of_client.path.as_str()), (client, "/here"));
    assert_eq!(
        of_client.remote.to_string(),
        wire.stream.local_addr().expect("connected").to_string()
    );
    assert_eq!(
        (
            of_client.traffic.messages_in,
            of_client.traffic.messages_out
        ),
        (1, 1)
    );
    assert_eq!(
        of_client.traffic.bytes_in,
        crate::common::request("/here").len() as u64 + 2 + 4 + 5
    );
    let json = status.to_json();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["client_count"], &json["clients"][0]["path"]),
        (&1.into(), &"/here".into())
    );
}

#[test]
fn a_handle_outlives_its_server() {
    let server = TestServer::echo(patient());
    let handle = server.handle.clone();
    server.stop();
    assert_eq!(handle.broadcast("anyone?"), Err(Stopped));
    assert_eq!(handle.stop(), Err(Stopped));
    assert!(handle.status().is_err());
}

#[test]
fn text_and_binary_messages_keep_their_type() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::connect(server.address, "/");
    server.connected();
    wire.send_frame(TEXT, b"t");
    wire.send_frame(BINARY, b"b");
    assert!(matches!(server.told(), Told::Message(_, OwnedMessage::Text(text)) if text == "t"));
    assert!(
        matches!(server.told(), Told::Message(_, OwnedMessage::Binary(bytes)) if bytes == b"b")
    );
}
