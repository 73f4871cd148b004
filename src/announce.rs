//! The file that tells other programs where a server listens.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use outrigger::{ListenAddress, Token};
use serde_json::{Map, Value, json};

/// A file that is removed when the server is done.
#[derive(Debug)]
pub(crate) struct Announcement(PathBuf);

impl Announcement {
    /// Writes the file in one piece, for our own user only. `{port}` in its name is the port.
    pub(crate) fn write(
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
                let why = "--announce: a unix socket has no {port}";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            None => name.to_owned(),
        };
        let mut content = json!({
            "pid": std::process::id(),
            "port": port,
            "transport": "ws",
            "url": address.url(path),
            "authToken": token.map(Token::reveal),
        });
        if let Value::Object(fields) = &mut content {
            fields.extend(extra.clone());
        }
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("--announce: {file}: {error}"));
        // Whoever sees the file sees all of it: it is complete before it has its name.
        let unfinished = PathBuf::from(format!("{file}.{}", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut out| out.write_all(format!("{content}\n").as_bytes()))
            .and_then(|()| fs::rename(&unfinished, &file));
        if let Err(error) = written {
            let _ = fs::remove_file(&unfinished);
            return Err(failed(error));
        }
        Ok(Self(file.into()))
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            log::debug!("removing {} failed: {error}", self.0.display());
        }
    }
}
