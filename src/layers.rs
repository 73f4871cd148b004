//! Checks that a layer uses only the layers below it, and a room of the server only the rooms below it, that circles of imports are
//! small, that the product does not use the fuzzers, and that only the layers at the top know flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate from the bottom to the top.
const LAYERS: [&str; 11] = [
    "sys",
    "record",
    "secret",
    "text",
    "log_event",
    "protocol",
    "server",
    "service",
    "web",
    "demo",
    "cli",
];
const KNOW_FLAGS: [&str; 2] = ["demo", "cli"];

/// The rooms of the server from the bottom to the top. Every room uses the files beside the rooms.
const ROOMS: [&str; 11] = [
    "access",
    "observe",
    "tls",
    "event_loop",
    "outgoing",
    "resume",
    "client",
    "topics",
    "requests",
    "limits",
    "upgrade",
];

/// The files of the server that use a room above theirs. The loop itself calls all rooms. The others have the part of `Core` that is
/// about their room.
const USE_ROOMS_ABOVE: [(&str, &str); 14] = [
    ("access/authorization", "event_loop"),
    ("access/authorization", "requests"),
    ("access/authorization", "tls"),
    ("event_loop", "client"),
    ("event_loop", "upgrade"),
    ("event_loop/reading", "client"),
    ("event_loop/reading", "outgoing"),
    ("event_loop/reading", "requests"),
    ("event_loop/startup", "outgoing"),
    ("observe/client_query", "client"),
    ("outgoing/answer", "client"),
    ("outgoing/connecting", "client"),
    ("resume", "client"),
    ("tls/renewal", "client"),
];

/// The maximum number of files in a circle of imports. Move a type that several files of a circle need to a file below them.
const MAX_CIRCLE: usize = 6;

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|other| *other == layer)
}

