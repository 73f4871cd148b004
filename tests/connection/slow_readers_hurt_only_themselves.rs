//! If a client does not read, the server stops reading from it, bounds its queue, and serves other clients as before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};

use crate::common::traces::eventually;
use crate::common::{BINARY, CLOSE, PATIENCE, TEXT, TestServer, Told, Wire, frame, patient};
use outrigger::{Cause, ClientId, Context, Message, Request, Server, Service};

#[test]
fn an_echo_client_that_writes_far_ahead_of_its_reading_loses_nothing() {
    // If the server kept reading, 64 MiB of replies would be queued against a limit of 1 MiB.
    let server = TestServer::echo({
        let mut config = patient();
        config.max_outbound = 1 << 20;
        config
    });
    let wire = Wire::connect(server.address, "/");
    let mut writer = Wire {
        stream: wire.stream.try_clone().expect("a second handle"),
    };
    let mut reader = wire;
    let count = 1024u32;
    let writing = std::thread::spawn(move || {
        for n in 0..count {
            let mut payload = vec![0; 64 << 10];
            payload[..4].copy_from_slice(&n.to_be_bytes());
            writer.send(&frame(true, BINARY, &payload));
        }
    });
    // The writer has filled the sockets and is blocked, as the server's counters show.
    eventually("the output is queued", || {
        let status = server.handle.status().expect("the server runs");
        let queued = status
            .clients
            .first()
            .map_or(0, |client| client.queued_bytes);
        assert!(queued <= 1 << 20, "{queued}");
        queued > 256 << 10
    });
    for n in 0..count {
        let payload = reader.read_frame().payload;
        assert_eq!(payload.len(), 64 << 10);
        assert_eq!(payload[..4], n.to_be_bytes(), "in order, none lost");
    }
    writing.join().expect("all was written");
}

#[test]
fn many_small_messages_in_one_read_pause_at_the_soft_limit() {
    // The replies are a hundred times as long as the requests, so input that was already read must wait, too.
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let server = TestServer::start(
        {
            let mut config = patient();
            config.max_outbound = 2 << 20;
            config
        },
        move |ctx, client, _| {
            count.fetch_add(1, Ordering::Relaxed);
            ctx.try_send(client, Message::Binary(&[5; 10_000]))
                .expect("its queue is bounded by holding back its input");
        },
    );
    let mut wire = Wire::connect(server.address, "/");
    wire.send(&frame(true, TEXT, &[b'x'; 100]).repeat(2000));
    eventually("the output is queued", || {
        let status = server.handle.status().expect("the server runs");
        status.clients[0].queued_bytes >= 256 << 10
    });
    assert!(handled.load(Ordering::Relaxed) < 2000, "the rest waits");
    for _ in 0..2000 {
        assert_eq!(wire.read_frame().payload.len(), 10_000);
    }
    assert_eq!(handled.load(Ordering::Relaxed), 2000);
}

#[test]
fn others_are_served_while_one_does_not_read() {
    let server = TestServer::echo(patient());
    let slow = Wire::connect(server.address, "/");
    let slow_id = server.connected();
    let mut quick = Wire::connect(server.address, "/");
    for round in 0..200u32 {
        server
            .handle
            .send(slow_id, vec![0; 30_000])
            .expect("the server runs");
        quick.send_frame(BINARY, &round.to_be_bytes());
        assert_eq!(quick.read_frame().payload, round.to_be_bytes());
    }
    drop(slow);
}

#[test]
fn drained_is_called_when_the_queue_is_empty() {
    let server = TestServer::echo(patient());
    let mut wire = Wire::connect(server.address, "/");
    let client = server.connected();
    for _ in 0..100 {
        server
            .handle
            .send(client, vec![3; 70_000])
            .expect("the server runs");
    }
    server.client_count();
    for _ in 0..100 {
        assert_eq!(wire.read_frame().payload.len(), 70_000);
    }
    loop {
        if let Told::Drained(drained) = server.told() {
            assert_eq!(drained, client);
            break;
        }
    }
    let queued = server.handle.status().expect("it runs").clients[0].queued_bytes;
    assert_eq!(queued, 0);
}

#[test]
fn a_broadcast_reaches_all_clients_in_order_and_waits_for_none() {
    let (sender, closed) = mpsc::channel();
    let server = TestServer::start(
        {
            let mut config = patient();
            config.max_outbound = 1 << 20;
            config
        },
        move |ctx, client, message| {
            let reached = ctx.broadcast(message, |id, path| id != client && path == "/room");
            let _ = sender.send(reached);
        },
    );
    let mut speaker = Wire::connect(server.address, "/room");
    let mut listeners: Vec<_> = (0..20)
        .map(|_| Wire::connect(server.address, "/room"))
        .collect();
    let mut elsewhere = Wire::connect(server.address, "/other");
    let deaf = Wire::connect(server.address, "/room");
    for round in 0..50u32 {
        let mut payload = vec![0; 100_000];
        payload[..4].copy_from_slice(&round.to_be_bytes());
        speaker.send_frame(BINARY, &payload);
        for listener in &mut listeners {
            assert_eq!(listener.read_frame().payload[..4], round.to_be_bytes());
        }
        let reached = closed
            .recv_timeout(PATIENCE)
            .expect("the message is handled");
        assert!(
            (20..=21).contains(&reached),
            "the deaf one is cut off at some point, the others never: {reached}"
        );
    }
    drop(deaf);
    // The client elsewhere got none of it, and its messages still reach the room.
    elsewhere.send_frame(TEXT, b"from outside");
    assert_eq!(listeners[0].read_frame().payload, b"from outside");
    elsewhere.send_close(1000);
    assert_eq!(
        elsewhere.read_frame().opcode,
        CLOSE,
        "the first frame it gets"
    );
}

