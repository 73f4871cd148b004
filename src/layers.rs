//! Checks that a layer uses only the layers below it, that the product does not use the fuzzers, and that only the layers at the top
//! know flags.

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
