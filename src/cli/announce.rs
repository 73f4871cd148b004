//! The file of `--announce`, which tells other programs where a server listens.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::sys::random_uuid;
use crate::{ListenAddress, Token};

/// The file. It is removed on drop, unless another file has taken its name.
#[derive(Debug)]
pub(super) struct Announcement {
    path: PathBuf,
    /// The open file. While it is open, its inode number identifies it.
    file: File,
}

impl Announcement {
    /// Writes the file atomically, with access for the server's user only. `{port}` in `name` stands for the port.
    pub(super) fn write(
        name: &str,
        address: &ListenAddress,
        path: &str,
        token: Option<&Token>,
        extra: &Map<String, Value>,
    ) -> io::Result<Self> {
        let port = address.tcp().map(|address| address.port());
        let file = match port {
            Some(port) => name.replace("{port}", &port.to_string()),
            None if name.contains("{port}") => {
                let why = "--announce: a unix socket has no port for {port}";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            None => name.to_owned(),
        };
        let mut content = json!({
            "pid": std::process::id(),
            "port": port,
            "transport": if address.is_tls() { "wss" } else { "ws" },
            "url": address.url(path),
            "authToken": token.map(Token::reveal),
        });
        if let Value::Object(fields) = &mut content {
            fields.extend(extra.clone());
        }
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("--announce: {file}: {error}"));
        // A reader must never see a part of the file, so it is complete before it gets its name.
        let unfinished = PathBuf::from(format!("{file}.{}", random_uuid().simple()));
        let mut out = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .map_err(failed)?;
        let written = out
            .write_all(format!("{content}\n").as_bytes())
            .and_then(|()| fs::rename(&unfinished, &file));
        match written {
            Ok(()) => Ok(Self {
                path: file.into(),
                file: out,
            }),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(failed(error))
            }
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let same = |made: fs::Metadata, found: fs::Metadata| {
            (made.dev(), made.ino()) == (found.dev(), found.ino())
        };
        let found = fs::symlink_metadata(&self.path);
        let ours = self
            .file
            .metadata()
            .is_ok_and(|made| found.is_ok_and(|found| same(made, found)));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            log::debug!("removing {} failed: {error}", self.path.display());
        }
    }
}
