//! The screens of terminals: what a late client gets, what a program can read, wait for and type.

use std::net::SocketAddr;

use crate::common::{BINARY, CLOSE, PATIENCE, TEXT, Wire, call, request};
use crate::processes;
use serde_json::{Value, json};

/// Starts a script on a terminal of 10 rows and 40 columns, and returns its path.
fn spawn(address: SocketAddr, script: &str) -> String {
    let body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": true, "rows": 10, "cols": 40});
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{answer}");
    format!("/process/{}", answer["process_id"].as_str().expect("an id"))
}

fn wait(address: SocketAddr, process: &str, body: Value) -> Value {
    let (status, answer) = call(address, "POST", &format!("{process}/wait"), Some(body));
    assert_eq!(status, 200, "{answer}");
    answer
}

fn wait_for(address: SocketAddr, process: &str, text: &str) -> Value {
    let timeout = PATIENCE.as_millis() as u64;
    let body = json!({"text": text, "timeout_ms": timeout});
    let answer = wait(address, process, body);
    assert_eq!(answer["reason"], "text", "{answer}");
    answer["screen"].clone()
}

/// Reads messages until output contains a text, or until CLOSE. Returns the output and the screen.
fn read_until(wire: &mut Wire, text: &str) -> (String, Option<Value>) {
    let (mut output, mut screen) = (String::new(), None);
    loop {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => output.push_str(&String::from_utf8_lossy(&frame.payload)),
            TEXT => {
                let event: Value = serde_json::from_slice(&frame.payload).expect("JSON");
                if event["type"] == "screen" {
                    assert!(screen.is_none() && output.is_empty(), "one screen, first");
                    screen = Some(event);
                }
            }
            CLOSE => return (output, screen),
            _ => {}
        }
        if !text.is_empty() && output.contains(text) {
            return (output, screen);
        }
    }
}

/// The bug: a late client got old bytes again, whose questions its terminal answered into the program a second time.
#[test]
fn a_late_client_gets_the_screen_and_then_what_follows() {
    let (_server, address) = processes(&["--scrollback", "4KiB"]);
    let script = "stty -echo; seq 5000; printf '\\033[c\\033[6n\\033]11;?\\007\\033[1;32mready\\033[m\\033[3'; read x; printf '1mgo on'; read x";
    let process = spawn(address, script);
    wait_for(address, &process, "ready");
    for query in ["replay=screen&lines=3", "replay=screen&lines=3&since=10"] {
        let mut wire = Wire::connect(address, &format!("{process}/attach?mode=viewer&{query}"));
        let frame = (0..4)
            .map(|_| wire.read_frame())
            .last()
            .expect("the screen");
        let screen: Value = serde_json::from_slice(&frame.payload).expect("JSON");
        assert_eq!(screen["type"], "screen", "{screen}");
        let data = screen["data"].as_str().expect("a string");
        for question in ["\u{1b}[c", "\u{1b}[6n", "]11;?"] {
            assert!(!data.contains(question), "{data:?}");
        }
        assert!(data.contains("\u{1b}[0;1;32mready"), "{data:?}");
        assert!(
            data.contains("4989\r\n") && !data.contains("4988\r\n"),
            "{data:?}"
        );
        // The incomplete sequence is sent again.
        let frame = wire.read_frame();
        assert_eq!((frame.opcode, &*frame.payload), (BINARY, &b"\x1b[3"[..]));
    }
    let mut viewer = Wire::connect(
        address,
        &format!("{process}/attach?mode=viewer&replay=screen"),
    );
    let mut other = Wire::connect(address, &format!("{process}/attach?mode=viewer&since=10"));
    let (status, _) = call(
        address,
        "POST",
        &format!("{process}/input"),
        Some(json!({"keys": ["Enter"]})),
    );
    assert_eq!(status, 200);
    let (output, screen) = read_until(&mut viewer, "go on");
    assert_eq!((&*output, screen.is_some()), ("\u{1b}[31mgo on", true));
    // Others get what they got before.
    let (output, screen) = read_until(&mut other, "go on");
    assert!(screen.is_none() && output.contains("4900"));
    // A client that misses nothing gets no screen.
    let (_, now) = call(address, "GET", &format!("{process}/screen"), None);
    let since = now["offset"].as_u64().expect("a number") - 2;
    let mut back = Wire::connect(
        address,
        &format!("{process}/attach?mode=viewer&replay=screen&since={since}"),
    );
    let (output, screen) = read_until(&mut back, "on");
    assert_eq!((&*output, screen), ("on", None));
}

