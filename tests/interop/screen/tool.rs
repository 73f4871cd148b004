//! Shows what the screen of the server makes of recorded output, and how fast. It has the modules of the screen alone, so that rustc
//! builds it in seconds, as run.sh does.
//!
//! ```text
//! tool cuts ROWS COLS FILE CUT...     for each cut, and for the whole output: fields that end with a zero byte
//! tool speed ROWS COLS FILE           seconds for 100 MB that are laid out, and that are followed, a snapshot, and the memory
//! ```
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_imports,
    reason = "the server uses the rest"
)]

use std::io::Write;

mod sys {
    pub(crate) use crate::wide::{bytes_between, in_wide_registers};

    #[derive(Clone, Copy, Debug)]
    pub struct TerminalSize {
        pub rows: u16,
        pub cols: u16,
    }

    impl Default for TerminalSize {
        fn default() -> Self {
            Self { rows: 24, cols: 80 }
        }
    }
}

/// Takes the place of `src/record`: nothing is saved or restored here.
mod record {
    use serde_json::Value;

    #[derive(Debug)]
    pub(crate) struct RecordError;
    #[derive(Debug)]
    pub(crate) struct Loader;
    #[derive(Debug)]
    pub(crate) struct Fields;

    impl Loader {
        pub(crate) fn is_rehearsal(&self) -> bool {
            true
        }
    }

    impl Fields {
        pub(crate) fn of(_: Value) -> Result<Self, RecordError> {
            Err(RecordError)
        }

        pub(crate) fn take<T>(&mut self, _: &str, _: &mut Loader) -> Result<T, RecordError> {
            Err(RecordError)
        }
    }

    macro_rules! nothing {
        ($($any:tt)*) => {};
    }
    macro_rules! object {
        ({ $($name:literal: $value:expr),* }) => {
            {
                let _ = ($($value,)*);
                serde_json::Value
            }
        };
    }
    pub(crate) use nothing as record;
    pub(crate) use nothing as record_names;
    pub(crate) use object;
}

#[path = "../../../src/sys/wide.rs"]
mod wide;

#[path = "../../../src/service/process/screen/mod.rs"]
mod screen;
#[path = "../../../src/service/process/scrollback.rs"]
mod scrollback;
mod service {
    pub mod process {
        pub(crate) use crate::{screen, scrollback};
    }
}

#[path = "../../../src/fuzz/screen.rs"]
mod fuzz;

#[cfg(test)]
#[path = "../../../src/random.rs"]
mod random;

use fuzz::ScreenProbe;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, rows, cols, file, cuts @ ..] = &arguments[..] else {
        panic!("usage: tool cuts|speed ROWS COLS FILE [CUT...]");
    };
    let number = |text: &String| text.parse().expect("a number");
    let (rows, cols) = (number(rows), number(cols));
    let output = std::fs::read(file).expect("the recording");
    match &command[..] {
        "cuts" => print_cuts(
            rows,
            cols,
            &output,
            cuts.iter().map(|cut| cut.parse().expect("a cut")),
        ),
        _ => print_speed(ScreenProbe::new(rows, cols), &output),
    }
}

/// For each cut: the offset of the output that follows the snapshot, the snapshot, the screen, and the screen that the snapshot rebuilds,
/// before and after the rest of the output.
fn print_cuts(rows: u16, cols: u16, output: &[u8], cuts: impl Iterator<Item = usize>) {
    let mut screen = ScreenProbe::new(rows, cols);
    let mut taken = 0;
    let mut out = std::io::stdout().lock();
    for cut in cuts.chain([output.len()]) {
        taken += screen.feed(&output[taken..cut]);
        let snapshot = screen.rebuild(0);
        let mut rebuilt = ScreenProbe::new(rows, cols);
        rebuilt.feed(snapshot.as_bytes());
        let shown = rebuilt.dump();
        rebuilt.feed(&output[taken..]);
        for field in [
            taken.to_string(),
            snapshot,
            screen.dump(),
            shown,
            rebuilt.dump(),
        ] {
            out.write_all(field.as_bytes()).expect("a reader");
            out.write_all(&[0]).expect("a reader");
        }
    }
}

/// The processor time of the process in seconds, which depends less on what else runs than the clock.
fn used() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    let nanoseconds = text
        .split(' ')
        .next()
        .and_then(|text| text.parse::<f64>().ok());
    nanoseconds.expect("a time") / 1e9
}

fn print_speed(mut screen: ScreenProbe, output: &[u8]) {
    let started = used();
    let mut total = 0;
    let mut rest = Vec::new();
    while total < 100 << 20 {
        for piece in output.chunks(32 << 10) {
            rest.extend_from_slice(piece);
            let taken = screen.feed(&rest);
            rest.drain(..taken);
            total += piece.len();
        }
    }
    let seconds = (used() - started) * f64::from(100 << 20) / total as f64;
    let repeated = output.repeat((100 << 20) / output.len() + 1);
    let followed = |with_screen| {
        let started = used();
        fuzz::follow_screen(&repeated[..100 << 20], with_screen);
        used() - started
    };
    let started = used();
    let length: usize = (0..100).map(|_| screen.rebuild(0).len()).sum();
    let snapshot = (used() - started) * 1e4;
    println!(
        "laid out {seconds:.3} s, followed {:.3} s, kept alone {:.3} s, snapshot {snapshot:.0} us and {} bytes, memory {} bytes",
        followed(true),
        followed(false),
        length / 100,
        screen.held()
    );
}
