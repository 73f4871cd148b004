//! Compresses the files of the pages for browsers into the program, and tells the program its commit. With the feature `web`, the
//! files include the published ones of xterm.js and marked, which `web/build.sh` has fetched from npm.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cli")]
    {
        pages::compress();
        commit::find();
    }
}

/// The commit that the program is built from, and the date of its manual page. Both depend on the sources alone, so that the same
/// sources make the same program.
#[cfg(feature = "cli")]
mod commit {
    use std::path::Path;
    use std::process::Command;
    use std::{env, fs};

    /// The sources of the program. The version says `modified` if one of them has changed.
    const SOURCES: [&str; 5] = ["src", "web", "build.rs", "Cargo.toml", "Cargo.lock"];

    /// The file that cargo puts into a package.
    const PACKAGE: &str = ".cargo_vcs_info.json";

    /// The characters of a commit that are shown.
    const SHORT: usize = 12;

    /// The variable with which packagers name the commit.
    const VARIABLE: &str = "OUTRIGGER_COMMIT";

    /// The date for reproducible builds, in seconds since 1970.
    const DATE: &str = "SOURCE_DATE_EPOCH";

    /// Sets `OUTRIGGER_COMMIT` and `OUTRIGGER_DATE` for the compiler, to nothing if they are not known.
    pub(crate) fn find() {
        for name in [VARIABLE, DATE] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let package = fs::read_to_string(PACKAGE).ok();
        let is_repository = package.is_none() && is_repository();
        if is_repository {
            watch();
        }
        let commit = match (env::var(VARIABLE), package) {
            (Ok(given), _) => given,
            (Err(_), Some(text)) => from_package(&text),
            (Err(_), None) if is_repository => from_git(),
            (Err(_), None) => String::new(),
        };
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b" ,.+_-".contains(&byte);
        if !commit.bytes().all(is_word) {
            println!("cargo::error={VARIABLE}: {commit:?} is not the name of a commit");
            return;
        }
        let date = env::var(DATE).ok().or_else(|| {
            let show = || git(&["log", "-1", "--format=%ct", "HEAD"]);
            is_repository.then(show).flatten()
        });
        let date = date.unwrap_or_default();
        if !date.bytes().all(|byte| byte.is_ascii_digit()) {
            println!("cargo::error={DATE}: {date:?} is not a number of seconds");
            return;
        }
        println!("cargo::rustc-env={VARIABLE}={commit}");
        println!("cargo::rustc-env=OUTRIGGER_DATE={date}");
    }

    /// Whether this folder is a repository of its own, and not a part of another one.
    fn is_repository() -> bool {
        git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix.is_empty())
    }

    /// Runs this script again when another commit is checked out or the sources change.
    fn watch() {
        // Cargo takes a file that does not exist for one that has changed.
        let existing = |file: &str| {
            let path = git(&["rev-parse", "--git-path", file])?;
            Path::new(&path).exists().then_some(path)
        };
        // The log of HEAD changes with every commit and checkout, but not every repository has it.
        let watched: Vec<String> = match existing("logs/HEAD") {
            Some(log) => vec![log],
            None => {
                let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
                let files = ["HEAD", "packed-refs"].into_iter();
                let files = files.chain(branch.as_deref());
                files.filter_map(existing).collect()
            }
        };
        for file in watched.iter().map(String::as_str).chain(SOURCES) {
            println!("cargo::rerun-if-changed={file}");
        }
    }

    fn from_git() -> String {
        let Some(commit) = git(&["rev-parse", "HEAD"]) else {
            return String::new();
        };
        let status = ["--no-optional-locks", "status", "--porcelain", "--"];
        let changes = git(&[&status[..], &SOURCES].concat());
        described(&commit, changes.is_some_and(|changes| !changes.is_empty()))
    }

    /// The commit in the file of a package: `{"git":{"sha1":"…","dirty":true}}`.
    fn from_package(text: &str) -> String {
        let commit = text.split("\"sha1\"").nth(1);
        let commit = commit.and_then(|rest| rest.split('"').nth(1));
        let is_dirty = text.split("\"dirty\":").nth(1);
        let is_dirty = is_dirty.is_some_and(|rest| rest.trim_start().starts_with("true"));
        described(commit.unwrap_or_default(), is_dirty)
    }

    fn described(commit: &str, is_modified: bool) -> String {
        let commit = commit.get(..SHORT).unwrap_or(commit);
        let modified = if is_modified { ", modified" } else { "" };
        format!("{commit}{modified}")
    }

    /// The output of a git command, unless it fails or git is not installed.
    fn git(args: &[&str]) -> Option<String> {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    }
}