#[test]
fn a_screen_is_read_as_json_and_as_text() {
    let (_server, address) = processes(&[]);
    let process = spawn(
        address,
        "stty -echo; printf '\\033]2;title\\007\\033[31mred\\033[m\\r\\nabove\\r\\n'; seq 9; printf 'last'; read x",
    );
    let screen = wait_for(address, &process, "last");
    assert_eq!((&screen["rows"], &screen["cols"]), (&json!(10), &json!(40)));
    assert_eq!(
        screen["cursor"],
        json!({"row": 9, "col": 4, "visible": true})
    );
    assert_eq!(
        (&screen["title"], &screen["alternate"]),
        (&json!("title"), &json!(false))
    );
    assert_eq!(
        screen["lines"],
        json!(["1", "2", "3", "4", "5", "6", "7", "8", "9", "last"])
    );
    let get = |query: &str| {
        let mut wire = Wire::open(address);
        let head = format!(
            "GET {process}/screen?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        wire.send(head.as_bytes());
        let head = wire.read_head();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut wire.stream, &mut text).expect("text");
        (head[9..12].to_owned(), text)
    };
    assert_eq!(
        get("format=text&lines=1").1,
        "above\n1\n2\n3\n4\n5\n6\n7\n8\n9\nlast\n"
    );
    let (_, ansi) = get("format=ansi&lines=100");
    assert!(
        ansi.starts_with("\u{1b}[0;31mred\u{1b}[0m\nabove\n"),
        "{ansi:?}"
    );
    assert_eq!(get("format=html").0, "400");
    assert_eq!(get("lines=-1").0, "400");
}

#[test]
fn a_call_waits_for_text_a_pause_a_change_or_the_exit() {
    let (_server, address) = processes(&[]);
    let process = spawn(
        address,
        "stty -echo; while read x; do echo got-$x; done; exit 3",
    );
    let answer = wait(
        address,
        &process,
        json!({"text": "never", "timeout_ms": 50}),
    );
    assert_eq!(answer["reason"], "timeout");
    let offset = answer["screen"]["offset"].clone();
    let waiter = {
        let process = process.clone();
        std::thread::spawn(move || {
            wait(
                address,
                &process,
                json!({"regex": "^got-[0-9]{2}$", "timeout_ms": 100_000}),
            )
        })
    };
    let change = {
        let process = process.clone();
        std::thread::spawn(move || {
            wait(
                address,
                &process,
                json!({"changed_since": offset, "timeout_ms": 100_000}),
            )
        })
    };
    let input = |body: Value| call(address, "POST", &format!("{process}/input"), Some(body));
    assert_eq!(input(json!({"text": "1\n"})).0, 200);
    assert_eq!(
        input(json!({"paste": "23\n"})).1,
        json!({"written_bytes": 3})
    );
    assert_eq!(waiter.join().expect("an answer")["reason"], "regex");
    assert_eq!(change.join().expect("an answer")["reason"], "changed");
    let answer = wait(
        address,
        &process,
        json!({"idle_ms": 30, "timeout_ms": 100_000}),
    );
    assert_eq!(answer["reason"], "idle");
    assert!(answer["screen"]["idle_ms"].as_u64() >= Some(30));
    assert_eq!(input(json!({"keys": ["C-d"]})).0, 200);
    let answer = wait(
        address,
        &process,
        json!({"exit": true, "timeout_ms": 100_000}),
    );
    assert_eq!(
        (&answer["reason"], &answer["exit_code"]),
        (&json!("exit"), &json!(3))
    );
    for bad in [
        json!({}),
        json!({"regex": "("}),
        json!({"regex": "(a{1000}){1000}"}),
        json!({"regex": "x".repeat(2560)}),
        json!({"text": ""}),
        json!({"text": "x".repeat(40_960)}),
        json!({"idle_ms": -1}),
    ] {
        let (status, _) = call(
            address,
            "POST",
            &format!("{process}/wait"),
            Some(bad.clone()),
        );
        assert_eq!(status, 400, "{bad}");
    }
    let other = spawn(address, "read x");
    for bad in [
        json!({}),
        json!({"keys": ["Nope"]}),
        json!({"keys": "Enter"}),
    ] {
        let (status, _) = call(
            address,
            "POST",
            &format!("{other}/input"),
            Some(bad.clone()),
        );
        assert_eq!(status, 400, "{bad}");
    }
}

/// The bug: the pause before the input counted, so a call after `input` was answered at once with the screen from before.
#[test]
fn a_pause_begins_with_the_last_input() {
    let (_server, address) = processes(&[]);
    // Each answer comes after a tenth of a second.
    let script = "stty -echo; echo ready; while read x; do sleep 0.1; echo got-$x; done";
    let process = spawn(address, script);
    wait_for(address, &process, "ready");
    let pause = json!({"idle_ms": 1000, "timeout_ms": 100_000});
    assert_eq!(wait(address, &process, pause.clone())["reason"], "idle");
    for text in ["1", "2"] {
        let body = Some(json!({"text": text, "keys": ["Enter"]}));
        let (status, _) = call(address, "POST", &format!("{process}/input"), body);
        assert_eq!(status, 200);
        let answer = wait(address, &process, pause.clone());
        assert_eq!(answer["reason"], "idle");
        let lines = answer["screen"]["lines"].as_array().expect("lines");
        assert!(lines.contains(&json!(format!("got-{text}"))), "{answer}");
    }
    let (status, screen) = call(address, "GET", &format!("{process}/screen"), None);
    assert!(status == 200 && screen["idle_ms"].as_u64() >= Some(1000));
    let (status, _) = call(
        address,
        "POST",
        &format!("{process}/resize"),
        Some(json!({"rows": 11, "cols": 40})),
    );
    assert_eq!(status, 200);
    let (_, screen) = call(address, "GET", &format!("{process}/screen"), None);
    assert!(screen["idle_ms"].as_u64() < Some(1000), "{screen}");
}

