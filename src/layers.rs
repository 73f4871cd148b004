//! Checks that a layer uses only the layers below it, that circles of imports are small, that the product does not use the fuzzers,
//! and that only the layers at the top know flags.

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
            let (product, _) = text.split_once("#[cfg(test)]\nmod ").unwrap_or((&text, ""));
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

/// A path, such as `server::client::Client`.
type Names = Vec<String>;

/// Appends the paths of a `use` tree to `paths`, each behind `prefix`.
fn expand(prefix: &[&str], tree: &str, paths: &mut Vec<Names>) {
    let (head, inside) = tree.split_once('{').unwrap_or((tree, ""));
    let (head, _) = head.split_once(" as ").unwrap_or((head, ""));
    let names = head.split("::").map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    let path: Vec<&str> = prefix.iter().copied().chain(names).collect();
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

/// The paths in a module's `use` declarations, from the root of the crate, and whether each is exported again. Inline paths are not
/// found.
fn imports(module: &[String], product: &str) -> Vec<(Names, bool)> {
    let lines = product.lines().map(str::trim);
    let code: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    let mut found = Vec::new();
    for statement in code.join(" ").split(';') {
        let Some((before, tree)) = statement.rsplit_once("use ") else {
            continue;
        };
        let mut paths = Vec::new();
        expand(&[], tree, &mut paths);
        for path in paths {
            let ups = path.iter().take_while(|name| *name == "super").count();
            let base = match path[0].as_str() {
                "crate" => &[],
                "super" => &module[..module.len().saturating_sub(ups)],
                _ => module,
            };
            let own = path
                .iter()
                .skip(ups.max(usize::from(["crate", "self"].contains(&path[0].as_str()))));
            let is_exported =
                before.trim_end().ends_with("pub") || before.trim_end().ends_with(')');
            found.push((base.iter().chain(own).cloned().collect(), is_exported));
        }
    }
    found
}

/// The imports of each module.
type Imports = BTreeMap<Names, Vec<(Names, bool)>>;

fn modules() -> Imports {
    let modules = sources().into_iter().map(|(_, path, product)| {
        let path = path.strip_suffix("/mod").unwrap_or(&path);
        let module: Names = path.split('/').map(str::to_owned).collect();
        let imports = imports(&module, &product);
        (module, imports)
    });
    modules.collect()
}

/// The module that defines the item at a path. Follows items that are exported again.
fn defining(modules: &Imports, path: &[String]) -> Option<Names> {
    let mut lengths = (1..=path.len()).rev();
    let length = lengths.find(|length| modules.contains_key(&path[..*length]))?;
    let (module, name) = (&path[..length], path.get(length)?);
    let is_it = |exported: &Names| exported.last() == Some(name) && **exported != path[..=length];
    let mut exports = modules[module].iter().filter(|(_, is_export)| *is_export);
    match exports.find(|(exported, _)| is_it(exported)) {
        Some((exported, _)) => defining(modules, &[exported, &path[length + 1..]].concat()),
        None => Some(module.to_vec()),
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

#[test]
fn few_files_import_each_other_in_a_circle() {
    let modules = modules();
    let imported = modules.iter().map(|(module, imports)| {
        let own = imports.iter().filter(|(_, is_export)| !is_export);
        let defining = own.filter_map(|(path, _)| defining(&modules, path));
        (
            module.clone(),
            defining.filter(|other| other != module).collect(),
        )
    });
    let imported = imported.collect();
    let all: BTreeMap<&Names, BTreeSet<&Names>> = modules
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
