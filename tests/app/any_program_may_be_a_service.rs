//! `outrigger pipe`: the standard input and output of any program are the messages of clients, in each framing, for a program
//! of each client and for one that all clients share.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually, expect_gone, is_zombie};
use crate::common::{BINARY, CLOSE, Frame, TEXT, Wire, call};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Starts `pipe` with a shell script as its program.
fn pipe(options: &[&str], script: &str) -> Program {
    Program::start(&[&["pipe"][..], options, &["--", "sh", "-c", script]].concat())
}

fn text(wire: &mut Wire) -> String {
    let frame = wire.read_frame();
    assert_eq!(frame.opcode, TEXT, "{frame:?}");
    String::from_utf8(frame.payload).expect("UTF-8")
}

/// Waits until a figure of the only client no longer changes, and returns it.
fn settled(address: SocketAddr, figure: &str) -> u64 {
    let (mut last, mut same) = (0, 0);
    eventually("the client waits", || {
        let (_, status) = call(address, "GET", "/status", None);
        let now = status["clients"][0][figure].as_u64();
        let now = now.expect("the client is connected");
        same = if now == last && now > 10_000 {
            same + 1
        } else {
            0
        };
        last = now;
        same > 50
    });
    last
}

#[test]
fn each_message_is_a_line_and_each_line_a_message() {
    let server = pipe(&[], "exec cat");
    let mut wire = Wire::connect(server.address(), "/");
    for (opcode, sent, lines) in [
        (TEXT, &b"one"[..], &["one"][..]),
        (BINARY, b"two", &["two"]),
        (TEXT, b"", &[""]),
        (TEXT, b"a\nb\r\nc", &["a", "b", "c"]),
        (TEXT, b"\0 \xc3\xa9", &["\0 \u{e9}"]),
        (TEXT, b"last\r", &["last"]),
    ] {
        wire.send_frame(opcode, sent);
        for line in lines {
            assert_eq!(text(&mut wire), *line);
        }
    }
    // Only a binary message can carry what is not UTF-8.
    wire.send_frame(BINARY, b"\xff\xfe");
    let frame = wire.read_frame();
    assert_eq!((frame.opcode, &*frame.payload), (BINARY, &b"\xff\xfe"[..]));
    let large = vec![b'x'; 16 << 20];
    wire.send_frame(TEXT, &large);
    assert!(wire.read_frame().payload == large);
}

#[test]
fn a_client_gets_all_output_and_then_how_the_program_ended() {
    for (script, output, code, reason) in [
        (
            "echo a; printf b",
            &["a", "b"][..],
            1000,
            "Program exited with code 0",
        ),
        (
            "printf b; exit 3",
            &["b"],
            4011,
            "Program exited with code 3",
        ),
        (
            "printf half; kill -9 $$",
            &["half"],
            4011,
            "Program was killed by signal 9",
        ),
        ("exit 1", &[], 4011, "Program exited with code 1"),
        // The bug: only the log said why.
        (
            "printf b; echo first >&2; echo API key missing >&2; exit 3",
            &["b"],
            4011,
            "Program exited with code 3: API key missing",
        ),
        // One that writes much at its end.
        (
            "yes | head -n 20000; echo end",
            &["y"],
            1000,
            "Program exited with code 0",
        ),
    ] {
        let server = pipe(&[], script);
        let mut wire = Wire::connect(server.address(), "/");
        for line in output {
            assert_eq!(text(&mut wire), *line, "{script}");
        }
        if script.starts_with("yes") {
            let lines = std::iter::from_fn(|| Some(text(&mut wire)));
            assert_eq!(lines.take_while(|line| line != "end").count(), 19_999);
        }
        assert_eq!(wire.read_close(), (code, reason.to_owned()), "{script}");
    }
}

#[test]
fn raw_bytes_pass_in_both_directions() {
    let server = pipe(&["--framing", "raw"], "exec cat");
    let mut wire = Wire::connect(server.address(), "/");
    let bytes: Vec<u8> = (0..3_000_000).map(|at| (at * 7 / 3) as u8).collect();
    wire.send_frame(BINARY, &bytes);
    wire.send_frame(TEXT, "\u{e9}\n".as_bytes());
    let expected = [&bytes[..], "\u{e9}\n".as_bytes()].concat();
    let mut found = Vec::new();
    while found.len() < expected.len() {
        let Frame { opcode, payload } = wire.read_frame();
        assert_eq!(opcode, BINARY);
        found.extend(payload);
    }
    assert!(found == expected);
}

