//! The pages for browsers: a terminal, an agent, and the console.
//!
//! The pages and their files, which are part of the program, hold nothing secret, so they need no
//! token. A page gets its token from the fragment of its address or from its user, and presents it with each request that it
//! makes.

use crate::service::{Endpoint, Pages};
use crate::{
    ClientId, Context, Rejection, Report, Request, Response, Route, Scope, Service, StatusCode,
    StatusFields,
};

/// The prefix of the paths of the pages' files, and of what only the pages use.
const PREFIX: &str = "/.outrigger/";

/// The path of the log.
const LOG: &str = "/.outrigger/log";

/// The icon that browsers ask for when they open an address that has no page, such as `/status`. There is none.
const ICON: &str = "/favicon.ico";

/// The prefix of the paths of files.
const FILE_PREFIX: &str = "/.outrigger/web/";

/// What a page may load and do: only from this server, and in no other page's frame. xterm.js sets styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; \
     img-src 'self' data:; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What a browser sees at the path of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoutePage {
    /// No page.
    None,
    /// A terminal.
    Terminal,
    /// The console, and a terminal for each process.
    Processes,
    /// The sessions of an agent.
    Agent,
}

/// Where the console is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConsolePlace {
    Nowhere,
    /// At `/`, unless a route is there.
    Root,
    /// At `/`, unless a route with a page of its own is there.
    AlsoAtRoute,
}

/// Answers the requests of browsers for pages, and those of the console for the log.
#[derive(Debug)]
pub(crate) struct Site {
    /// The routes of the server.
    routes: Vec<(Endpoint, RoutePage)>,
    /// Where the console is.
    console: ConsolePlace,
    /// Whether the server is the demo, in which people send messages to services by hand.
    is_demo: bool,
    /// The lines of the log after a number, as JSON.
    log: fn(after: Option<u64>) -> String,
}

impl Site {
    pub(crate) fn new(
        routes: Vec<(Endpoint, RoutePage)>,
        console: ConsolePlace,
        is_demo: bool,
        log: fn(Option<u64>) -> String,
    ) -> Self {
        Self {
            routes,
            console,
            is_demo,
            log,
        }
    }

    /// The name of the page that a request asks for. `route` is the index of the route at the path.
    fn page(&self, request: &Request<'_>, route: Option<usize>) -> Option<&'static str> {
        if !is_read(request) {
            return None;
        }
        let Some(index) = route else {
            let has_console = self.console != ConsolePlace::Nowhere;
            return (has_console && request.path() == "/").then_some("console.html");
        };
        let (endpoint, page) = self.routes.get(index)?;
        if !accepts_html(request) {
            return None;
        }
        match page {
            RoutePage::None => {
                let is_here = self.console == ConsolePlace::AlsoAtRoute && request.path() == "/";
                is_here.then_some("console.html")
            }
            RoutePage::Terminal => Some("terminal.html"),
            RoutePage::Agent => Some("agent.html"),
            RoutePage::Processes => match endpoint.below(request.path())? {
                "" | "/" => Some("console.html"),
                below if below.ends_with("/attach") => Some("terminal.html"),
                below => {
                    let name = below.strip_prefix("/by-name/")?;
                    (!name.contains('/')).then_some("terminal.html")
                }
            },
        }
    }

    /// The route at a path, as [`Routes`](crate::service::Routes) finds it.
    fn route_at(&self, path: &str) -> Option<usize> {
        let routes = self.routes.iter().enumerate();
        let matching = routes.filter(|(_, (endpoint, _))| endpoint.matches(path));
        matching
            .max_by_key(|(_, (endpoint, _))| endpoint.path().len())
            .map(|(index, _)| index)
    }

    fn answer(&self, request: &Request<'_>) -> Result<Response, Rejection> {
        let path = request.path();
        if !is_read(request) {
            return Err(Rejection::method_not_allowed("GET, HEAD"));
        }
        if path == LOG {
            let after = request.parameters("after").next();
            let after = after.map(|after| after.parse()).transpose();
            let after = after.map_err(|_| {
                let why = "'after' is not a number";
                Rejection::new(StatusCode::BAD_REQUEST, why)
            })?;
            return Ok(Response::json(StatusCode::OK, (self.log)(after)));
        }
        if path == ICON {
            let none = Response::new(StatusCode::NO_CONTENT, "", b"".as_slice());
            return Ok(none.field("Cache-Control", "max-age=86400"));
        }
        let file_name = path.strip_prefix(FILE_PREFIX);
        let name = match file_name {
            Some(name) => name,
            None => self
                .page(request, self.route_at(path))
                .ok_or_else(Rejection::not_found)?,
        };
        let file = find_file(name).ok_or_else(Rejection::not_found)?;
        if !file.is_html() && !accepts_gzip(request) {
            let why = "the files of the pages are compressed with gzip, which this request does not accept";
            return Err(Rejection::new(StatusCode::NOT_ACCEPTABLE, why));
        }
        let mut known = request.list("if-none-match");
        let response = if known.any(|tag| tag.trim_start_matches("W/") == file.entity_tag) {
            Response::new(StatusCode::NOT_MODIFIED, "", b"".as_slice())
        } else {
            file.response(path)
        };
        // At the path of a page, the response depends on `Accept`: browsers get the page, other clients do not.
        let vary = match file_name {
            Some(_) => "Accept-Encoding",
            None => "Accept, Accept-Encoding",
        };
        Ok(response
            .field("Cache-Control", "no-cache")
            .field("ETag", file.entity_tag)
            .field("Vary", vary)
            .field("Referrer-Policy", "no-referrer")
            .field("Content-Security-Policy", POLICY))
    }
}

/// Whether a request only reads.
fn is_read(request: &Request<'_>) -> bool {
    matches!(request.method(), "GET" | "HEAD")
}

/// Whether the caller is a browser that opens an address: it accepts HTML by name, and sends no token in a header. Some
/// libraries for programs accept HTML by name, too.
fn accepts_html(request: &Request<'_>) -> bool {
    request.accepts("accept", "text/html") && request.header("authorization").is_none()
}

/// Whether the caller accepts gzip. It does if it names no encodings (RFC 9110 section 12.5.3).
fn accepts_gzip(request: &Request<'_>) -> bool {
    const FIELD: &str = "accept-encoding";
    request.header(FIELD).is_none() || request.accepts(FIELD, "gzip") || request.accepts(FIELD, "*")
}

impl Pages for Site {
    fn answers(&self, request: &Request<'_>, route: Option<usize>) -> bool {
        let is_icon = request.path() == ICON && route.is_none() && is_read(request);
        is_icon || request.path().starts_with(PREFIX) || self.page(request, route).is_some()
    }
}

impl Service for Site {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        // Anyone may ask, so the server waits for no body.
        let accepted = request.expect_no_body();
        let route = accepted.map(|()| Route::call().with_max_body(0));
        let route = route.unwrap_or_else(Route::from);
        Ok(if request.path() == LOG {
            route.with_scope(Scope::All)
        } else {
            route.public()
        })
    }

    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, _: &[u8]) {
        let answer = self.answer(request);
        let response = answer.unwrap_or_else(|rejection| Response::from(&rejection));
        ctx.respond(caller, &response);
    }

    fn report(&self) -> Option<&dyn Report> {
        Some(self)
    }
}

