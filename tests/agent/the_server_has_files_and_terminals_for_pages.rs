//! `--client-fs` and `--client-terminal`: the server reads and writes files below a directory, and runs programs, for the agent of a
//! client that asks for it. Nothing leads out of the directory, and nothing blocks the server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, RenameFlags, mkfifoat, renameat_with};
use serde_json::{Value, json};

use crate::common::agent::Client;
use crate::page::{Folder, Page, start};

/// The code of an error that the agent has got.
fn refused(answer: &Value) -> i64 {
    assert!(answer["content"].is_null(), "{answer}");
    answer["code"].as_i64().unwrap_or_default()
}

#[test]
fn files_below_the_directory_are_read_and_written_and_no_others() {
    let folder = Folder::new("files");
    fs::write(folder.outside("secret"), "secret").expect("a file");
    fs::write(folder.inside("lines"), "one\ntwo\r\nthree\nfour").expect("a file");
    for (link, target) in [
        ("in", PathBuf::from("lines")),
        ("out", PathBuf::from("../secret")),
        ("absolute", folder.outside("secret")),
        ("up", PathBuf::from("..")),
    ] {
        symlink(target, folder.inside(link)).expect("a link");
    }
    let (_server, address) = start(&folder, &[]);
    let mut page = Page::open(address);
    let directory = folder.0.join("inside");
    assert_eq!(
        page.offered,
        json!({"readTextFile": true, "writeTextFile": true, "terminal": false, "directory": directory})
    );
    let text = "one\ntwo\r\nthree\nfour";
    assert_eq!(page.read(&folder.inside("lines"))["content"], text);
    assert_eq!(page.read(&folder.inside("in"))["content"], text);
    assert_eq!(page.read(&folder.inside("./sub/../in"))["code"], -32002);
    for (line, limit, want) in [
        (json!(2), json!(2), "two\r\nthree\n"),
        (json!(4), Value::Null, "four"),
        (json!(9), json!(1), ""),
        (Value::Null, json!(1), "one\n"),
        (json!(1), json!(0), ""),
    ] {
        let params = json!({"path": folder.inside("lines"), "line": line, "limit": limit});
        let read = page.ask("fs/read_text_file", &params);
        assert_eq!(read["content"], want, "{params} {read}");
    }
    for path in [
        folder.outside("secret"),
        folder.inside("../secret"),
        folder.inside("x/../../secret"),
        folder.inside("out"),
        folder.inside("absolute"),
        folder.inside("up/secret"),
        PathBuf::from("/etc/passwd"),
        PathBuf::from("/proc/self/environ"),
    ] {
        let read = refused(&page.read(&path));
        assert!([-32010, -32002].contains(&read), "{path:?} {read}");
        assert_ne!(refused(&page.write(&path, "changed")), 0, "{path:?}");
    }
    assert_eq!(refused(&page.read(Path::new("lines"))), -32602);
    assert_eq!(refused(&page.read(&folder.inside("."))), -32602);
    assert_eq!(
        fs::read_to_string(folder.outside("secret")).expect("it is there"),
        "secret"
    );

    // A file that is replaced keeps its mode, and a link stays a link. Missing directories are made.
    let lines = folder.inside("lines");
    fs::set_permissions(&lines, fs::Permissions::from_mode(0o640)).expect("our file");
    assert_eq!(page.write(&folder.inside("in"), "new"), json!({}));
    assert_eq!(fs::read_to_string(&lines).expect("a file"), "new");
    assert_eq!(fs::metadata(&lines).expect("a file").mode() & 0o7777, 0o640);
    assert!(folder.inside("in").is_symlink());
    assert_eq!(page.write(&folder.inside("a/b/c.txt"), "deep"), json!({}));
    assert_eq!(
        fs::read_to_string(folder.inside("a/b/c.txt")).expect("a file"),
        "deep"
    );
    let left = fs::read_dir(folder.inside(".")).expect("a directory");
    let left = left.filter(|one| {
        one.as_ref()
            .is_ok_and(|one| one.file_name().to_string_lossy().starts_with(".outrigger"))
    });
    assert_eq!(left.count(), 0, "no temporary file is left");
    // What is not a file for text is refused, and an open does not wait.
    mkfifoat(CWD, folder.inside("pipe"), Mode::from_raw_mode(0o600)).expect("a pipe");
    fs::write(folder.inside("binary"), [0xff, 0xfe]).expect("a file");
    for name in ["pipe", "binary", "a"] {
        assert_ne!(refused(&page.read(&folder.inside(name))), 0, "{name}");
    }
    for name in ["pipe", "a"] {
        assert_ne!(refused(&page.write(&folder.inside(name), "x")), 0, "{name}");
    }
    // A file may be larger than what is read of it.
    let huge = fs::File::create(folder.inside("huge")).expect("a file");
    huge.set_len(1 << 33).expect("a sparse file");
    assert_ne!(refused(&page.read(&folder.inside("huge"))), 0);
    let params = json!({"path": folder.inside("huge"), "line": 2, "limit": 1});
    assert_ne!(refused(&page.ask("fs/read_text_file", &params)), 0);
    // Without terminals, the agent is told that the client has none.
    assert_eq!(
        refused(&page.ask("terminal/create", &json!({"command": "true"}))),
        -32601
    );
}

