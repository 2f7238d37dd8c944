//! Finds the known word that a misspelled word probably stands for.

/// Returns the most similar word, by the same rule as in messages of the configuration.
pub(super) fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let slips_max = conf::slips_max(word);
    let distances = known.into_iter().map(|known| (conf::edit_distance(word, known), known));
    distances.filter(|(slips, _)| *slips <= slips_max).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::similar;

    #[test]
    fn misspelled_words_are_recognised_and_other_words_are_not() {
        let known = ["serve", "check", "engines"];
        assert_eq!(similar("sevre", known), Some("serve"));
        assert_eq!(similar("engins", known), Some("engines"));
        assert_eq!(similar("start", known), None);
    }
}
