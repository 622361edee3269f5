//! Suggestions for misspelled names in error texts.

/// The most similar of the `known` names, if at most a third of the characters of `name` differ. Of equally similar
/// names, the first.
pub(crate) fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &str| strsim::osa_distance(known, name);
    let best = known.into_iter().min_by_key(|known| distance(known))?;
    (distance(best) * 3 <= name.chars().count()).then_some(best)
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
}
