//! Loads the certificates that the flags name, and keeps a self-signed one.

use std::error::Error;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::announce::{own_names, reached_at};
use super::settings::Settings;
use super::values::ListenValue;
use crate::{ListenAddress, TlsConfig, TlsError, TlsIdentity};
use rustix::fs::OFlags;

/// The maximum size of a file of certificates.
const MAX_FILE: u64 = 1 << 20;

/// A self-signed certificate that expires within this time is replaced.
const RENEWAL: Duration = Duration::from_secs(30 * 24 * 3600);

/// The file in `--tls-dir`, which contains the certificate and its key.
const KEPT_FILE: &str = "outrigger.pem";

impl Settings {
    /// Whether connections to an address use TLS.
    pub(super) fn uses_tls(&self, listen: &ListenValue) -> bool {
        match listen {
            ListenValue::Address(listen) => listen.uses_tls(self.tls.is_on()),
            ListenValue::Descriptor(_, tls) => tls.unwrap_or(false),
        }
    }

    /// Loads the certificates, if TLS is on. A self-signed certificate that is not kept in a directory is reused from
    /// `present`, or from the program before this one.
    ///
    /// # Errors
    ///
    /// One line that names the flag and the file.
    pub(super) fn load_tls(
        &self,
        present: Option<&TlsConfig>,
    ) -> Result<Option<TlsConfig>, String> {
        let flags = &self.tls;
        let is_running = present.is_some();
        let (identity, from, from_key) = match (&flags.cert, &flags.key) {
            (Some(cert), Some(key)) => {
                let identity = load_identity(cert, key, is_running)?;
                (identity, named("--tls-cert", cert), named("--tls-key", key))
            }
            _ if flags.self_signed => {
                let from = match &flags.dir {
                    Some(dir) => named("--tls-dir", &dir.join(KEPT_FILE)),
                    None => "--tls-self-signed".to_owned(),
                };
                let present = present.map(TlsConfig::identity);
                let identity = self.self_signed(present);
                let identity = identity.map_err(|error| format!("{from}: {error}"))?;
                (identity, from.clone(), from)
            }
            _ => return Ok(None),
        };
        let config = TlsConfig::new(identity).map_err(|error| match error {
            TlsError::Key(_) => format!("{from_key}: {error}"),
            _ => format!("{from}: {error}"),
        })?;
        let config = match &flags.client_ca {
            Some(file) => {
                let from = named("--tls-client-ca", file);
                let text = read(file, is_running).map_err(|error| format!("{from}: {error}"))?;
                let added = config.with_client_ca(&text);
                added.map_err(|error| format!("{from}: {error}"))?
            }
            None => config,
        };
        Ok(Some(config.with_client_auth(flags.client_auth)))
    }

    /// The self-signed certificate: the one in the directory, the present one, or a new one.
    fn self_signed(&self, present: Option<&TlsIdentity>) -> Result<TlsIdentity, Box<dyn Error>> {
        let now = SystemTime::now();
        let lasts = |identity: &TlsIdentity| identity.not_after() > now + RENEWAL;
        let create = || TlsIdentity::self_signed(&self.certificate_names());
        let Some(dir) = &self.tls.dir else {
            let present = present.or(self.passed_on.certificate.as_ref());
            return match present.filter(|present| lasts(present)) {
                Some(present) => Ok(present.clone()),
                None => Ok(create()?.0),
            };
        };
        let file = dir.join(KEPT_FILE);
        let is_running = present.is_some();
        let present = || match read(&file, is_running) {
            Ok(text) => Ok::<_, Box<dyn Error>>(Some(TlsIdentity::from_pem(&text, &text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        };
        let kept = present()?;
        if let Some(kept) = kept.as_ref().filter(|kept| lasts(kept)) {
            if kept.not_before() > now {
                log::warn!(
                    "--tls-dir: the certificate is not valid yet; if the clock is right, delete {KEPT_FILE}"
                );
            }
            self.warn_of_missing_names(kept);
            return Ok(kept.clone());
        }
        let (identity, text) = create()?;
        if self.has("check") {
            return Ok(identity);
        }
        let stored = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        let stored = stored.and_then(|()| store(&file, &text, kept.is_none()));
        match (stored, kept) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                log::info!("--tls-dir: replaced the certificate, which expires soon");
            }
            (Err(error), Some(kept)) if kept.not_after() > now => {
                log::warn!(
                    "--tls-dir: cannot replace the certificate, which expires soon: {error}"
                );
                return Ok(kept);
            }
            (Err(error), _) => return Err(error.into()),
        }
        // If several servers start at once, all use the certificate that the first one has stored.
        let same = present()?;
        let lost = || io::Error::other("the file cannot be read after it was stored");
        Ok(same.ok_or_else(lost)?)
    }

    /// Warns about names of this server that the kept certificate does not have.
    fn warn_of_missing_names(&self, kept: &TlsIdentity) {
        let names = self.certificate_names();
        let is_missing = |name: &&String| !kept.names().contains(&name.to_ascii_lowercase());
        let missing: Vec<_> = names
            .iter()
            .filter(is_missing)
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            log::warn!(
                "--tls-dir: the certificate is not valid for {missing}; to create another, delete {KEPT_FILE}"
            );
        }
    }