#[test]
fn output_not_yet_written_to_the_socket_does_not_count_as_unread() {
    // The bug: output that was not written yet counted as unread, and a client that reads was disconnected.
    let mut config = patient();
    config.max_outbound = 64 << 10;
    config.soft_outbound = 64 << 10;
    let server = TestServer::start(config, |ctx, client, message| match message.as_bytes() {
        b"many" => (0..300).for_each(|_| {
            ctx.try_send(client, Message::Binary(&[1; 1000]))
                .expect("it reads")
        }),
        b"others" => {
            for other in ctx.clients() {
                (0..300).for_each(|_| {
                    ctx.try_send(other, Message::Binary(&[2; 1000]))
                        .expect("it reads")
                });
            }
        }
        b"all" => (0..300)
            .for_each(|_| assert_eq!(ctx.broadcast(Message::Binary(&[3; 1000]), |_, _| true), 2)),
        _ => ctx.try_send(client, message).expect("it reads"),
    });
    let mut wire = Wire::connect(server.address, "/");
    let mut other = Wire::connect(server.address, "/");
    wire.send(&frame(true, BINARY, &[0; 100]).repeat(3000));
    for _ in 0..3000 {
        assert_eq!(wire.read_frame().payload, [0; 100]);
    }
    for (word, wires) in [(&b"many"[..], 1), (b"others", 2), (b"all", 2)] {
        wire.send_frame(TEXT, word);
        for wire in [&mut wire, &mut other].into_iter().take(wires) {
            for _ in 0..300 {
                assert_eq!(wire.read_frame().payload.len(), 1000);
            }
        }
    }
}

#[test]
fn a_peer_that_ends_its_direction_still_gets_its_output() {
    // The bug: at the end of input the output was flushed once and the rest dropped, including our CLOSE.
    let server = TestServer::start(patient(), |ctx, client, _| {
        for _ in 0..60 {
            ctx.try_send(client, Message::Binary(&[4; 100_000]))
                .expect("within the limit");
        }
    });
    for close in [true, false] {
        let mut wire = Wire::connect(server.address, "/");
        let client = server.connected();
        wire.send_frame(TEXT, b"go");
        if close {
            wire.send_close(1000);
        }
        wire.end_output();
        for _ in 0..60 {
            assert_eq!(wire.read_frame().payload.len(), 100_000);
        }
        if close {
            assert_eq!(wire.read_close().0, 1000);
        }
        wire.expect_end();
        let cause = if close { Cause::PeerClose } else { Cause::Eof };
        assert_eq!(server.disconnected(client).cause, cause);
    }
}

/// Pauses the client that sends "0", and resumes it when another client's output has drained, which happens at once.
#[derive(Default)]
struct Holding {
    reader: Option<ClientId>,
    writer: Option<ClientId>,
    heard: Option<Sender<String>>,
}

impl Service for Holding {
    fn connected(&mut self, _: &mut Context, client: ClientId, _: &Request<'_>) {
        if self.reader.is_none() {
            self.reader = Some(client);
        } else {
            self.writer = Some(client);
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let (Message::Text(text), Some(reader), Some(heard)) = (message, self.reader, &self.heard)
        else {
            return;
        };
        heard.send(text.to_owned()).expect("the test listens");
        if text == "0" {
            ctx.set_held(client, true);
            for _ in 0..27 {
                ctx.send(reader, Message::Binary(&[0; 10_000]));
            }
        }
    }

    fn drained(&mut self, ctx: &mut Context, _: ClientId) {
        if let Some(writer) = self.writer {
            ctx.set_held(writer, false);
        }
    }
}

#[test]
fn held_input_is_processed_before_new_input() {
    let (sender, heard) = mpsc::channel();
    let mut config = patient();
    config.turn_bytes = 70_000;
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    let service = Holding {
        heard: Some(sender),
        ..Holding::default()
    };
    let server = Server::bind(config, service).expect("a free port");
    let address = server.local_addresses()[0].tcp().expect("TCP");
    let handle = server.handle();
    let running = std::thread::spawn(move || server.run().map(drop));
    let mut reader = Wire::connect(address, "/");
    let reading = std::thread::spawn(move || while reader.read_frame().opcode != CLOSE {});
    let mut writer = Wire::connect(address, "/");
    // After a long message the first read is small.
    let long = frame(true, BINARY, &[7; 200_000]);
    writer.send(&long[..1000]);
    writer.send(&long[1000..]);
    let texts: Vec<String> = (0..6000).map(|number| number.to_string()).collect();
    let frames: Vec<Vec<u8>> = texts
        .iter()
        .map(|text| frame(true, TEXT, text.as_bytes()))
        .collect();
    writer.send(&frames.concat());
    for text in &texts {
        let heard = heard.recv_timeout(PATIENCE);
        assert_eq!(heard.as_ref(), Ok(text), "in order, and all of it");
    }
    handle.stop().expect("it runs");
    drop(writer);
    reading.join().expect("it was closed");
    running.join().expect("no panic").expect("no error");
}