#[test]
fn content_length_separates_messages_in_both_directions() {
    let server = pipe(&["--framing", "content-length"], "exec cat");
    let mut wire = Wire::connect(server.address(), "/");
    let large = format!("{{\"x\":\"{}\"}}", "\u{e9}\r\n".repeat(300_000));
    for message in [r#"{"id":1}"#, "", "not JSON\n\nContent-Length: 3", &large] {
        wire.send_frame(TEXT, message.as_bytes());
        assert!(text(&mut wire) == message);
    }
    // What the program reads has the header of the protocol, and what it writes may have it in other forms.
    let read = TraceFile::new("pipe-headers");
    let script = format!(
        r"printf 'content-length:2\r\nContent-Type: x\r\nX-Trace: a b\r\n\r\n{{}}'; printf 'Content-Length: 1\n\n\377'; head -c 25 >{}",
        read.path()
    );
    let server = pipe(&["--framing", "content-length"], &script);
    let mut wire = Wire::connect(server.address(), "/");
    assert_eq!(text(&mut wire), "{}");
    let frame = wire.read_frame();
    assert_eq!((frame.opcode, &*frame.payload), (BINARY, &b"\xff"[..]));
    wire.send_frame(TEXT, b"wxyz");
    wire.send_frame(TEXT, b"");
    assert_eq!(wire.read_close().0, 1000);
    assert_eq!(read.text(), "Content-Length: 4\r\n\r\nwxyz");
}

#[test]
fn output_that_is_not_framed_ends_the_client_with_an_error_that_shows_it() {
    let long_line = "yes | tr -d '\\n' | head -c 5000000";
    for (framing, script, reason) in [
        (
            "content-length",
            r#"echo '{"jsonrpc":"2.0"}'; cat"#,
            r#"No Content-Length: {"jsonrpc":"2.0"}\n"#,
        ),
        (
            "content-length",
            "printf 'Listening on'; cat",
            "No Content-Length: Listening on",
        ),
        (
            "content-length",
            r"printf '\r\n'; cat",
            r"No Content-Length: \r\n",
        ),
        (
            "content-length",
            r"printf 'Content-Length: -5\r\n'; cat",
            r"Invalid header: Content-Length: -5\r\n",
        ),
        (
            "content-length",
            r"printf 'Content-Length: +5\r\n'; cat",
            r"Invalid header: Content-Length: +5\r\n",
        ),
        (
            "content-length",
            r"printf 'Content-Length: \r\n'; cat",
            r"Invalid header: Content-Length: \r\n",
        ),
        (
            "content-length",
            r"printf 'Content-Length: 1\r\nContent-Length: 1\r\n\r\na'; cat",
            r"Invalid header: Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
        ),
        (
            "content-length",
            r"printf 'Content-Length: 99999999999999999999999\r\n\r\n'; cat",
            "Content-Length over the message limit of 1000000 bytes",
        ),
        (
            "content-length",
            r"printf 'Content-Length: 1000001\r\n\r\n'; cat",
            "Content-Length over the message limit of 1000000 bytes",
        ),
        (
            "content-length",
            "printf 'Content-Type: '; yes x",
            "Header too long: Content-Type: x\\nx",
        ),
        (
            "content-length",
            r"printf 'Content-Length: 9\r\n\r\nabc'",
            "Output ended inside a message",
        ),
        (
            "lines",
            long_line,
            "Line over the message limit of 1000000 bytes",
        ),
    ] {
        let script = script.replace("yes x", "yes x | tr -d '\\n' | head -c 100000000; cat");
        let reason = reason.replace("x\\nx", &"x".repeat(86));
        let server = pipe(&["--framing", framing, "--max-message", "1000000"], &script);
        let mut wire = Wire::connect(server.address(), "/");
        assert_eq!(wire.read_close(), (4011, reason), "{script}");
    }
}

