//! Checks the guide in `docs/` against the repository: chapters, links and environment variables.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::built::root;

/// Folders without sources of the repository.
const SKIPPED: [&str; 2] = ["target", ".git"];

/// Checks the guide and returns all faults in one error.
///
/// # Errors
/// A link has no target, the summary or the doc tests lack a chapter, the table of variables is incomplete, a document names a
/// source file or an invariant names a test that does not exist, or a document has the markers of a conflict between two versions.
pub(crate) fn check() -> Result<()> {
    let mut wrong = broken_links()?;
    wrong.extend(missing_chapters()?);
    wrong.extend(missing_variables()?);
    wrong.extend(missing_sources()?);
    wrong.extend(missing_tests()?);
    wrong.extend(conflicts()?);
    if wrong.is_empty() { Ok(()) } else { bail!("the guide:\n{}", wrong.join("\n")) }
}

/// The Markdown files of the guide, those for maintainers, and the documents of the root.
fn documents() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in [root(), root().join("docs"), root().join("docs/maintainers")] {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            files.push(entry?.path());
        }
    }
    files.retain(|path| path.extension().is_some_and(|it| it == "md"));
    files.sort();
    Ok(files)
}

fn conflicts() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for path in documents()? {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut lines = text.lines().zip(1..);
        wrong.extend(
            lines.find(|(line, _)| line.starts_with("<<<<<<< ")).map(|(_, number)| {
                format!("{}:{number}: the versions of two branches were not merged", path.display())
            }),
        );
    }
    Ok(wrong)
}

/// Targets of links in Markdown, without code blocks: `[text](target)` and `![text](target)`.
fn links(text: &str) -> Vec<String> {
    let outside = text.split("```").step_by(2);
    let parts = outside.flat_map(|part| part.split("](").skip(1).filter_map(|rest| rest.split_once(')')));
    parts.map(|(target, _)| target.to_owned()).collect()
}

/// The anchor that code hosts and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
}

fn anchors(text: &str) -> BTreeSet<String> {
    let outside: String = text.split("```").step_by(2).collect();
    let headings = outside.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

fn broken_links() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for file in documents()? {
        let text = fs::read_to_string(&file)?;
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => file.clone(),
                path => file.parent().unwrap_or(Path::new("")).join(path),
            };
            let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
            if !target.exists() {
                wrong.push(format!("{name}: no file {path}"));
            } else if !fragment.is_empty() && !anchors(&fs::read_to_string(&target)?).contains(fragment) {
                wrong.push(format!("{name}: no heading #{fragment} in {}", target.display()));
            }
        }
    }
    Ok(wrong)
}

/// Each chapter is in the summary, and in the doc tests of the facade if it has Rust blocks.
fn missing_chapters() -> Result<Vec<String>> {
    let docs = root().join("docs");
    let (summary, facade) =
        (fs::read_to_string(docs.join("SUMMARY.md"))?, fs::read_to_string(root().join("src/lib.rs"))?);
    let mut wrong = Vec::new();
    for file in documents()?.iter().filter(|file| file.parent() == Some(&*docs)) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "SUMMARY.md" {
            continue;
        }
        if !summary.contains(&format!("({name})")) {
            wrong.push(format!("docs/SUMMARY.md does not have {name}"));
        }
        if fs::read_to_string(file)?.contains("```rust") && !facade.contains(&format!("\"{name}\"")) {
            wrong.push(format!("src/lib.rs does not run the Rust blocks of docs/{name}"));
        }
    }
    Ok(wrong)
}

/// Names of environment variables in a text, which start with `DISCO_` after `before`.
fn variables(text: &str, before: &str) -> BTreeSet<String> {
    let start = format!("{before}DISCO_");
    let names = text.split(&start).skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        format!("DISCO_{}", &rest[..end.unwrap_or(rest.len())])
    });
    // A bare `DISCO_` is a prefix from which code composes a name.
    names.filter(|name| name != "DISCO_").collect()
}

