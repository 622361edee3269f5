//! Suggestions for misspelled names in error texts, of this crate and of crates above it.

/// The most similar of the `known` names, if at most a third of the characters of `name` differ. Of equally similar
/// names, the first.
pub fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &str| strsim::osa_distance(known, name);
    let best = known.into_iter().min_by_key(|known| distance(known))?;
    (distance(best) * 3 <= name.chars().count()).then_some(best)
}

/// The end of an error text about an unknown name: asks for the similar name, or is empty if there is none.
pub fn did_you_mean(similar: Option<&str>) -> String {
    similar.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_which_a_third_differs_are_similar() {
        let known = ["local", "nccl", "rccl"];
        for (name, suggestion) in
            [("locl", Some("local")), ("lcoal", Some("local")), ("ccl", Some("nccl")), ("ucc", None), ("", None)]
        {
            assert_eq!(similar(name, known), suggestion, "{name}");
        }
        assert_eq!(similar("local", []), None);
    }

    #[test]
    fn a_text_without_a_similar_name_has_no_question() {
        assert_eq!(did_you_mean(Some("local")), "; did you mean `local`?");
        assert_eq!(did_you_mean(None), "");
    }
}