impl Report for Site {
    fn status(&self) -> StatusFields {
        let pages = StatusFields::new()
            .set("terminal", cfg!(feature = "web"))
            .set("demo", self.is_demo);
        StatusFields::new().set("pages", pages)
    }
}

/// The files: their names, their entity tags, and their contents, which are compressed unless they are HTML. `build.rs` writes this
/// table.
const FILES: &[(&str, &str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// A file of a page.
#[derive(Clone, Copy, Debug)]
struct File {
    name: &'static str,
    /// The entity tag (RFC 9110 section 8.8.3), which changes with the content.
    entity_tag: &'static str,
    content: &'static [u8],
}

/// The file of this name.
fn find_file(name: &str) -> Option<File> {
    let (name, entity_tag, content) = *FILES.iter().find(|file| file.0 == name)?;
    Some(File {
        name,
        entity_tag,
        content,
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

    fn is_html(self) -> bool {
        self.name.ends_with(".html")
    }

    /// The file as a response to a request for `path`.
    ///
    /// A proxy may have the server's paths below a path of its own, which the server does not know. So the addresses in HTML are
    /// relative to the path, and scripts and style sheets use addresses that are relative to their own.
    fn response(self, path: &str) -> Response {
        if !self.is_html() {
            return Response::new(StatusCode::OK, self.media_type(), self.content)
                .field("Content-Encoding", "gzip");
        }
        let html = String::from_utf8_lossy(self.content);
        let html = html.replace("\"/.outrigger/", &format!("\"{}.outrigger/", root_of(path)));
        Response::new(StatusCode::OK, self.media_type(), html.into_bytes())
    }
}

/// The relative address of `/` in a page at `path`.
fn root_of(path: &str) -> String {
    match path.matches('/').count() {
        0 | 1 => "./".to_owned(),
        slashes => "../".repeat(slashes - 1),
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
    fn addresses_in_html_are_relative_to_the_page() {
        // The bug: behind a proxy with a path of its own, such as /tools/, the pages looked for their files at /.outrigger/.
        for (path, root) in [
            ("/", "./"),
            ("/terminal", "./"),
            ("/process/", "../"),
            ("/process/by-name/x", "../../"),
            ("//x", "../"),
        ] {
            assert_eq!(root_of(path), root, "{path}");
        }
    }

    #[test]
    fn every_file_is_compressed_and_names_only_files_that_are_there() {
        for page in ["console.html", "agent.html", "terminal.html"] {
            assert!(find_file(page).is_some(), "{page}");
        }
        assert_eq!(find_file("xterm.mjs").is_some(), cfg!(feature = "web"));
        for (name, tag, content) in FILES {
            let text = if name.ends_with(".html") {
                String::from_utf8(content.to_vec()).expect("UTF-8")
            } else {
                decompress(content)
            };
            assert!(!text.is_empty() && tag.len() > 2, "{name}");
            assert!(name.ends_with(".html") || !text.contains("\"/.outrigger/web/"));
            let named = ["\"/.outrigger/web/", "from \"./", "import(\"./"];
            for part in named.iter().flat_map(|prefix| text.split(prefix).skip(1)) {
                let named = part.split('"').next().unwrap_or_default();
                assert!(find_file(named).is_some(), "{name} names {named}");
            }
        }
        assert!(find_file("../Cargo.toml").is_none() && find_file("").is_none());
    }
}
