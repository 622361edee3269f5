//! The tables of `docs/interfaces.md`, which are those of the code.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use super::route::is_open;
use super::routes::ROUTES;
use crate::api::Part;

/// What the tables stand behind. The text before it is written by hand.
const MARK: &str = "<!-- Written by a test: DISCO_WRITE_GUIDE=1 cargo test -p disco-serve --lib guide -->\n";

#[test]
fn the_guide_has_the_tables_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/interfaces.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, after) = text.split_once(MARK).expect("the mark of the tables");
    let tables = tables();
    if env::var_os("DISCO_WRITE_GUIDE").is_some() {
        return fs::write(path, format!("{before}{MARK}{tables}")).unwrap();
    }
    assert!(
        after == tables,
        "docs/interfaces.md is old: `DISCO_WRITE_GUIDE=1 cargo test -p disco-serve --lib guide` renews it"
    );
}

fn tables() -> String {
    let mut text = String::from("\n## Routes\n\n| route | what it does | fields |\n|---|---|---|\n");
    for route in ROUTES {
        let forms = route.bodies.iter().map(|body| {
            let parts = body.parts.iter().map(|part| format!("[{}](#{})", part.title.to_lowercase(), anchor(part)));
            parts.collect::<Vec<_>>().join(", ")
        });
        let mut fields = forms.collect::<Vec<_>>().join("; or ");
        if is_open(route.path) {
            fields += "needs no token";
        }
        let (method, path) = (route.method(), route.path.replace("{*", "{"));
        writeln!(text, "| `{method} {path}` | {} | {fields} |", route.does).unwrap();
    }
    let mut written = Vec::new();
    for part in ROUTES.iter().flat_map(|route| route.bodies).flat_map(|body| body.parts) {
        if !written.contains(&part.title) {
            written.push(part.title);
            add(&mut text, part);
        }
    }
    text
}

fn anchor(part: &Part) -> String {
    part.title.to_lowercase().replace(' ', "-")
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn add(text: &mut String, part: &Part) {
    write!(text, "\n## {}\n\n", part.title).unwrap();
    if !part.obeyed.is_empty() {
        text.push_str("| field | value | what it does |\n|---|---|---|\n");
        for field in part.obeyed {
            let needed = if field.is_required { ", required" } else { "" };
            writeln!(text, "| `{}` | {}{needed} | {} |", field.name, field.shape.words(), field.does).unwrap();
        }
    }
    if !part.without_effect.is_empty() {
        write!(text, "\nWithout effect: {}.\n", quoted(part.without_effect)).unwrap();
    }
    if !part.refused.is_empty() {
        if !part.obeyed.is_empty() {
            text.push('\n');
        }
        text.push_str("| refused | accepted values | instead |\n|---|---|---|\n");
        for refused in part.refused {
            let values: Vec<_> = refused.values().map(|value| format!("`{value}`")).collect();
            let instead = refused.instead.trim_start_matches([':', ' ']).trim_start_matches("here: ");
            writeln!(text, "| {} | {} | {instead} |", quoted(refused.names), values.join(", ")).unwrap();
        }
    }
}