/// While a directory is exchanged for a link to another one, over and over, no byte comes from outside or gets there.
#[test]
fn a_directory_that_is_exchanged_during_a_call_does_not_lead_out() {
    let folder = Folder::new("swaps");
    fs::create_dir(folder.inside("real")).expect("a directory");
    fs::write(folder.inside("real/file"), "inside").expect("a file");
    fs::create_dir(folder.outside("other")).expect("a directory");
    fs::write(folder.outside("other/file"), "outside").expect("a file");
    symlink(folder.outside("other"), folder.inside("link")).expect("a link");
    let (_server, address) = start(&folder, &[]);
    let mut page = Page::open(address);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (real, link) = (folder.inside("real"), folder.inside("link"));
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &real, CWD, &link, RenameFlags::EXCHANGE).expect("ours");
            }
        });
        let mut was_read = 0;
        for turn in 0..300 {
            let read = page.read(&folder.inside("real/file"));
            assert_ne!(read["content"], "outside");
            was_read += usize::from(read["content"].is_string());
            page.write(&folder.inside("real/file"), &format!("inside {turn}"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(was_read > 0, "some calls must succeed");
    });
    let other = fs::read_to_string(folder.outside("other/file"));
    assert_eq!(other.expect("it is there"), "outside");
    assert_eq!(
        fs::read_dir(folder.outside("other"))
            .expect("it is there")
            .count(),
        1
    );
}

#[test]
fn a_terminal_has_output_an_exit_and_an_end() {
    let folder = Folder::new("terminals");
    let (_server, address) = start(&folder, &["--client-terminal"]);
    let mut page = Page::open(address);
    assert_eq!(page.offered["terminal"], true);
    let inside = folder.0.join("inside");

    let env = json!([{"name": "GREETING", "value": "hello"}]);
    let shell = json!({"command": "echo $GREETING; pwd; echo wrong >&2; exit 7", "env": env, "cwd": inside});
    let id = page.terminal(&shell);
    let exited = page.of_terminal("wait_for_exit", &id);
    assert_eq!(exited, json!({"exitCode": 7, "signal": null}));
    let output = page.of_terminal("output", &id);
    let text = output["output"].as_str().expect("text");
    assert!(
        text.contains("hello\n") && text.contains("wrong\n"),
        "{output}"
    );
    assert!(text.contains(inside.to_str().expect("UTF-8")), "{output}");
    assert_eq!(output["exitStatus"]["exitCode"], 7);
    assert_eq!(page.of_terminal("release", &id), json!({}));
    assert_eq!(refused(&page.of_terminal("output", &id)), -32002);

    // With arguments, no shell is between.
    let id = page.terminal(&json!({"command": "echo", "args": ["$HOME", "a b"]}));
    page.of_terminal("wait_for_exit", &id);
    assert_eq!(page.of_terminal("output", &id)["output"], "$HOME a b\n");

    // A flood is cut to its last bytes, at a character.
    let flood = json!({"command": "yes € | head -c 3000001", "outputByteLimit": 1000});
    let id = page.terminal(&flood);
    assert_eq!(page.of_terminal("wait_for_exit", &id)["exitCode"], 0);
    let output = page.of_terminal("output", &id);
    let text = output["output"].as_str().expect("text");
    assert!(
        output["truncated"] == true && (990..=1000).contains(&text.len()),
        "{output}"
    );
    assert!(
        text.trim_end().ends_with('€') || text.ends_with('\u{fffd}'),
        "{text:?}"
    );

    // The agent waits for the exit of a program that it kills.
    let id = page.terminal(&json!({"command": "echo begun; sleep 1000"}));
    while page.of_terminal("output", &id)["output"] != "begun\n" {}
    let waits = page.begin("terminal/wait_for_exit", &json!({"terminalId": id}));
    let kills = page.begin("terminal/kill", &json!({"terminalId": id}));
    let exited = [page.end(kills), page.end(waits)];
    let exit = json!({"exitCode": null, "signal": "SIGHUP"});
    assert!(exited.contains(&exit), "{exited:?}");
    assert_eq!(page.of_terminal("output", &id)["output"], "begun\n");

    // The wrong parameters, and another session's terminal.
    for wrong in [
        json!({}),
        json!({"command": "x", "args": [1]}),
        json!({"command": "x", "cwd": "relative"}),
        json!({"command": "x", "env": [{"name": "A=B", "value": "c"}]}),
    ] {
        assert_eq!(
            refused(&page.ask("terminal/create", &wrong)),
            -32602,
            "{wrong}"
        );
    }
    let missing = page.ask(
        "terminal/create",
        &json!({"command": "/no/such", "args": ["x"]}),
    );
    assert_eq!(refused(&missing), -32603, "{missing}");
    let mut other = Page::open(address);
    assert_eq!(refused(&other.of_terminal("output", &id)), -32002);

    // The number is limited.
    let mut created = 0;
    let last = loop {
        let answer = page.ask("terminal/create", &json!({"command": "sleep 1000"}));
        if answer["terminalId"].is_null() {
            break answer;
        }
        created += 1;
        assert!(created < 100, "there must be a limit");
    };
    assert_eq!((refused(&last), created > 4), (-32013, true));
}