#[cfg(feature = "cli")]
mod pages {
    use std::fmt::Write;
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::path::{Path, PathBuf};
    use std::{env, fs, io};

    use zlib_rs::{DeflateConfig, ReturnCode, compress_bound, compress_slice};

    /// The folder of our own files.
    const OWN: &str = "web";

    /// Where `web/build.sh` puts the published files of npm packages.
    const PUBLISHED: &str = "web/dist";

    /// A file that is there after `web/build.sh` has run.
    const MAIN_FILE: &str = "xterm.mjs";

    /// What a program without published files has in the place of some files.
    const REPLACEMENTS: [(&str, &str); 2] = [
        ("without_marked.js", "marked.js"),
        ("without_terminal.html", "terminal.html"),
    ];

    /// The files of the terminal page, which need those of xterm.js.
    const TERMINAL: &[&str] = &[
        "outrigger_addon.js",
        "terminal.css",
        "terminal.html",
        "terminal.js",
        "terminal_core.js",
    ];

    /// Writes the files, compressed unless they are HTML, and a table of them, to the folder for generated files.
    pub(crate) fn compress() {
        if let Err(error) = try_compress() {
            println!("cargo::error={error}");
        }
    }

    fn try_compress() -> Result<(), String> {
        let has_terminal = cfg!(feature = "web");
        if has_terminal && !Path::new(PUBLISHED).join(MAIN_FILE).is_file() {
            return Err(format!(
                "the feature `web` needs {PUBLISHED}/{MAIN_FILE}: run web/build.sh first, which takes xterm.js and marked from npm"
            ));
        }
        let mut files = list(OWN)?;
        files.retain(|name, _| {
            let is_page = [".css", ".html", ".js"]
                .iter()
                .any(|end| name.ends_with(end));
            is_page && (has_terminal || !TERMINAL.contains(&name.as_str()))
        });
        for (name, replaced) in REPLACEMENTS {
            let replacement = files.remove(name).filter(|_| !has_terminal);
            files.extend(replacement.map(|path| (replaced.to_owned(), path)));
        }
        if has_terminal {
            files.extend(list(PUBLISHED)?);
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        let mut table = String::from("&[\n");
        for (name, path) in files {
            let failed = |error: io::Error| format!("cannot compress {}: {error}", path.display());
            let content = fs::read(&path).map_err(failed)?;
            let written = out.join(&name);
            // The program replaces addresses in HTML, so this is not compressed. It is short.
            if name.ends_with(".html") {
                fs::write(&written, &content).map_err(failed)?;
            } else {
                write_compressed(&written, &content).map_err(failed)?;
            }
            let tag = entity_tag(&content);
            let _ = writeln!(
                table,
                "    ({name:?}, {tag:?}, include_bytes!({written:?})),"
            );
        }
        table.push_str("]\n");
        fs::write(out.join("pages.rs"), table)
            .map_err(|error| format!("cannot write the table of files: {error}"))
    }

    /// The files of a folder by their names.
    fn list(folder: &str) -> Result<std::collections::BTreeMap<String, PathBuf>, String> {
        let failed = |error: io::Error| format!("cannot read {folder}: {error}");
        let mut files = std::collections::BTreeMap::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(name) = name.filter(|_| path.is_file()) {
                println!("cargo::rerun-if-changed={}", path.display());
                files.insert(name.to_owned(), path);
            }
        }
        Ok(files)
    }

    /// The entity tag of a file: a digest of its content, in quotation marks. Nothing depends on its strength.
    fn entity_tag(content: &[u8]) -> String {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }

    fn write_compressed(path: &Path, content: &[u8]) -> io::Result<()> {
        let config = DeflateConfig {
            level: 9,
            // 16 more than the window: the gzip format.
            window_bits: 16 + 15,
            ..DeflateConfig::default()
        };
        let mut compressed = vec![0; compress_bound(content.len()) + 64];
        let (compressed, code) = compress_slice(&mut compressed, content, config);
        if code != ReturnCode::Ok {
            return Err(io::Error::other(format!("zlib-rs: {code:?}")));
        }
        fs::write(path, compressed)
    }
}
