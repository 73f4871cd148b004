//! The files of the pages, which are part of the program, compressed with gzip.

use crate::{Response, StatusCode};

/// The files: their names, their entity tags, and their compressed contents. `build.rs` writes this table.
const FILES: &[(&str, &str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// A file of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    name: &'static str,
    /// The entity tag (RFC 9110 section 8.8.3), which changes with the content.
    pub(super) entity_tag: &'static str,
    compressed: &'static [u8],
}

/// The file of this name.
pub(super) fn find(name: &str) -> Option<File> {
    let (name, entity_tag, compressed) = *FILES.iter().find(|file| file.0 == name)?;
    Some(File {
        name,
        entity_tag,
        compressed,
    })
}

impl File {
    /// The media type of the file.
    fn media_type(self) -> &'static str {
        match self.name.rsplit_once('.').map_or("", |(_, suffix)| suffix) {
            "css" => "text/css; charset=utf-8",
            "html" => "text/html; charset=utf-8",
            "js" | "mjs" => "text/javascript; charset=utf-8",
            _ => "text/plain; charset=utf-8",
        }
    }

    /// The file as a response.
    pub(super) fn response(self) -> Response {
        Response::new(StatusCode::OK, self.media_type(), self.compressed)
            .field("Content-Encoding", "gzip")
    }
}

#[cfg(test)]
mod tests {
    use zlib_rs::{InflateConfig, ReturnCode, decompress_slice};

    use super::*;

    fn decompress(compressed: &[u8]) -> String {
        let mut content = vec![0; 100 * compressed.len()];
        // 16 more than the window: the gzip format.
        let config = InflateConfig {
            window_bits: 16 + 15,
        };
        let (content, code) = decompress_slice(&mut content, compressed, config);
        assert_eq!(code, ReturnCode::Ok);
        String::from_utf8(content.to_vec()).expect("UTF-8")
    }

    #[test]
    fn every_file_is_compressed_and_names_only_files_that_are_there() {
        for page in ["console.html", "session.html", "terminal.html"] {
            assert!(find(page).is_some(), "{page}");
        }
        assert_eq!(find("xterm.mjs").is_some(), cfg!(feature = "web"));
        for (name, tag, compressed) in FILES {
            let text = decompress(compressed);
            assert!(!text.is_empty() && tag.len() > 2, "{name}");
            let named = ["\"/.outrigger/web/", "from \"./", "import(\"./"];
            for part in named.iter().flat_map(|prefix| text.split(prefix).skip(1)) {
                let named = part.split('"').next().unwrap_or_default();
                assert!(find(named).is_some(), "{name} names {named}");
            }
        }
        assert!(find("../Cargo.toml").is_none() && find("").is_none());
    }
}