    /// The file that keeps the self-signed certificate with its key.
    pub(super) fn kept_certificate(&self) -> Option<PathBuf> {
        Some(self.tls.dir.as_ref()?.join(KEPT_FILE))
    }

    /// The names and addresses by which clients reach this server.
    fn certificate_names(&self) -> Vec<String> {
        let mut names = own_names();
        names.push("localhost".to_owned());
        let is_name = |host: &&String| host.is_ascii() && !host.contains(['*', '[', ':']);
        names.extend(self.server.access.hosts.iter().filter(is_name).cloned());
        let mut ips: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for listen in &self.listen {
            let ListenValue::Address(listen) = listen else {
                continue;
            };
            let address = listen
                .ip()
                .map(|ip| ListenAddress::of_tcp(SocketAddr::new(ip, 0)));
            let reached = address.iter().flat_map(reached_at);
            ips.extend(reached.filter_map(|address| Some(address.tcp()?.ip())));
        }
        names.extend(ips.iter().map(ToString::to_string));
        let mut seen = std::collections::BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }
}

fn load_identity(cert: &Path, key: &Path, is_running: bool) -> Result<TlsIdentity, String> {
    let (from_cert, from_key) = (named("--tls-cert", cert), named("--tls-key", key));
    let chain = read(cert, is_running).map_err(|error| format!("{from_cert}: {error}"))?;
    let key = read(key, is_running).map_err(|error| format!("{from_key}: {error}"))?;
    TlsIdentity::from_pem(&chain, &key).map_err(|error| match error {
        TlsError::Key(_) => format!("{from_key}: {error}"),
        _ => format!("{from_cert}: {error}"),
    })
}

fn named(flag: &str, file: &Path) -> String {
    format!("{flag}: {}", file.display())
}

/// Reads a file of limited size. A server that is running reads regular files only, because a pipe could block it.
pub(super) fn read(file: &Path, is_running: bool) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true);
    if is_running {
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    }
    let file = options.open(file)?;
    if is_running && !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        let why = "the file is too large";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Stores a certificate with its key, for the server's user only. The file is complete before it gets its name. With
/// `is_new`, a file that another server has created in the meantime stays.
fn store(file: &Path, text: &str, is_new: bool) -> io::Result<()> {
    let unfinished = file.with_extension(format!("{}.tmp", crate::sys::random_uuid().simple()));
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    let stored = out
        .write_all(text.as_bytes())
        .and_then(|()| out.sync_all())
        .and_then(
            |()| match is_new.then(|| fs::hard_link(&unfinished, file)) {
                Some(Ok(())) => Ok(()),
                Some(Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                // Some file systems have no hard links.
                Some(Err(_)) | None => fs::rename(&unfinished, file),
            },
        );
    // It is gone if it was renamed.
    let _ = fs::remove_file(&unfinished);
    stored
}
