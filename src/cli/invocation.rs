//! How the user can start this program again, as words for a shell.

use std::ffi::OsString;
use std::path::{Component, Path};

/// The names of the packages, as lines `KEY=NAME` and comments.
const NAMES: &str = include_str!("../../packaging/names");

/// A command that starts this program in any folder and shell: by an installer that runs programs from its cache, or by its
/// path.
pub(super) fn command() -> String {
    let program = std::env::current_exe().ok();
    let argument = || std::env::args_os().next().unwrap_or_default();
    let path = program.map_or_else(argument, OsString::from);
    command_of(Path::new(&path))
}

fn command_of(program: &Path) -> String {
    let is_below = |folders: &[&str]| {
        let folders = folders.iter().copied();
        folders.into_iter().all(|name| {
            let mut components = program.components();
            components.any(|part| part == Component::Normal(name.as_ref()))
        })
    };
    // uv and npm remove a program from their cache when they like, but start it again from there or from its registry.
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
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
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
}
