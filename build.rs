//! Compresses the files of the pages for browsers into the program. With the feature `web`, these include the published files of
//! xterm.js, which `web/build.sh` has fetched from npm.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cli")]
    pages::compress();
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

    /// What a program without the terminal page has in its place.
    const WITHOUT_TERMINAL: &str = "without_terminal.html";

    /// The files of the terminal page, which need those of xterm.js.
    const TERMINAL: &[&str] = &[
        "connection.js",
        "terminal.css",
        "terminal.html",
        "terminal.js",
    ];

    /// Writes the compressed files, and a table of them, to the folder for generated files.
    pub(crate) fn compress() {
        if let Err(error) = try_compress() {
            println!("cargo::error={error}");
        }
    }

    fn try_compress() -> Result<(), String> {
        let has_terminal = cfg!(feature = "web");
        if has_terminal && !Path::new(PUBLISHED).join(MAIN_FILE).is_file() {
            return Err(format!(
                "the feature `web` needs {PUBLISHED}/{MAIN_FILE}: run web/build.sh first, which takes xterm.js from npm"
            ));
        }
        let mut files = list(OWN)?;
        files.retain(|name, _| {
            let is_page = [".css", ".html", ".js"]
                .iter()
                .any(|end| name.ends_with(end));
            is_page && (has_terminal || !TERMINAL.contains(&name.as_str()))
        });
        let replacement = files.remove(WITHOUT_TERMINAL);
        if has_terminal {
            files.extend(list(PUBLISHED)?);
        } else {
            files.extend(replacement.map(|path| ("terminal.html".to_owned(), path)));
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        let mut table = String::from("&[\n");
        for (name, path) in files {
            let failed = |error: io::Error| format!("cannot compress {}: {error}", path.display());
            let content = fs::read(&path).map_err(failed)?;
            let compressed = out.join(format!("{name}.gz"));
            write_compressed(&compressed, &content).map_err(failed)?;
            let tag = entity_tag(&content);
            let _ = writeln!(
                table,
                "    ({name:?}, {tag:?}, include_bytes!({compressed:?})),"
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
