//! Finds programs before the server listens, so that a wrong name is reported at once.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The directories to search if there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Finds a program as the system does when it starts the program in the directory `cwd`: by its path, or in `PATH`.
/// Checks execute permission for the server's user, even if another user will run the program.
pub(super) fn find(
    name: &str,
    cwd: Option<&str>,
    variables: &[(String, String)],
) -> Result<(), String> {
    let from = |path: &Path| cwd.map_or_else(|| path.to_owned(), |cwd| Path::new(cwd).join(path));
    if name.contains('/') {
        return match look(&from(Path::new(name))) {
            Found::Program => Ok(()),
            Found::Other => Err(format!(
                "cannot start {name:?}: it is not an executable file"
            )),
            Found::Nothing => Err(format!(
                "cannot start {name:?}: no such file{}",
                words_hint(name)
            )),
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
        Some(file) => format!("cannot start {name:?}: {file:?} is not an executable file"),
        None => format!(
            "cannot start {name:?}: not found in PATH{}",
            words_hint(name)
        ),
    })
}

/// What to say about a name that seems to have arguments.
fn words_hint(name: &str) -> &'static str {
    if name.contains(' ') {
        "; write the program and its arguments as separate words"
    } else {
        ""
    }
}

/// The kind of file at a path.
enum Found {
    Program,
    /// A directory, or a file without execute permission.
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
    fn a_program_is_found_as_the_system_finds_it() {
        let path = |value: &str| vec![("PATH".to_owned(), value.to_owned())];
        let says = |found: Result<(), String>| found.expect_err("it is not there");
        assert_eq!(find("sh", None, &[]), Ok(()));
        assert_eq!(find("/bin/sh", None, &[]), Ok(()));
        assert_eq!(find("bin/sh", Some("/"), &[]), Ok(()));
        assert_eq!(find("./sh", Some("/bin"), &[]), Ok(()));
        assert_eq!(find("sh", Some("/"), &path("nowhere:bin")), Ok(()));
        assert_eq!(find("sh", Some("/bin"), &path("")), Ok(()));
        assert!(says(find("sh", None, &path("/proc"))).contains("not found in PATH"));
        assert!(says(find("no-such-program", None, &[])).contains("not found in PATH"));
        assert!(says(find("./no-such-program", None, &[])).contains("no such file"));
        assert!(says(find("/", None, &[])).contains("executable"));
        assert!(says(find("passwd", None, &path("/etc"))).contains("\"/etc/passwd\""));
        assert!(says(find("", None, &[])).contains("cannot start"));
    }
}
