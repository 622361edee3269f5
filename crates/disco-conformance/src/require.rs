//! `DISCO_REQUIRE`: harnesses that must be available.

/// The names in `DISCO_REQUIRE`, separated by commas. If a required harness is unavailable, its checks fail instead of
/// being skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Required(Vec<String>);

impl Required {
    /// Reads the environment.
    pub fn from_env() -> Self {
        Self::parse(&std::env::var("DISCO_REQUIRE").unwrap_or_default())
    }

    fn parse(names: &str) -> Self {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self(names.map(str::to_owned).collect())
    }

    /// Whether `name` is required.
    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|known| known == name)
    }

    /// The required names that are not in `known`.
    pub fn unknown<'a>(&'a self, known: &'a [&str]) -> impl Iterator<Item = &'a str> {
        self.0.iter().map(String::as_str).filter(|name| !known.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_separated_by_commas() {
        let required = Required::parse("local, mpi,");
        assert!(required.contains("local") && required.contains("mpi") && !required.contains(""));
        assert_eq!(required.unknown(&["local"]).collect::<Vec<_>>(), ["mpi"]);
        assert_eq!(Required::parse(""), Required::default());
    }
}
