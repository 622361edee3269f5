//! The examples of the facade, as data.

/// Examples, with the arguments of each run. A test compares this with the folder.
pub(crate) const EXAMPLES: [(&str, &str); 18] = [
    ("bare_communicator", ""),
    ("digits", "--epochs 2 --workers 2"),
    ("digits", "--epochs 2 --workers 2 --session processes"),
    ("hello", ""),
    ("mesh", ""),
    ("mesh", "--processes"),
    ("node", ""),
    ("own_backend", ""),
    ("own_reduction", ""),
    ("own_reduction", "--processes"),
    ("own_state", ""),
    ("pipeline", ""),
    ("search", ""),
    ("serde_values", ""),
    ("started_collective", ""),
    ("tensor_parallel", ""),
    ("tensor_parallel", "--processes"),
    ("without_facade", ""),
];

#[cfg(test)]
mod tests {
    use std::fs;

    use super::EXAMPLES;

    /// Examples that other tests run: a library for a C program, and examples that need a GPU or its test double.
    const ELSEWHERE: [&str; 3] = ["c_host", "gpu_evidence", "overlap"];

    #[test]
    fn every_example_has_a_row() {
        let folder = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples")).unwrap();
        let mut found: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").exists());
        let mut found: Vec<_> = found.iter().map(|path| path.file_stem().unwrap().to_str().unwrap()).collect();
        let mut rows: Vec<_> = EXAMPLES.iter().map(|(name, _)| *name).chain(ELSEWHERE).collect();
        found.sort_unstable();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(found, rows);
    }
}