#[test]
fn the_environment_has_what_cgi_defines_and_no_secret() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"));
    let options = [
        "pipe",
        "--listen",
        "127.0.0.1:0",
        "--path",
        "/live",
        "--",
        "env",
    ];
    // Variables of the test's own environment may have several lines.
    command
        .args(options)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("OUTRIGGER_TOKEN", "s3cret-0123456789");
    command.envs([
        ("HTTP_PROXY", "inherited"),
        ("PATH_TRANSLATED", "inherited"),
        ("OTHER", "kept"),
    ]);
    let server = Program::spawn(&mut command);
    let mut wire = Wire::open(server.address());
    let target = "/live/a/b?x=1&token=s3cret-0123456789&resume=new&y";
    let request = String::from_utf8(crate::common::request(target)).expect("ASCII");
    let fields = "Proxy: http://evil\r\nAuthorization: Bearer s3cret-0123456789\r\nCookie: c=1\r\nX-Forwarded-For: 192.0.2.7\r\nHost";
    wire.send(request.replacen("Host", fields, 1).as_bytes());
    assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
    let mut variables = BTreeMap::new();
    loop {
        let frame = wire.read_frame();
        if frame.opcode == CLOSE {
            break;
        }
        let line = String::from_utf8(frame.payload).expect("UTF-8");
        let (name, value) = line.split_once('=').expect("a variable");
        variables.insert(name.to_owned(), value.to_owned());
    }
    let local = wire.stream.local_addr().expect("connected");
    let port = local.port().to_string();
    for (name, value) in [
        ("REMOTE_ADDR", "127.0.0.1"),
        ("REMOTE_PORT", &port),
        ("REQUEST_METHOD", "GET"),
        ("SCRIPT_NAME", "/live"),
        ("PATH_INFO", "/a/b"),
        ("QUERY_STRING", "x=1&y"),
        ("REQUEST_URI", "/live/a/b?x=1&y"),
        ("SERVER_NAME", "localhost"),
        ("HTTP_HOST", "localhost"),
        ("HTTP_X_FORWARDED_FOR", "192.0.2.7"),
        ("OTHER", "kept"),
    ] {
        assert_eq!(
            variables.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    let hidden = [
        "HTTP_PROXY",
        "HTTP_AUTHORIZATION",
        "HTTP_COOKIE",
        "PATH_TRANSLATED",
        "OUTRIGGER_TOKEN",
        "HTTPS",
    ];
    for name in hidden {
        assert!(!variables.contains_key(name), "{name}");
    }
    assert!(
        !format!("{variables:?}").contains("s3cret"),
        "{variables:?}"
    );
}

#[test]
fn a_program_ends_with_its_client() {
    let pids = TraceFile::new("pipe-group");
    let script = format!(
        "trap '' HUP; sleep 1000 & echo $! >>{}; cat >/dev/null; wait",
        pids.path()
    );
    let server = pipe(&[], &script);
    let address = server.address();
    let wires: Vec<_> = (0..3).map(|_| Wire::connect(address, "/x")).collect();
    let left = pids.pids(3);
    drop(wires);
    left.into_iter().for_each(expect_gone);
}

#[test]
fn a_program_reads_all_input_before_its_end() {
    let trace = TraceFile::new("pipe-input");
    let server = pipe(&[], &format!("wc -l >{}", trace.path()));
    let mut wire = Wire::connect(server.address(), "/");
    for _ in 0..1000 {
        wire.send_frame(TEXT, b"line");
    }
    wire.send_close(1000);
    eventually("all lines are counted", || trace.text().trim() == "1000");
}

#[test]
fn a_client_that_ends_its_output_gets_what_the_program_still_writes() {
    let server = pipe(&[], "sort; echo sorted");
    let mut wire = Wire::connect(server.address(), "/");
    for line in ["b", "c", "a"] {
        wire.send_frame(TEXT, line.as_bytes());
    }
    wire.end_output();
    for line in ["a", "b", "c", "sorted"] {
        assert_eq!(text(&mut wire), line);
    }
    assert_eq!(wire.read_close().0, 1000);
}

#[test]
fn a_program_that_cannot_be_started_closes_its_client_with_the_reason() {
    let program = TraceFile::new("pipe-missing");
    fs::write(program.path(), "#!/no/such/interpreter\n").expect("writable");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(program.path(), executable).expect("the file is there");
    let path = program.path();
    let server = Program::start(&["pipe", "--", &path]);
    let mut wire = Wire::connect(server.address(), "/");
    let (code, reason) = wire.read_close();
    assert_eq!(code, 4011);
    assert!(
        reason.starts_with("cannot start ") && reason.contains("No such file"),
        "{reason}"
    );
}

#[test]
fn a_program_that_closes_a_stream_does_not_hold_its_client() {
    // Without output, it cannot send anything more.
    let server = pipe(&[], "echo one; exec >&-; exec sleep 1000");
    let mut wire = Wire::connect(server.address(), "/");
    assert_eq!(text(&mut wire), "one");
    let ended = (4011, "Program was killed by signal 15".to_owned());
    assert_eq!(wire.read_close(), ended);

    // Without input, it still writes.
    let server = pipe(&[], "exec <&-; while echo more; do sleep 0.01; done");
    let mut wire = Wire::connect(server.address(), "/");
    for _ in 0..20 {
        wire.send_frame(TEXT, b"nobody reads this");
        assert_eq!(text(&mut wire), "more");
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "orphans are ended on Linux only")]
fn a_daemon_that_holds_the_output_open_does_not_delay_the_end() {
    let pids = TraceFile::new("pipe-daemon");
    let script = format!("setsid sleep 1000 & echo $! >>{}; printf last", pids.path());
    let mut server = pipe(&[], &script);
    let mut wire = Wire::connect(server.address(), "/");
    assert_eq!(text(&mut wire), "last");
    assert_eq!(wire.read_close().0, 1000);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    pids.pids(1).into_iter().for_each(expect_gone);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "orphans are ended on Linux only")]
