//! A server can continue with the state of each version before it, which tests/upgrade/capture.py has stored.

use std::fs::{File, read_dir};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_state_of_each_version_is_read() {
    let states = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade/states");
    let mut versions = 0;
    for version in read_dir(states).expect("the folder") {
        let folder = version.expect("an entry").path();
        let state = File::open(folder.join("state")).expect("the state");
        let rehearsal = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(["serve", "--no-auth", "--listen", "127.0.0.1:0", "--config"])
            .arg(folder.join("outrigger.json"))
            .env("OUTRIGGER_REHEARSAL", std::process::id().to_string())
            .stdin(Stdio::from(state))
            .output()
            .expect("it starts");
        let log = String::from_utf8_lossy(&rehearsal.stderr);
        assert!(rehearsal.status.success(), "{}: {log}", folder.display());
        versions += 1;
    }
    assert!(versions > 0);
}
