//! Programs and their names: finds a program before the server listens, so that a wrong name is reported at once, and says how
//! the user can start this one again.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, access};

/// The names of the packages, as lines `KEY=NAME` and comments.
const NAMES: &str = include_str!("../../packaging/names");

/// A command that starts this program in any folder and shell: by an installer that runs programs from its cache, or by its
/// path.
pub(super) fn own_command() -> String {
    let program = env::current_exe().ok();
    let argument = || env::args_os().next().unwrap_or_default();
    let path = program.map_or_else(argument, OsString::from);
    command_of(Path::new(&path))
}

/// The path by which this program was started. Another version may be there later.
///
/// # Errors
///
/// The system does not say where the program is.
pub(super) fn own_path() -> io::Result<PathBuf> {
    let executed = env::current_exe()?;
    let is_same = |path: &PathBuf| {
        let found = (fs::canonicalize(path), fs::canonicalize(&executed));
        matches!(found, (Ok(one), Ok(other)) if one == other)
    };
    // A link, such as one of a package manager, leads to another version later.
    let name = PathBuf::from(env::args_os().next().unwrap_or_default());
    let named = if name.components().count() > 1 {
        std::path::absolute(&name).ok()
    } else {
        let paths = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let mut candidates = env::split_paths(&paths).map(|folder| folder.join(&name));
        candidates.find(is_same)
    };
    Ok(named.filter(is_same).unwrap_or(executed))
}

fn command_of(program: &Path) -> String {
    let is_below = |folders: &[&str]| {
        let folders = folders.iter().copied();
        folders.into_iter().all(|name| {
            let mut components = program.components();
            components.any(|part| part == Component::Normal(name.as_ref()))
        })
    };
    // uv and npm may remove a program from their cache at any time. `uvx` and `npx` start it from the cache, or fetch it again from
    // the registry.
    if is_below(&["uv", "archive-v0"]) {
        return format!("uvx {}", name("PYPI"));
    }
    if is_below(&["_npx", "node_modules"]) {
        return format!("npx {}", name("NPM"));
    }
    quoted(&program.to_string_lossy())
}

/// A name in `packaging/names`.
fn name(key: &str) -> &'static str {
    let mut lines = NAMES.lines().filter_map(|line| line.split_once('='));
    let found = lines.find(|(found, _)| *found == key);
    found.map_or(env!("CARGO_PKG_NAME"), |(_, name)| name)
}

/// A string as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

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
    match fs::metadata(path) {
        Ok(found) if found.is_file() && access(path, Access::EXEC_OK).is_ok() => Found::Program,
        Ok(_) => Found::Other,
        Err(_) => Found::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installer_is_asked_to_start_what_is_in_its_cache() {
        for (path, command) in [
            ("/usr/bin/outrigger", "/usr/bin/outrigger"),
            ("/home/a b/outrigger", "'/home/a b/outrigger'"),
            ("/o'k/outrigger", "'/o'\\''k/outrigger'"),
            (
                "/home/ada/.cache/uv/archive-v0/x7Yz/bin/outrigger",
                "uvx outrigger-ws",
            ),
            (
                "/home/ada/.npm/_npx/9a8b/node_modules/outrigger-linux-x64/outrigger",
                "npx outrigger",
            ),
            // A permanent installation by the same tools.
            (
                "/home/ada/.local/share/uv/tools/outrigger-ws/bin/outrigger",
                "/home/ada/.local/share/uv/tools/outrigger-ws/bin/outrigger",
            ),
            (
                "/srv/app/node_modules/outrigger-linux-x64/outrigger",
                "/srv/app/node_modules/outrigger-linux-x64/outrigger",
            ),
        ] {
            assert_eq!(command_of(Path::new(path)), command);
        }
    }

    #[test]
    fn the_file_of_names_agrees_with_the_manifest() {
        assert_eq!(name("CRATE"), env!("CARGO_PKG_NAME"));
        assert_eq!(name("PROGRAM"), env!("CARGO_PKG_NAME"));
        assert_eq!(name("REPOSITORY"), env!("CARGO_PKG_REPOSITORY"));
        for line in NAMES.lines().filter(|line| !line.starts_with('#')) {
            let (key, name) = line.split_once('=').unwrap_or(("", "x"));
            assert!(key.bytes().all(|byte| byte.is_ascii_uppercase()), "{line}");
            assert!(!name.is_empty() && !name.contains(' '), "{line}");
        }
    }

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
