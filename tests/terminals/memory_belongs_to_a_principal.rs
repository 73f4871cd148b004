//! What programs hold belongs to the principal that has started them: places, screens and output.

use crate::common::guarded::{Guarded, secret};
use crate::common::traces::eventually;
use crate::common::{BINARY, CLOSE, TEXT, Wire};
use serde_json::{Value, json};

fn serve(settings: Value, args: &[&str]) -> Guarded {
    let routes = json!({"/process": {"processes": settings}, "/echo": {"echo": {}}});
    Guarded::serve(&routes, args)
}

fn terminal(script: &str) -> Value {
    json!({"command": "sh", "args": ["-c", script], "allocate_tty": true})
}

/// Starts a process of a holder of a token. Returns its path, or the error.
fn spawn(server: &Guarded, name: &str, body: Value) -> Result<String, String> {
    let (status, answer) = server.call("POST /process/spawn", &secret(name), Some(body));
    match status {
        200 => Ok(format!("/process/{}", text(&answer["process_id"]))),
        status => Err(format!("{status} {}", text(&answer["message"]))),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn resize(server: &Guarded, path: &str, rows: u16, cols: u16) -> (u16, Value) {
    let size = json!({"rows": rows, "cols": cols});
    let line = format!("POST {path}/resize");
    let (status, mut answer) = server.call(&line, &secret("ada"), Some(size));
    (status, answer["message"].take())
}

/// Echoes a message as another principal, which has to connect.
fn bob_is_served(server: &Guarded) {
    let mut wire = server.connect("/echo", &secret("bob"));
    wire.send_frame(BINARY, b"hello");
    assert_eq!(wire.read_frame().payload, b"hello");
}

/// The bug: one principal could keep all places, also after it had left.
#[test]
fn one_of_several_principals_has_half_of_the_places() {
    let server = serve(json!({"max-processes": 4}), &[]);
    let sleep = || json!({"command": "sleep", "args": ["1000"]});
    let first = spawn(&server, "ada", sleep()).expect("a process");
    spawn(&server, "ada", sleep()).expect("a process");
    let full = "503 too many processes of this principal".to_owned();
    assert_eq!(spawn(&server, "ada", sleep()), Err(full));
    for _ in 0..2 {
        spawn(&server, "bob", sleep()).expect("a process");
    }
    let all = "503 too many processes".to_owned();
    assert_eq!(spawn(&server, "bob", sleep()), Err(all));
    let kill = json!({"signal": "KILL"});
    server.call(&format!("POST {first}/kill"), &secret("ada"), Some(kill));
    eventually("a place is free", || spawn(&server, "ada", sleep()).is_ok());
}

/// The bug: the size of a screen had no limit but its own, so 250 terminals took 1.2 GB with `--memory 64MiB`.
#[cfg(feature = "screen")]
#[test]
fn a_size_that_does_not_fit_into_the_memory_is_refused_and_nothing_is_lost() {
    let server = serve(json!({}), &["--memory", "16MiB"]);
    let script = "stty -echo; echo ready; while read line; do stty size; done";
    let start = || spawn(&server, "ada", terminal(script)).expect("a process");
    let paths: Vec<String> = (0..8).map(|_| start()).collect();
    let sizes = paths.iter().map(|path| resize(&server, path, 500, 400));
    let (fit, refused): (Vec<_>, Vec<_>) = sizes.partition(|(status, _)| *status == 200);
    // A quarter of the memory is left to connections, and each screen takes 3.2 MB.
    assert_eq!((fit.len(), refused.len()), (3, 5));
    assert_eq!(refused[0], (503, json!("too little memory")));
    // A client of the protocol gets the old size again. The program has not got another one.
    let last = paths.last().expect("a path");
    let mut wire = server.connect(&format!("{last}/attach"), &secret("ada"));
    wire.send_frame(TEXT, br#"{"type":"resize","rows":500,"cols":400}"#);
    wire.send_frame(BINARY, b"\n");
    let (mut seen, mut sizes) = (Vec::new(), 0);
    while !seen.ends_with(b"ready\r\n24 80\r\n") {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => seen.extend(frame.payload),
            _ => sizes += usize::from(frame.payload == br#"{"type":"size","rows":24,"cols":80}"#),
        }
    }
    assert_eq!(sizes, 2);
    let log = std::fs::read_to_string(server.log.path()).expect("the log");
    assert!(
        log.contains("resize rejected: rows=500 cols=400 reason=\"too little memory\""),
        "{log}"
    );
    // Others have room, and so has everybody when a terminal is smaller again.
    let bobs = spawn(&server, "bob", terminal(script)).expect("a process");
    assert_eq!(resize(&server, &bobs, 500, 400).0, 200);
    assert_eq!(resize(&server, &paths[0], 24, 80).0, 200);
    assert_eq!(resize(&server, &paths[1], 24, 80).0, 200);
    assert_eq!(resize(&server, last, 500, 400).0, 200);
    bob_is_served(&server);
}

/// The bug: when programs held too much, others got 503, and kept it.
#[cfg(feature = "screen")]
#[test]
fn whoever_holds_most_keeps_less_output_and_others_are_served() {
    let server = serve(json!({}), &["--memory", "4MiB"]);
    let bobs = spawn(&server, "bob", terminal("echo first; exec cat")).expect("a process");
    let script =
        "stty -opost -echo; read line; head -c 1000000 /dev/zero | tr '\\0' x; echo end; exec cat";
    // They write only when all have started, because a start is refused while memory is short.
    let paths: Vec<String> = (0..8)
        .map(|_| spawn(&server, "ada", terminal(script)).expect("a process"))
        .collect();
    for path in &paths {
        let path = format!("{path}/attach?takeover=1");
        let mut wire = server.connect(&path, &secret("ada"));
        wire.send_frame(BINARY, b"\n");
    }
    let outputs = || {
        let read = |path: &String| {
            let path = format!("{path}/attach?takeover=1");
            read_until(&mut server.connect(&path, &secret("ada")), b"end\n")
        };
        paths.iter().map(read).collect::<Vec<_>>()
    };
    outputs();
    eventually("there is room again", || {
        bob_is_served(&server);
        spawn(&server, "bob", terminal("exec cat")).is_ok()
    });
    // The oldest output is a gap, which every client learns of.
    let kept = outputs();
    let cut = kept.iter().filter(|(gaps, _)| *gaps == 1);
    let cut: Vec<usize> = cut.map(|(_, output)| output.len()).collect();
    assert!(
        !cut.is_empty()
            && cut
                .iter()
                .all(|length| (32_768..1_000_000).contains(length)),
        "{cut:?}"
    );
    let all: usize = kept.iter().map(|(_, output)| output.len()).sum();
    assert!(all <= 4 << 20, "{all}");
    // What the other principal has is whole.
    let mut wire = server.connect(&format!("{bobs}/attach"), &secret("bob"));
    assert_eq!(
        read_until(&mut wire, b"first\r\n"),
        (0, b"first\r\n".to_vec())
    );
}

/// Reads output until it ends with this. Returns the number of gaps, and the output.
#[cfg(feature = "screen")]
fn read_until(wire: &mut Wire, end: &[u8]) -> (usize, Vec<u8>) {
    let (mut gaps, mut seen) = (0, Vec::new());
    while !seen.ends_with(end) {
        let frame = wire.read_frame();
        match frame.opcode {
            BINARY => seen.extend(frame.payload),
            TEXT => gaps += usize::from(frame.payload.starts_with(br#"{"type":"gap""#)),
            CLOSE => panic!("closed: {:?}", frame.payload),
            _ => {}
        }
    }
    (gaps, seen)
}

/// The bug: in a control group of 128 MiB, the kernel ended the server for the memory of 1,000 programs, and all of them with it.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn the_kernel_ends_programs_before_the_server() {
    let server = serve(json!({}), &[]);
    let body = json!({"command": "cat", "args": ["/proc/self/oom_score_adj"]});
    let (_, answer) = server.call("POST /process/exec", &secret("ada"), Some(body));
    assert_eq!(answer["stdout_b64"], "MzAwCg==");
}