/// Each `"DISCO_…"` of the sources outside of tests is in the table, and each row of the table is in a source.
fn missing_variables() -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join("docs/environment.md"))?;
    let rows: String =
        text.lines().filter(|line| line.starts_with("| `")).flat_map(|row| row.split(" | ").next()).collect();
    let table = variables(&rows, "`");
    let (mut read, mut anywhere) = (BTreeSet::new(), BTreeSet::new());
    let root = root();
    sources(&root, &mut |path, text| {
        anywhere.extend(variables(text, "\""));
        let is_test =
            path.strip_prefix(&root).unwrap_or(path).components().any(|part| {
                ["tests", "testing", "benches", "examples"].contains(&&*part.as_os_str().to_string_lossy())
            });
        if !is_test {
            // Tests stand at the end of a file.
            read.extend(variables(text.split("#[cfg(test)]").next().unwrap_or(text), "\""));
        }
    })?;
    let lacks = read.difference(&table).map(|name| format!("docs/environment.md does not have {name}"));
    let over = table.difference(&anywhere).map(|name| format!("docs/environment.md has {name}, which no source has"));
    Ok(lacks.chain(over).collect())
}

/// Names of source files in a text: `path/file.rs` in backticks.
fn source_names(text: &str) -> BTreeSet<&str> {
    let is_path =
        |name: &&str| name.ends_with(".rs") && !name.contains(|c: char| c.is_whitespace() || "*{<".contains(c));
    text.split('`').skip(1).step_by(2).filter(is_path).collect()
}

/// Each test that holds an invariant of ARCHITECTURE.md is there.
fn missing_tests() -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md"))?;
    let table = text.split_once("## Invariants").context("ARCHITECTURE.md has no invariants")?.1;
    let is_name = |name: &&str| {
        name.contains('_') && name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
    };
    let mut missing: BTreeSet<&str> = table.split('`').skip(1).step_by(2).filter(is_name).collect();
    sources(&root(), &mut |_, text| {
        missing.retain(|name| !text.contains(&format!("fn {name}")) && !text.contains(&format!("\"{name}\"")))
    })?;
    Ok(missing.into_iter().map(|name| format!("ARCHITECTURE.md: no test {name}")).collect())
}

/// Each source file that a document names is there; the first folders of its path may be left out.
fn missing_sources() -> Result<Vec<String>> {
    let mut paths = Vec::new();
    sources(&root(), &mut |path, _| paths.push(format!("/{}", path.display())))?;
    let mut wrong = Vec::new();
    for file in documents()? {
        let text: String = fs::read_to_string(&file)?.split("```").step_by(2).collect();
        let is_missing = |name: &&&str| !paths.iter().any(|path| path.ends_with(&format!("/{name}")));
        let name = file.strip_prefix(root()).unwrap_or(&file).display();
        wrong.extend(
            source_names(&text).iter().filter(is_missing).map(|missing| format!("{name}: no source {missing}")),
        );
    }
    Ok(wrong)
}

/// Passes each Rust source below `folder` to `take`.
fn sources(folder: &Path, take: &mut impl FnMut(&Path, &str)) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) && !path.is_symlink() {
            sources(&path, take)?;
        } else if path.extension().is_some_and(|it| it == "rs" || it == "py") {
            let relative = path.strip_prefix(root()).unwrap_or(&path);
            take(relative, &fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{anchor, anchors, check, links, source_names, variables};

    #[test]
    fn the_guide_matches_the_repository() {
        check().unwrap();
    }

    #[test]
    fn links_in_code_blocks_do_not_count() {
        assert_eq!(links("[a](b.md) ![c](d.svg)\n```text\n[e](f)\n```\n[g](h.md#i)"), ["b.md", "d.svg", "h.md#i"]);
    }

    #[test]
    fn anchors_are_those_of_code_hosts() {
        assert_eq!(anchor(" A wait does not end"), "a-wait-does-not-end");
        assert!(anchors("# One\n```sh\n# no heading\n```\n## `local`").contains("local"));
    }

    #[test]
    fn source_files_are_named_in_backticks() {
        let names = source_names("`a/b.rs`, c.rs; `d.rs e`, `*.rs`, `f/{g,h}.rs`, `i.md` and `j.rs`");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a/b.rs", "j.rs"]);
    }

    #[test]
    fn variables_end_at_the_first_other_character() {
        assert_eq!(variables("x \"DISCO_A_1=b DISCO_C", "\"").into_iter().collect::<Vec<_>>(), ["DISCO_A_1"]);
    }
}
