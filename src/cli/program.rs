//! Looks programs up before the server says that it listens.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Where programs are looked for without a `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Looks a program up as the system does when it starts it in the directory `cwd`: by its path, or in `PATH`. Execute
/// permission is checked for our own user, even if another user is to run the program.
pub(crate) fn find(
    name: &str,
    cwd: Option<&str>,
    variables: &[(String, String)],
) -> Result<(), String> {
    let from = |path: &Path| cwd.map_or_else(|| path.to_owned(), |cwd| Path::new(cwd).join(path));
    if name.contains('/') {
        return match look(&from(Path::new(name))) {
            Found::Program => Ok(()),
            Found::Other => Err(format!(
                "cannot start {name:?}: it is no file that may be run"
            )),
            Found::Nothing => Err(format!("cannot start {name:?}: there is no such file")),
        };
    }
    let given = variables.iter().rfind(|(variable, _)| variable == "PATH");
    let path = given
        .map(|(_, path)| OsString::from(path))
        .or_else(|| env::var_os("PATH"))
        .unwrap_or_else(|| DEFAULT_PATH.into());
    let mut other = None;
    for folder in env::split_paths(&path) {
        let file = from(&folder.join(OsStr::new(name)));
        match look(&file) {
            Found::Program => return Ok(()),
            Found::Other => other = other.or(Some(file)),
            Found::Nothing => {}
        }
    }
    Err(match other {
        Some(file) => format!("cannot start {name:?}: {file:?} is no file that may be run"),
        None => format!("cannot start {name:?}: it is not in PATH"),
    })
}

/// What is at a path.
enum Found {
    Program,
    /// A directory, or a file that may not be run.
    Other,
    Nothing,
}

fn look(path: &PathBuf) -> Found {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() && access(path, Access::EXEC_OK).is_ok() => Found::Program,
        Ok(_) => Found::Other,
        Err(_) => Found::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_as_it_will_be_started() {
        let path = |value: &str| vec![("PATH".to_owned(), value.to_owned())];
        let says = |found: Result<(), String>| found.expect_err("it is not there");
        assert_eq!(find("sh", None, &[]), Ok(()));
        assert_eq!(find("/bin/sh", None, &[]), Ok(()));
        assert_eq!(find("bin/sh", Some("/"), &[]), Ok(()));
        assert_eq!(find("./sh", Some("/bin"), &[]), Ok(()));
        assert_eq!(find("sh", Some("/"), &path("nowhere:bin")), Ok(()));
        assert_eq!(find("sh", Some("/bin"), &path("")), Ok(()));
        assert!(says(find("sh", None, &path("/proc"))).contains("not in PATH"));
        assert!(says(find("no-such-program", None, &[])).contains("not in PATH"));
        assert!(says(find("./no-such-program", None, &[])).contains("no such file"));
        assert!(says(find("/", None, &[])).contains("may be run"));
        assert!(says(find("passwd", None, &path("/etc"))).contains("\"/etc/passwd\""));
        assert!(says(find("", None, &[])).contains("cannot start"));
    }
}