fn what_a_program_leaves_behind_is_ended_after_its_exit() {
    // The bug: the browsers of MCP servers, in sessions of their own, ran until the server was stopped.
    let pids = TraceFile::new("pipe-leftovers");
    let script = format!(
        "setsid sleep 1000 & echo $! >>{0}; \
         setsid sh -c 'trap \"\" TERM; echo $$ >>{0}; while :; do sleep 1000; done' & cat",
        pids.path()
    );
    let server = pipe(&[], &script);
    let address = server.address();
    let mut other = Wire::connect(address, "/");
    other.send_frame(TEXT, b"first");
    assert_eq!(text(&mut other), "first");
    let kept = pids.pids(2);
    let wire = Wire::connect(address, "/");
    let left = pids.pids(4).split_off(2);
    drop(wire);
    left.into_iter().for_each(expect_gone);
    // The processes of another client's program are not.
    assert!(
        kept.into_iter()
            .all(|pid| test_kill_process(pid).is_ok() && !is_zombie(pid))
    );
}

#[test]
fn a_client_that_does_not_read_makes_its_program_wait() {
    let server = pipe(
        &[],
        "yes 0123456789012345678901234567890123456789 | head -n 1500000",
    );
    let address = server.address();
    let mut wire = Wire::connect(address, "/");
    let sent = settled(address, "messages_out");
    assert!(sent < 250_000, "{sent} messages");
    let mut count = 0;
    let line = [b'0'; 40].len();
    let ended = loop {
        let frame = wire.read_frame();
        if frame.opcode != TEXT {
            break frame;
        }
        assert_eq!(frame.payload.len(), line);
        count += 1;
    };
    assert_eq!(
        (count, &ended.payload[..2]),
        (1_500_000, &1000u16.to_be_bytes()[..])
    );
}

#[test]
fn a_program_that_does_not_read_holds_its_client() {
    let go = TraceFile::new("pipe-go");
    let script = format!(
        "while [ ! -s {} ]; do sleep 0.01; done; exec wc -c",
        go.path()
    );
    let server = pipe(&["--framing", "raw"], &script);
    let address = server.address();
    let wire = Wire::connect(address, "/");
    let mut sender = Wire {
        stream: wire.stream.try_clone().expect("a descriptor"),
    };
    let frames = 2000;
    let sending = std::thread::spawn(move || {
        for _ in 0..frames {
            sender.send_frame(BINARY, &[b'x'; 20_000]);
        }
        sender.end_output();
    });
    // The client is held while about a megabyte waits.
    let taken = settled(address, "bytes_in");
    assert!(taken < 10_000_000, "{taken} bytes");
    fs::write(go.path(), "go").expect("writable");
    sending.join().expect("all is sent");
    let mut wire = wire;
    let counted = wire.read_frame().payload;
    assert_eq!(
        String::from_utf8_lossy(&counted).trim(),
        (frames * 20_000).to_string()
    );
}