/// The bug this holds: a program that outlives the page which it was started for.
#[test]
fn terminals_end_with_their_client() {
    let folder = Folder::new("ends");
    let (_server, address) = start(&folder, &["--client-terminal"]);
    let mut page = Page::open(address);
    let alive = folder.inside("alive");
    mkfifoat(CWD, &alive, Mode::from_raw_mode(0o600)).expect("a pipe");
    // The reader gets the end of the pipe when no process has it open any more.
    let command = format!(
        "exec 3>{}; echo begun >&3; sleep 1000 & wait",
        alive.display()
    );
    page.terminal(&json!({"command": command}));
    let reader = std::thread::spawn({
        let alive = alive.clone();
        move || fs::read_to_string(alive)
    });
    page.client.wire.send_close(1000);
    drop(page);
    let read = reader.join().expect("it reads").expect("a pipe");
    assert_eq!(read, "begun\n");
}

/// Clients see the output of a terminal while it runs: the one that controls the session, and its observers, also late ones.
#[test]
fn clients_see_the_output_of_terminals() {
    let folder = Folder::new("live");
    let (_server, address) = start(&folder, &["--client-terminal"]);
    let mut page = Page::open(address);
    let (one, two) = (folder.inside("one"), folder.inside("two"));
    for pipe in [&one, &two] {
        mkfifoat(CWD, pipe, Mode::from_raw_mode(0o600)).expect("a pipe");
    }
    let command = format!("cat {}; cat {}; exit 3", one.display(), two.display());
    let id = page.terminal(&json!({"command": command.clone()}));
    let decode = |data: &Value| {
        use base64::Engine;
        let data = data.as_str().unwrap_or_default();
        let bytes = base64::prelude::BASE64_STANDARD
            .decode(data)
            .expect("base64");
        String::from_utf8(bytes).expect("UTF-8")
    };
    let hear = |client: &mut Client, until: &str| {
        let mut text = String::new();
        loop {
            let message = client.hear();
            let update = &message["params"]["update"];
            if update["terminalId"] != id.as_str() {
                continue;
            }
            if let Some(shown) = update["command"].as_str() {
                assert_eq!(shown, command);
            }
            match update["sessionUpdate"].as_str() {
                Some("terminal_update") if !update["output"].is_null() => {
                    text = decode(&update["output"]["data"]);
                }
                Some("terminal_output_chunk") => text += &decode(&update["data"]),
                _ => {}
            }
            let is_over = update["exitStatus"]["exitCode"] == 3;
            if text == until || is_over {
                return (text, is_over);
            }
        }
    };
    fs::write(&one, "first\n").expect("the program reads");
    assert_eq!(hear(&mut page.client, "first\n").0, "first\n");
    let mut observer = Client::initialized(address);
    let token = json!({"outrigger": {"resumeToken": page.token}});
    let asks = json!({"sessionId": page.session, "_meta": token});
    let attached = observer.ask("session/attach", asks);
    assert_eq!(attached["result"]["role"], "observer", "{attached}");
    assert_eq!(hear(&mut observer, "first\n").0, "first\n");
    fs::write(&two, "second\n").expect("the program reads");
    for client in [&mut page.client, &mut observer] {
        let mut all = String::new();
        let mut is_over = false;
        while !is_over {
            let (text, over) = hear(client, "first\nsecond\n");
            is_over = over;
            all += &text;
        }
        assert!(all.contains("second\n"), "{all:?}");
    }
    // Who comes later gets the end of it from the history.
    let mut late = Client::initialized(address);
    let asks = json!({"sessionId": page.session, "_meta": token});
    late.request("session/attach", asks);
    assert_eq!(hear(&mut late, ""), ("first\nsecond\n".to_owned(), true));
}