/// The layer, the path and the product code of each source file.
fn sources() -> Vec<(String, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut left: Vec<PathBuf> = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(path) = left.pop() {
        if let Ok(entries) = fs::read_dir(&path) {
            left.extend(entries.map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let name = path.strip_prefix(&root).expect("it is below");
        let name = name.with_extension("").display().to_string();
        let layer = name.split('/').next().unwrap_or_default().to_owned();
        let is_test = |part| ["tests", "simulation", "pair", "memory_stream"].contains(&part);
        if rank(&layer).is_some() && !name.split('/').any(is_test) {
            let text = fs::read_to_string(&path).expect("a source file");
            // The tests of a file stand at its end.
            let tests = text.match_indices("#[cfg(test)]\nmod ");
            let mut tests = tests.filter(|(at, _)| {
                let lines = &mut text[*at..].lines().skip(1);
                lines.next().is_some_and(|line| line.ends_with('{'))
            });
            let product = &text[..tests.next().map_or(text.len(), |(at, _)| at)];
            sources.push((layer, name, product.to_owned()));
        }
    }
    assert!(sources.len() > 200, "only {} files", sources.len());
    sources
}

#[test]
fn no_layer_uses_a_layer_above_it_or_the_fuzzers() {
    for (layer, path, product) in sources() {
        for used in product.split("crate::").skip(1) {
            let end = used.find(|char: char| !char.is_alphanumeric() && char != '_');
            let used = &used[..end.unwrap_or(used.len())];
            assert_ne!(used, "fuzz", "{path} uses a fuzzer");
            assert!(rank(used) <= rank(&layer), "{path} uses {used}, above it");
        }
    }
}

#[test]
fn only_the_layers_at_the_top_know_flags() {
    for (layer, path, product) in sources() {
        let code = product
            .lines()
            .filter(|line| !line.trim().starts_with("//"));
        for literal in code.flat_map(|line| line.split('"').skip(1).step_by(2)) {
            let mut words = literal.split([' ', '(', '\'', '=']);
            let is_flag = |word: &str| {
                let name = word.strip_prefix("--").unwrap_or_default();
                name.starts_with(|first: char| first.is_ascii_lowercase())
            };
            let knows = KNOW_FLAGS.contains(&layer.as_str());
            assert!(knows || !words.any(is_flag), "{path}: {literal}");
        }
    }
}

/// Invariant 2 of ARCHITECTURE.md.
#[test]
fn a_service_hears_of_the_end_of_a_client_in_one_place() {
    let mut places = Vec::new();
    for (_, path, product) in sources() {
        for name in ["report_end(", ".disconnected(ctx"] {
            let count = product.matches(name).count();
            let is_service = path.starts_with("service/");
            places.extend((count > 0 && !is_service).then(|| (path.clone(), name, count)));
        }
    }
    // The function, and its only call.
    let place = "server/event_loop/mod".to_owned();
    let want = [
        (place.clone(), "report_end(", 2),
        (place, ".disconnected(ctx", 1),
    ];
    assert_eq!(places, want);
}

/// A path, such as `server::client::Client`.
type Names = Vec<String>;

/// Appends the paths of a `use` tree to `paths`, each behind `prefix`.
fn expand(prefix: &[&str], tree: &str, paths: &mut Vec<Names>) {
    let (head, inside) = tree.split_once('{').unwrap_or((tree, ""));
    let (head, _) = head.split_once(" as ").unwrap_or((head, ""));
    let names = head.split("::").map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    let mut path: Vec<&str> = prefix.iter().copied().chain(names).collect();
    // The module itself, in braces.
    path.pop_if(|name| *name == "self" && !prefix.is_empty());
    if inside.is_empty() {
        return paths.push(path.into_iter().map(str::to_owned).collect());
    }
    let (mut depth, mut start) = (0, 0);
    for (at, char) in inside.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let part = inside[start..at].trim();
                if !part.is_empty() {
                    expand(&path, part, paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// What a module imports.
#[derive(Default)]
struct Imports {
    /// The paths from the root of the crate.
    paths: Vec<Names>,
    /// The paths of the items that it exports again, by their names.
    exports: BTreeMap<String, Names>,
}

/// A path as a module writes it, from the root of the crate. `None` if it leads to another crate, or begins with an item of the module.
fn absolute(
    path: &[String],
    module: &[String],
    scope: &BTreeMap<String, Names>,
    modules: &BTreeSet<Names>,
) -> Option<Names> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let child = [module, &path[..1]].concat();
    let (base, own) = match path[0].as_str() {
        "crate" => (&[][..], &path[1..]),
        "self" => (module, &path[1..]),
        "super" => (&module[..module.len().saturating_sub(ups)], &path[ups..]),
        _ if modules.contains(&child) => (module, path),
        name => (&scope.get(name)?[..], &path[1..]),
    };
    Some([base, own].concat())
}

/// Reads the `use` declarations and the other paths of a module.
fn read_imports(module: &[String], product: &str, modules: &BTreeSet<Names>) -> Imports {
    let lines = product.lines().map(str::trim);
    let code: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    let (mut imports, mut scope, mut rest) = (Imports::default(), BTreeMap::new(), String::new());
    for statement in code.join(" ").split(';') {
        let Some((before, tree)) = statement.rsplit_once("use ") else {
            rest.push_str(statement);
            continue;
        };
        rest.push_str(before);
        let attributes = &before[before.rfind(['}', ';']).map_or(0, |at| at + 1)..];
        if ["(test", "fuzzing", "doc"]
            .iter()
            .any(|part| attributes.contains(part))
        {
            continue;
        }
        let is_export = attributes.contains("pub");
        let mut paths = Vec::new();
        expand(&[], tree, &mut paths);
        for path in paths {
            let Some(path) = absolute(&path, module, &scope, modules) else {
                continue;
            };
            let name = path.last().cloned().unwrap_or_default();
            scope.insert(name.clone(), path.clone());
            match is_export {
                true => drop(imports.exports.insert(name, path)),
                false => imports.paths.push(path),
            }
        }
    }
    let of_path = |char: char| char.is_alphanumeric() || "_:".contains(char);
    for word in rest.split(|char| !of_path(char)) {
        let names = word.split("::").filter(|name| !name.is_empty());
        let path: Names = names.map(str::to_owned).collect();
        match &path[..] {
            [] => {}
            // What it exports may be for itself, too.
            [name] => imports.paths.extend(imports.exports.get(name).cloned()),
            _ => imports
                .paths
                .extend(absolute(&path, module, &scope, modules)),
        }
    }
    imports
}

/// The module that defines the item at a path. Follows items that are exported again.
fn defining(modules: &BTreeMap<Names, Imports>, path: &[String]) -> Option<Names> {
    let mut lengths = (1..=path.len()).rev();
    let length = lengths.find(|length| modules.contains_key(&path[..*length]))?;
    let (module, name) = (&path[..length], path.get(length)?);
    match modules[module].exports.get(name) {
        Some(exported) if **exported != path[..=length] => {
            defining(modules, &[exported, &path[length + 1..]].concat())
        }
        _ => Some(module.to_vec()),
    }
}

/// The modules that a module imports, directly or indirectly.
fn below<'a>(imported: &'a BTreeMap<Names, BTreeSet<Names>>, of: &'a Names) -> BTreeSet<&'a Names> {
    let (mut left, mut found) = (vec![of], BTreeSet::new());
    while let Some(next) = left.pop() {
        left.extend(imported[next].iter().filter(|other| found.insert(*other)));
    }
    found
}

/// The modules that each module imports.
fn imports() -> BTreeMap<Names, BTreeSet<Names>> {
    let sources = sources().into_iter().map(|(_, path, product)| {
        let path = path.strip_suffix("/mod").unwrap_or(&path);
        let module: Names = path.split('/').map(str::to_owned).collect();
        (module, product)
    });
    let sources: BTreeMap<Names, String> = sources.collect();
    let known: BTreeSet<Names> = sources.keys().cloned().collect();
    let modules = sources.iter().map(|(module, product)| {
        let imports = read_imports(module, product, &known);
        (module.clone(), imports)
    });
    let modules: BTreeMap<Names, Imports> = modules.collect();
    let imported = modules.iter().map(|(module, imports)| {
        let paths = imports.paths.iter();
        let defining = paths.filter_map(|path| defining(&modules, path));
        (
            module.clone(),
            defining.filter(|other| other != module).collect(),
        )
    });
    imported.collect()
}

#[test]
fn a_room_of_the_server_uses_the_rooms_below_it() {
    let room = |module: &Names| match &module[..] {
        [layer, room, ..] if layer == "server" => ROOMS.iter().position(|other| other == room),
        _ => None,
    };
    let mut above = BTreeSet::new();
    for (module, used) in imports() {
        for used in used.iter().filter_map(room) {
            if room(&module).is_some_and(|own| used > own) {
                above.insert((module[1..].join("/"), ROOMS[used]));
            }
        }
    }
    let known = USE_ROOMS_ABOVE.map(|(file, room)| (file.to_owned(), room));
    assert_eq!(above, known.into(), "files that use a room above theirs");
}

#[test]
fn few_files_import_each_other_in_a_circle() {
    let imported = imports();
    let all: BTreeMap<&Names, BTreeSet<&Names>> = imported
        .keys()
        .map(|module| (module, below(&imported, module)))
        .collect();
    for (module, below) in &all {
        let circle = below.iter().filter(|other| all[**other].contains(module));
        let circle: Vec<String> = circle.map(|other| other.join("/")).collect();
        assert!(
            circle.len() <= MAX_CIRCLE,
            "{} files: {circle:#?}",
            circle.len()
        );
    }
    let most = all.values().map(BTreeSet::len).max();
    assert!(most > Some(100), "the imports were read");
}