#[test]
fn many_clients_have_a_program_each() {
    let server = pipe(&[], "read line; echo \"$line $$\"; cat");
    let address = server.address();
    let mut wires: Vec<_> = (0..100).map(|_| Wire::connect(address, "/")).collect();
    for (number, wire) in wires.iter_mut().enumerate() {
        wire.send_frame(TEXT, number.to_string().as_bytes());
    }
    let mut pids = std::collections::BTreeSet::new();
    for (number, wire) in wires.iter_mut().enumerate() {
        let line = text(wire);
        let (echoed, pid) = line.split_once(' ').expect("two words");
        assert_eq!(echoed, number.to_string());
        pids.insert(pid.to_owned());
    }
    assert_eq!(pids.len(), 100);
    drop(wires);
    for pid in pids {
        expect_gone(Pid::from_raw(pid.parse().expect("a number")).expect("a pid"));
    }
}

#[test]
fn a_program_continues_while_its_client_is_away() {
    let server = pipe(&[], "exec cat");
    let address = server.address();
    let connect = |target: &str| {
        let mut wire = Wire::open(address);
        wire.send(&crate::common::request(target));
        let head = wire.read_head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let token = head
            .lines()
            .find_map(|line| line.strip_prefix("Outrigger-Resume: "));
        let token = token
            .expect("a token")
            .split(';')
            .next()
            .unwrap_or_default();
        (wire, token.to_owned())
    };
    let (mut wire, token) = connect("/?resume=new");
    wire.send_frame(TEXT, b"before");
    assert_eq!(text(&mut wire), "before");
    wire.reset();
    eventually("the client is detached", || {
        call(address, "GET", "/status", None).1["detached"] == 1
    });
    let (mut wire, _) = connect(&format!("/?resume={token}&received=1"));
    wire.send_frame(TEXT, b"after");
    assert_eq!(text(&mut wire), "after");
    let (_, status) = call(address, "GET", "/status", None);
    assert_eq!(status["processes"], 1);
}

#[test]
fn a_signal_ends_the_input_of_programs_and_their_clients_get_the_rest() {
    for shared in [&["--shared"][..], &[]] {
        let mut server = pipe(shared, "cat; printf rest");
        let mut wire = Wire::connect(server.address(), "/");
        wire.send_frame(TEXT, b"hello");
        assert_eq!(text(&mut wire), "hello");
        server.signal(Signal::TERM);
        assert_eq!(text(&mut wire), "rest");
        assert_eq!(wire.read_close(), (1001, "Server shutting down".to_owned()));
        wire.send_close(1001);
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_shared_program_serves_all_clients() {
    let server = pipe(&["--shared"], "exec cat");
    let address = server.address();
    let mut wires: Vec<_> = ["/", "/a", "/a/b"]
        .map(|path| Wire::connect(address, path))
        .into();
    for sender in 0..wires.len() {
        let line = format!("from {sender}");
        wires[sender].send_frame(TEXT, line.as_bytes());
        for wire in &mut wires {
            assert_eq!(text(wire), line);
        }
    }
    drop(wires.pop());
    wires[0].send_frame(TEXT, b"still here");
    for wire in &mut wires {
        assert_eq!(text(wire), "still here");
    }
}

#[test]
fn a_shared_program_speaks_each_framing() {
    for (framing, opcode) in [("content-length", TEXT), ("raw", BINARY)] {
        let server = pipe(&["--shared", "--framing", framing], "exec cat");
        let address = server.address();
        let mut wires = [Wire::connect(address, "/"), Wire::connect(address, "/")];
        wires[1].send_frame(TEXT, b"{\n}");
        for wire in &mut wires {
            let frame = wire.read_frame();
            assert_eq!((frame.opcode, &*frame.payload), (opcode, &b"{\n}"[..]));
        }
    }
}

#[test]
fn a_shared_program_that_exits_is_started_again_until_it_exits_too_often() {
    let pids = TraceFile::new("pipe-restarts");
    let script = format!("echo $$ >>{}; read line; echo bye; exit 3", pids.path());
    let mut server = pipe(&["--shared", "--restart-limit", "1/1h"], &script);
    let address = server.address();
    for count in 1..=2 {
        pids.pids(count);
        eventually("the program runs", || {
            call(address, "GET", "/readyz", None).0 == 200
        });
        let mut wires = [Wire::connect(address, "/"), Wire::connect(address, "/")];
        wires[0].send_frame(TEXT, b"end");
        for wire in &mut wires {
            assert_eq!(text(wire), "bye");
            let ended = (1011, "Program exited with code 3".to_owned());
            assert_eq!(wire.read_close(), ended);
            wire.send_close(1011);
        }
    }
    let (status, log) = server.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains("outrigger: the program exited with code 3"),
        "{log}"
    );
}

#[test]
fn a_slow_client_of_a_shared_program_is_disconnected_and_the_others_go_on() {
    let server = pipe(
        // The slow client reads its CLOSE after all rounds.
        &[
            "--shared",
            "--max-outbound",
            "200000",
            "--close-timeout",
            "1h",
        ],
        "while read -r line; do yes 0123456789012345678901234567890123456789 | head -n 4000; echo $line; done",
    );
    let address = server.address();
    let mut slow = Wire::connect(address, "/");
    let mut quick = Wire::connect(address, "/");
    // In a round, less than the limit waits for the quick client, however late it reads. The buffers of the kernel hold less
    // than all rounds for the slow one.
    for round in 0..75 {
        let last = round.to_string();
        quick.send_frame(TEXT, last.as_bytes());
        for _ in 0..4000 {
            assert_eq!(text(&mut quick).len(), 40);
        }
        assert_eq!(text(&mut quick), last);
    }
    assert_eq!(slow.read_close().0, 1008);
}

#[test]
fn a_shared_program_whose_output_is_invalid_is_started_again() {
    let script = r"read line; read line; printf 'Content-Length: 1\r\n\r\n!'; echo oops; exec cat >/dev/null";
    let server = pipe(&["--shared", "--framing", "content-length"], script);
    let address = server.address();
    let mut wire = Wire::connect(address, "/");
    wire.send_frame(TEXT, b"go");
    assert_eq!(text(&mut wire), "!");
    let ended = (1011, r"No Content-Length: oops\n".to_owned());
    assert_eq!(wire.read_close(), ended);
    eventually("another program runs", || {
        call(address, "GET", "/readyz", None).0 == 200
    });
    Wire::connect(address, "/");
}

#[test]
fn a_route_can_be_a_pipe() {
    let file = TraceFile::new("pipe-routes.json");
    let settings = r#"{"routes": {
        "/count/...": {"pipe": {"command": ["sh", "-c", "echo $SCRIPT_NAME $PATH_INFO"]}},
        "/all": {"pipe": {"command": ["cat"], "shared": true, "framing": "content-length"}}}}"#;
    fs::write(file.path(), settings).expect("writable");
    let server = Program::start(&["serve", "--config", &file.path()]);
    let address = server.address();
    let mut wire = Wire::connect(address, "/count/x");
    assert_eq!(text(&mut wire), "/count /x");
    assert_eq!(wire.read_close().0, 1000);
    let mut wire = Wire::connect(address, "/all");
    wire.send_frame(TEXT, b"{}");
    assert_eq!(text(&mut wire), "{}");
}

