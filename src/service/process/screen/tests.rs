//! What output shows, and that a snapshot shows the same.

use super::follower::{Follower, ScreenSettings};
use super::keys::{KeyModes, key_bytes, paste_bytes};
use super::snapshot::Format;
use super::*;
use crate::random::Random;
use crate::service::process::scrollback::{OutputStream, Scrollback};

const SIZE: TerminalSize = TerminalSize { rows: 5, cols: 12 };

fn screen_of(output: &[u8]) -> Screen {
    let mut screen = Screen::new(SIZE, 10);
    let taken = screen.feed(output);
    assert!(taken <= output.len());
    screen
}

fn lines(output: &str) -> Vec<String> {
    let view = screen_of(output.as_bytes()).view(0, Format::Text);
    let mut lines = view.lines;
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Output like that of programs, with all kinds of sequences.
fn random_output(random: &mut Random, length: usize) -> Vec<u8> {
    const PIECES: &[&str] = &[
        "text ",
        "line\r\n",
        "line\r\n",
        "more text\r\n",
        "漢字",
        "e\u{301}",
        "\u{301}",
        "😀",
        "\t",
        "\x08",
        "\r",
        "\n",
        "\x1b[31m",
        "\x1b[1;44m",
        "\x1b[m",
        "\x1b[38;5;200m",
        "\x1b[48;2;1;2;3m",
        "\x1b[4:3m",
        "\x1b[H",
        "\x1b[3;5H",
        "\x1b[2J",
        "\x1b[K",
        "\x1b[1K",
        "\x1b[2;4r",
        "\x1b[r",
        "\x1bM",
        "\x1bD",
        "\x1b7",
        "\x1b8",
        "\x1b[?1049h",
        "\x1b[?1049l",
        "\x1b[?47h",
        "\x1b[?6h",
        "\x1b[?6l",
        "\x1b[?7l",
        "\x1b[?7h",
        "\x1b[4h",
        "\x1b[4l",
        "\x1b(0",
        "\x1b(B",
        "lqqk",
        "\x0e",
        "\x0f",
        "\x1b)0",
        "\x1b[2L",
        "\x1b[2M",
        "\x1b[3@",
        "\x1b[3P",
        "\x1b[3X",
        "\x1b[5b",
        "\x1b[2S",
        "\x1b[2T",
        "\x1bH",
        "\x1b[3g",
        "\x1b[A",
        "\x1b[2B",
        "\x1b[3C",
        "\x1b[2D",
        "\x1b]2;title\x07",
        "\x1b]0;other\x1b\\",
        "\x1bP1$r0m\x1b\\",
        "\x1b[!p",
        "\x1b[?25l",
        "\x1b[?2004h",
        "\x1b[?1000h",
        "\x1b[?1006h",
        "\x1bc",
        "\x1b#8",
        "\x1b[99999999999999999999C",
        "\x1b[1;2;3;4;5;6;7;8H",
        "\u{9b}5;5H",
        "\u{85}",
        "\x1b[3\n1m",
        "\x18",
        "\x1b[1\x1b[2m",
        "\x1b[?45h",
        "\x1b[5 q",
        "\x1b[2 @",
        "\x1b[2'}",
    ];
    let mut output = Vec::new();
    while output.len() < length {
        match random.below(20) {
            0 => output.push(random.byte()),
            1 => output.extend_from_slice("x".repeat(random.below(30)).as_bytes()),
            _ => output.extend_from_slice(PIECES[random.below(PIECES.len())].as_bytes()),
        }
    }
    output
}

#[test]
fn text_wraps_scrolls_and_is_erased() {
    assert_eq!(lines("one\r\ntwo"), ["one", "two"]);
    assert_eq!(lines("0123456789abcd"), ["0123456789ab", "cd"]);
    assert_eq!(lines("0123456789ab\r\nx"), ["0123456789ab", "x"]);
    assert_eq!(
        lines("1\r\n2\r\n3\r\n4\r\n5\r\n6"),
        ["2", "3", "4", "5", "6"]
    );
    assert_eq!(lines("abc\x1b[2D\x1b[Kx"), ["ax"]);
    assert_eq!(lines("a\r\nb\r\nc\x1b[2;1H\x1b[L"), ["a", "", "b", "c"]);
    assert_eq!(lines("\x1b(0lqk\x1b(B"), ["┌─┐"]);
    assert_eq!(lines("\x1b[2;3r\x1b[2;1Ha\nb\nc"), ["", " b", "  c"]);
    assert_eq!(lines("main\x1b[?1049h\x1b[Halt"), ["alt"]);
    assert_eq!(lines("main\x1b[?1049halt\x1b[?1049l!"), ["main!"]);
}

#[test]
fn wide_characters_and_marks_have_the_width_of_the_terminal_page() {
    assert_eq!(lines("漢字かな12345"), ["漢字かな1234", "5"]);
    assert_eq!(lines("0123456789a漢"), ["0123456789a", "漢"]);
    assert_eq!(lines("漢\x1b[2Gx"), [" x"]);
    assert_eq!(lines("e\u{301}a\u{308}b"), ["e\u{301}a\u{308}b"]);
    let screen = screen_of("漢e\u{301}".as_bytes());
    assert_eq!((screen.buffer().x, screen.buffer().y), (3, 0));
}

#[test]
fn a_snapshot_rebuilds_the_screen() {
    let mut random = Random::new(31);
    for _ in 0..3000 {
        let length = random.below(400);
        let output = random_output(&mut random, length);
        let cut = random.below(output.len() + 1);
        let mut whole = Screen::new(SIZE, 10);
        let taken = whole.feed(&output[..cut]);
        let mut rebuilt = Screen::new(SIZE, 10);
        let snapshot = whole.rebuild(10);
        assert_eq!(rebuilt.feed(snapshot.as_bytes()), snapshot.len());
        let (before, after) = output.split_at(taken);
        let [before, after] = [before, after].map(String::from_utf8_lossy);
        assert_eq!(rebuilt.dump_loosely(), whole.dump_loosely(), "{before:?}");
        whole.feed(&output[taken..]);
        rebuilt.feed(&output[taken..]);
        let shown = whole.dump_loosely();
        assert_eq!(
            rebuilt.dump_loosely(),
            shown,
            "{before:?} and then {after:?}"
        );
    }
}

/// The result does not depend on the pieces in which output arrives, nor on when it is laid out.
#[test]
fn output_in_pieces_shows_the_same() {
    let mut random = Random::new(32);
    for _ in 0..1500 {
        let length = random.below(2000);
        let mut data = random_output(&mut random, length);
        // Lines scroll away what can be skipped.
        if random.below(2) == 0 {
            let lines = [
                "plain \x1b[32mgreen\x1b[m\r\n",
                "\x1b[1;31m\x1b[Kerror\x1b[m\x1b[K: \x1b[44m\x1b[1Kblue\r\n",
            ];
            let line = lines[random.below(lines.len())];
            data.extend_from_slice(line.repeat(random.below(200)).as_bytes());
        }
        crate::fuzz::screen(&data);
    }
}

/// Rows that have scrolled out of a wider screen once wrapped into the rows below them.
#[test]
fn a_snapshot_cuts_off_rows_of_a_wider_screen() {
    let mut screen = Screen::new(SIZE, 10);
    screen.feed("x".repeat(12 * 5 + 1).as_bytes());
    screen.resize(TerminalSize { rows: 3, cols: 8 });
    let mut rebuilt = screen.empty();
    rebuilt.feed(screen.rebuild(10).as_bytes());
    assert_eq!(rebuilt.dump_loosely(), screen.dump_loosely());
    assert_eq!(
        rebuilt.view(0, Format::Text).lines,
        ["xxxxxxxx", "xxxxxxxx", "x"]
    );
}

#[test]
fn an_incomplete_sequence_is_sent_again() {
    for (output, rest) in [
        ("abc\x1b[3", "\x1b[3"),
        ("abc\x1b", "\x1b"),
        ("abc\x1b]2;tit", "\x1b]2;tit"),
        ("abc\x1b[3\n", "\x1b[3\n"),
    ] {
        let taken = Screen::new(SIZE, 0).feed(output.as_bytes());
        assert_eq!(&output[taken..], rest);
    }
    assert_eq!(Screen::new(SIZE, 0).feed(b"a\xe6\xbc"), 1);
    // The rest of a string that is too long is skipped, also by a terminal that gets a snapshot.
    let long = format!("\x1bPq{}", "x".repeat(10_000));
    let mut screen = Screen::new(SIZE, 0);
    assert_eq!(screen.feed(long.as_bytes()), long.len());
    let mut rebuilt = Screen::new(SIZE, 0);
    rebuilt.feed(format!("{}more\x1b\\shown", screen.rebuild(0)).as_bytes());
    screen.feed(b"more\x1b\\shown");
    for screen in [screen, rebuilt] {
        assert_eq!(screen.view(0, Format::Text).lines[0], "shown");
    }
}

#[test]
fn a_screen_has_a_limit_whatever_its_size() {
    let huge = TerminalSize {
        rows: 65535,
        cols: 65535,
    };
    let mut screen = Screen::new(SIZE, 500);
    screen.resize(huge);
    screen.feed(b"\x1b[?1049h\x1b[65535;65535Hx\x1b#8");
    let view = screen.view(0, Format::Text);
    assert_eq!((view.rows, view.cols), (200, 1000));
    assert!(screen.held() < 8 << 20, "{}", screen.held());
    let usual = TerminalSize::default();
    let mut screen = Screen::new(usual, 500);
    screen.feed(b"\x1b[?1049h\x1b#8");
    assert!(screen.held() <= 128 << 10, "{}", screen.held());
    screen.feed(b"\x1b[?1049l");
    screen.feed("x".repeat(80 * 10_000).as_bytes());
    assert!(
        screen.held() <= (128 << 10) + 500 * (80 * 16 + 128),
        "{}",
        screen.held()
    );
    let none = TerminalSize { rows: 1, cols: 1 };
    screen.resize(none);
    screen.feed("漢a\r\n\x1bM\x1b[L\x1b[P漢".as_bytes());
}

#[test]
fn marks_without_end_take_a_bounded_memory() {
    let mut screen = Screen::new(SIZE, 500);
    let mut random = Random::new(33);
    for _ in 0..200_000 {
        let mark = char::from_u32(0x300 + random.below(0x6f) as u32).expect("a mark");
        let letter = char::from(b'a' + random.below(26) as u8);
        screen.feed(format!("{letter}{mark}").as_bytes());
    }
    assert!(screen.held() < 1 << 20, "{}", screen.held());
}

#[test]
fn a_follower_keeps_its_place_when_output_is_dropped() {
    let mut output = Scrollback::new(4096);
    let mut follower = Follower::new(SIZE, ScreenSettings { history: 0 });
    for at in 0..10_000_u32 {
        for byte in format!("{at}\r\n").into_bytes() {
            output.spare(1)[0] = byte;
            output.commit(OutputStream::Stdout, 1);
            follower.follow(&output);
            assert!(follower.pending(&output) <= 2048);
        }
    }
    let view = follower.view(&output, 0, Format::Text);
    assert_eq!(view.lines, ["9996", "9997", "9998", "9999", ""]);
    assert_eq!(follower.rebuild(&output, 0).1, output.end());
}

#[test]
fn keys_depend_on_the_modes_of_the_terminal() {
    let usual = KeyModes::default();
    let application = KeyModes::from(&Modes {
        application_cursor: true,
        bracketed_paste: true,
        ..Modes::default()
    });
    for (name, modes, bytes) in [
        ("Enter", usual, "\r"),
        ("C-c", usual, "\x03"),
        ("C-[", usual, "\x1b"),
        ("M-x", usual, "\x1bx"),
        ("C-M-a", usual, "\x1b\x01"),
        ("Up", usual, "\x1b[A"),
        ("Up", application, "\x1bOA"),
        ("C-Up", application, "\x1b[1;5A"),
        ("F1", usual, "\x1bOP"),
        ("S-F5", usual, "\x1b[15;2~"),
        ("S-Tab", usual, "\x1b[Z"),
        ("C-Space", usual, "\0"),
        ("-", usual, "-"),
        ("C--", usual, ""),
        ("é", usual, "é"),
        ("PageDown", usual, "\x1b[6~"),
    ] {
        let pressed = key_bytes(name, modes).unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&pressed), bytes, "{name}");
    }
    for bad in ["", "enter", "C-", "ab", "C-é", "\x1b", "C-Nope"] {
        assert!(key_bytes(bad, usual).is_err(), "{bad:?}");
    }
    assert_eq!(paste_bytes("a\nb\r\nc", usual), b"a\rb\rc");
    let pasted = paste_bytes("x\x1b[201~y", application);
    assert_eq!(pasted, b"\x1b[200~x[201~y\x1b[201~");
}