/// The bug: only the beginning of a large screen was compared with an expression.
#[test]
fn an_expression_matches_the_bottom_of_a_large_screen() {
    let (_server, address) = processes(&[]);
    let script = "stty -echo; stty rows 100 cols 300; yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -n 150; printf 'done> '; read x";
    let body = json!({"command": "sh", "args": ["-c", script], "allocate_tty": true, "rows": 100, "cols": 300});
    let (status, answer) = call(address, "POST", "/process/spawn", Some(body));
    assert_eq!(status, 200, "{answer}");
    let process = format!("/process/{}", answer["process_id"].as_str().expect("an id"));
    let answer = wait(
        address,
        &process,
        json!({"regex": "^done>", "timeout_ms": 30_000}),
    );
    assert_eq!(answer["reason"], "regex", "{answer}");
}

#[test]
fn keys_follow_the_modes_that_the_program_has_set() {
    let (_server, address) = processes(&[]);
    let process = spawn(
        address,
        "stty -echo -icanon; printf '\\033[?1h\\033[?2004hready'; head -c 21 | od -An -c; read x",
    );
    wait_for(address, &process, "ready");
    let body = json!({"text": "a", "keys": ["Up", "C-a"], "paste": "p\u{1b}q"});
    let (status, answer) = call(address, "POST", &format!("{process}/input"), Some(body));
    assert_eq!((status, &answer["written_bytes"]), (200, &json!(19)));
    let body = json!({"keys": ["F12", "x"]});
    call(address, "POST", &format!("{process}/input"), Some(body));
    let screen = wait_for(address, &process, "   0   1   ~ 033   [");
    let lines = screen["lines"].as_array().expect("lines").iter();
    let shown: String = lines.filter_map(Value::as_str).collect();
    let bytes = "a 033   O   A 001 033   [   20   0   ~   p   q 033   [   2";
    assert!(shown.contains(bytes), "{shown}");
}

#[test]
fn a_process_without_a_screen_gets_409() {
    for options in [&[][..], &["--no-screen"]] {
        let (_server, address) = processes(options);
        let tty = options.contains(&"--no-screen");
        let body = json!({"command": "cat", "allocate_tty": tty});
        let (_, answer) = call(address, "POST", "/process/spawn", Some(body));
        let process = format!("/process/{}", answer["process_id"].as_str().expect("an id"));
        assert_eq!(
            call(address, "GET", &format!("{process}/screen"), None).0,
            409
        );
        let exit = Some(json!({"exit": true}));
        assert_eq!(
            call(address, "POST", &format!("{process}/wait"), exit).0,
            409
        );
        let key = Some(json!({"text": "a"}));
        assert_eq!(
            call(address, "POST", &format!("{process}/input"), key).0,
            409
        );
        // A client that asks for a screen gets output.
        let mut wire = Wire::connect(address, &format!("{process}/attach?replay=screen"));
        wire.send_frame(BINARY, b"hello\n");
        assert_eq!(read_until(&mut wire, "hello").1, None);
    }
    let (_server, address) = processes(&[]);
    let mut wire = Wire::open(address);
    let process = spawn(address, "read x");
    wire.send(&request(&format!("{process}/attach?replay=all")));
    assert!(wire.read_head().starts_with("HTTP/1.1 400 "));
}

/// A terminal of any size has a bounded screen, and its program the size that it asked for.
#[test]
fn a_huge_terminal_has_a_bounded_screen() {
    let (_server, address) = processes(&[]);
    let process = spawn(
        address,
        "stty rows 65535 cols 65535; printf '\\033[65535;65535Hx\\r\\nready'; read x",
    );
    let screen = wait_for(address, &process, "ready");
    assert_eq!((&screen["rows"], &screen["cols"]), (&json!(10), &json!(40)));
    let size = Some(json!({"rows": 65535, "cols": 65535}));
    assert_eq!(
        call(address, "POST", &format!("{process}/resize"), size).0,
        200
    );
    let (_, screen) = call(address, "GET", &format!("{process}/screen"), None);
    assert_eq!(
        (&screen["rows"], &screen["cols"]),
        (&json!(200), &json!(1000))
    );
}