/// Clients of MCP over WebSocket in a browser or in Node.js fail if the server does not select the subprotocol `mcp`.
#[test]
fn a_subprotocol_that_the_program_speaks_is_selected() {
    for shared in [&["--shared"][..], &[]] {
        let options = ["--subprotocol", "mcp", "--subprotocol", "lsp"];
        let server = pipe(&[&options[..], shared].concat(), "exec cat");
        let address = server.address();
        for (offered, selected) in [("x, lsp, mcp", "lsp"), ("mcp", "mcp"), ("x", "")] {
            let request = String::from_utf8(crate::common::request("/")).expect("ASCII");
            let field = format!("Sec-WebSocket-Protocol: {offered}\r\nHost");
            let mut wire = Wire::open(address);
            wire.send(request.replacen("Host", &field, 1).as_bytes());
            let head = wire.read_head();
            let found = head
                .lines()
                .find_map(|line| line.strip_prefix("Sec-WebSocket-Protocol: "));
            assert_eq!(found.unwrap_or_default(), selected, "{head}");
            wire.send_frame(TEXT, b"hello");
            assert_eq!(text(&mut wire), "hello");
        }
    }
}

#[test]
fn a_killed_program_ends_only_its_own_client() {
    let server = pipe(&[], "echo $$; exec cat");
    let address = server.address();
    let mut wires = [Wire::connect(address, "/"), Wire::connect(address, "/")];
    let pids = wires.each_mut().map(text);
    let pid = Pid::from_raw(pids[0].parse().expect("a number")).expect("a pid");
    kill_process(pid, Signal::KILL).expect("it runs");
    let ended = (4011, "Program was killed by signal 9".to_owned());
    assert_eq!(wires[0].read_close(), ended);
    wires[1].send_frame(TEXT, b"still here");
    assert_eq!(text(&mut wires[1]), "still here");
}
