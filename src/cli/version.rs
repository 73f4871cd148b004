//! The text of `--version`.

/// The features that a program can have.
const FEATURES: &[(&str, bool)] = &[
    ("cli", cfg!(feature = "cli")),
    ("client", cfg!(feature = "client")),
    ("deflate", cfg!(feature = "deflate")),
    ("mcp", cfg!(feature = "mcp")),
    ("server", cfg!(feature = "server")),
    ("tls", cfg!(feature = "tls")),
    ("web", cfg!(feature = "web")),
];

/// The commit that the program is built from, and whether its sources were modified. Empty if that is not known.
const COMMIT: &str = env!("OUTRIGGER_COMMIT");

/// The date of the sources in seconds since 1970. Empty if it is not known.
const DATE: &str = env!("OUTRIGGER_DATE");

/// `outrigger 0.1.0 (COMMIT)` and the features, on a line each.
pub(super) fn text() -> String {
    let commit = match COMMIT {
        "" => String::new(),
        commit => format!(" ({commit})"),
    };
    let features = FEATURES.iter().filter(|(_, is_built_in)| *is_built_in);
    let features: Vec<_> = features.map(|(name, _)| *name).collect();
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "outrigger {version}{commit}\nfeatures: {}\n",
        features.join(" ")
    )
}

/// The date of the sources as `2026-01-31`, if it is known.
pub(super) fn date() -> Option<String> {
    let since_1970 = std::time::Duration::from_secs(DATE.parse().ok()?);
    let time = std::time::UNIX_EPOCH.checked_add(since_1970)?;
    let mut date = humantime::format_rfc3339_seconds(time).to_string();
    date.truncate("2026-01-31".len());
    Some(date)
}
