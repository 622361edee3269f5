//! Holds the guide and the README to the code: links, chapters, variables.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Variables of single tests, which no user sets.
const PRIVATE: [&str; 2] = ["DISCO_NO_VARIABLE", "DISCO_X"];
/// Prefix of the variables by which a test program talks to itself.
const PRIVATE_PREFIX: &str = "DISCO_TEST_";
/// Variables with this prefix that users set.
const PUBLIC: [&str; 2] = ["DISCO_TEST_GPU", "DISCO_TEST_CACHE"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    docs.filter(|path| path.extension().is_some_and(|end| end == "md")).chain([root().join("README.md")]).collect()
}

/// Rust files of the workspace, without build outputs.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true if name == "target" || name.starts_with('.') => {}
            true => sources(&path, found),
            false if name.ends_with(".rs") => found.push(path),
            false => {}
        }
    }
}

/// Names that start with `DISCO_` and stand behind `before`.
fn variables(text: &str, before: char) -> BTreeSet<String> {
    let starts = text.match_indices("DISCO_").filter(|(at, _)| text[..*at].ends_with(before));
    let names = starts.map(|(at, _)| {
        let is_part = |c: &char| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_';
        text[at..].chars().take_while(is_part).collect::<String>()
    });
    names.filter(|name| name != "DISCO_").collect()
}

#[test]
fn the_guide_lists_exactly_the_variables_that_the_code_names() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let code: BTreeSet<String> =
        files.iter().flat_map(|file| variables(&fs::read_to_string(file).unwrap(), '"')).collect();
    let is_public = |name: &&String| {
        let name = name.as_str();
        PUBLIC.contains(&name) || !(name.starts_with(PRIVATE_PREFIX) || PRIVATE.contains(&name))
    };
    let code: BTreeSet<String> = code.iter().filter(is_public).cloned().collect();
    let table = fs::read_to_string(root().join("docs/environment.md")).unwrap();
    let rows: String = table.lines().filter(|line| line.starts_with("| `")).flat_map(|line| [line, "\n"]).collect();
    let first: String = rows.lines().map(|row| row.split('|').nth(1).unwrap()).collect();
    assert_eq!(code, variables(&first, '`'), "left: the code; right: docs/environment.md");
}

#[test]
fn every_link_of_the_guide_and_the_readme_leads_to_a_file() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_local = !link.is_empty() && !link.contains("://");
            assert!(!is_local || page.parent().unwrap().join(link).exists(), "{}: no file {link}", page.display());
        }
    }
}

#[test]
fn every_chapter_is_in_the_summary() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    for page in pages().iter().filter(|page| !page.ends_with("README.md") && !page.ends_with("SUMMARY.md")) {
        let name = page.file_name().unwrap().to_string_lossy();
        assert!(summary.contains(&format!("]({name})")), "docs/SUMMARY.md lacks {name}");
    }
}
