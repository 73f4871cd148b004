//! Suggestions for unknown words on the command line and in the configuration file.

use strsim::osa_distance;

/// The minimum length of an abbreviation.
const SHORTEST_BEGINNING: usize = 3;

/// ` (did you mean 'X'?)` with the word that is most similar to `given`, between these marks. Empty if none is similar.
pub(super) fn suggestion(given: &str, words: &[&str], before: &str, after: &str) -> String {
    match similar(given, words) {
        Some(word) => format!(" (did you mean {before}{word}{after}?)"),
        None => String::new(),
    }
}

/// The word that differs least from `given`: in at most one character of three, or because `given` is its beginning.
fn similar<'a>(given: &str, words: &[&'a str]) -> Option<&'a str> {
    let length = given.chars().count();
    let mut nearest = None;
    for word in words {
        let is_beginning = length >= SHORTEST_BEGINNING && word.starts_with(given);
        // The distance to a very long text takes too long to compute.
        if !is_beginning && word.len().abs_diff(length) * 3 > length {
            continue;
        }
        let distance = osa_distance(given, word);
        let is_nearer = nearest.is_none_or(|(least, _)| distance < least);
        if is_nearer && (is_beginning || distance * 3 <= length) {
            nearest = Some((distance, *word));
        }
    }
    nearest.map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_a_typing_error_is_recognized_and_another_word_is_not() {
        let words = [
            "agent",
            "terminal",
            "processes",
            "app",
            "echo",
            "max-clients",
        ];
        for (given, meant) in [
            ("agnet", Some("agent")),
            ("agents", Some("agent")),
            ("term", Some("terminal")),
            ("proceses", Some("processes")),
            ("max-cleints", Some("max-clients")),
            ("max_clients", Some("max-clients")),
            ("ehco", Some("echo")),
            ("ap", None),
            ("dance", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(similar(given, &words), meant, "{given}");
        }
        assert_eq!(similar(&"x".repeat(1 << 20), &words), None);
        let text = suggestion("agnet", &words, "'", "'");
        assert_eq!(text, " (did you mean 'agent'?)");
    }
}
