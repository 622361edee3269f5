//! The graph of a crate's modules and its cycles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::source::Source;

/// For each module, the modules that it refers to, with the first place of each reference.
#[derive(Debug)]
pub(super) struct Graph(BTreeMap<String, BTreeMap<String, String>>);

/// A shortest cycle, and the size of its strongly connected component.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    /// Each module with the place where it refers to the next one; the last one refers to the first.
    path: Vec<(String, String)>,
    component: usize,
}

impl Graph {
    pub(super) fn of(source: &Source) -> Self {
        let mut edges = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (from, references) in &source.modules {
            let to = edges.entry(from.clone()).or_default();
            for (file, reference) in references {
                let exported =
                    source.exports.get(&reference.name).filter(|_| !source.modules.contains_key(&reference.name));
                let target = exported.unwrap_or(&reference.name);
                if target != from && source.modules.contains_key(target) {
                    let place = || format!("{}:{}", file.display(), reference.line);
                    to.entry(target.clone()).or_insert_with(place);
                }
            }
        }
        Self(edges)
    }

    /// A shortest cycle of each strongly connected component.
    pub(super) fn cycles(&self) -> Vec<Cycle> {
        let mut rest: BTreeSet<_> = self.0.keys().collect();
        let mut found = Vec::new();
        while let Some(module) = rest.pop_first() {
            let below = self.reached(module);
            let component: BTreeSet<_> =
                below.into_iter().filter(|other| self.reached(other).contains(module)).chain([module]).collect();
            rest.retain(|other| !component.contains(other));
            let shortest = component.iter().filter_map(|start| self.shortest(start)).min_by_key(Vec::len);
            found.extend(shortest.map(|path| Cycle { path, component: component.len() }));
        }
        found
    }

    /// Where the modules break an order, in which each uses those behind it only, or are not in it.
    pub(super) fn against(&self, order: &[&str]) -> Vec<String> {
        let position = |module: &String| order.iter().position(|name| name == module);
        let missing = self.0.keys().filter(|module| position(module).is_none());
        let gone = order.iter().filter(|name| !self.0.contains_key(**name));
        let up = self.0.iter().flat_map(|(from, references)| {
            let is_up = move |to: &String| position(from).zip(position(to)).is_some_and(|(from, to)| to < from);
            references.iter().filter(move |(to, _)| is_up(to)).map(move |(to, place)| (from, to, place))
        });
        let missing = missing.map(|module| format!("`{module}` has no place in the order of modules"));
        let gone = gone.map(|name| format!("`{name}` is in the order of modules, but there is no such module"));
        let up = up.map(|(from, to, place)| format!("`{from}` uses `{to}`, which is above it ({place})"));
        missing.chain(gone).chain(up).collect()
    }

    /// All modules reachable from `module`; includes `module` only if it is in a cycle.
    fn reached<'a>(&'a self, module: &'a String) -> BTreeSet<&'a String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![module];
        while let Some(module) = open.pop() {
            open.extend(self.0[module].keys().filter(|next| reached.insert(*next)));
        }
        reached
    }

    /// A shortest cycle through `start`.
    fn shortest(&self, start: &String) -> Option<Vec<(String, String)>> {
        let mut open = VecDeque::from([(start, Vec::new())]);
        let mut seen = BTreeSet::new();
        while let Some((module, path)) = open.pop_front() {
            for (next, place) in &self.0[module] {
                let path: Vec<_> = path.iter().cloned().chain([(module.clone(), place.clone())]).collect();
                if next == start {
                    return Some(path);
                }
                if seen.insert(next) {
                    open.push_back((next, path));
                }
            }
        }
        None
    }
}

impl Cycle {
    /// Its modules, from one to the same one.
    pub(super) fn names(&self) -> String {
        let names = self.path.iter().chain(self.path.first()).map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(" → ")
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.path.iter().map(|(_, place)| place.as_str()).collect::<Vec<_>>();
        write!(f, "cycle between modules: {} ({})", self.names(), places.join(", "))?;
        match self.component {
            more if more > self.path.len() => write!(f, "; {more} modules reach each other"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::source::{Folder, Source};
    use super::Graph;

    #[test]
    fn a_module_that_uses_one_above_it_or_has_no_place_is_named() {
        let read = |path: &Path| match path.to_str() {
            Some("a/mod.rs") => Some("mod high; mod low; mod new;".to_owned()),
            Some("a/high.rs") => Some("use super::low::Low;".to_owned()),
            Some("a/low.rs") => Some("use super::high::High;".to_owned()),
            Some("a/new.rs") => Some(String::new()),
            _ => None,
        };
        let graph = Graph::of(&Source::read(&Folder::of_crate(Path::new("a/mod.rs")), &read).unwrap());
        assert_eq!(
            graph.against(&["high", "low"]),
            ["`new` has no place in the order of modules", "`low` uses `high`, which is above it (a/low.rs:1)"]
        );
        let gone = "`old` is in the order of modules, but there is no such module";
        assert_eq!(
            graph.against(&["low", "old", "new", "high"]),
            [gone, "`high` uses `low`, which is above it (a/high.rs:1)"]
        );
    }

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        let folders = Folder::of_crate(Path::new("src/lib.rs")).all(&read).unwrap();
        let cycles = folders.iter().flat_map(|folder| Graph::of(&Source::read(folder, &read).unwrap()).cycles());
        cycles.map(|cycle| cycle.to_string()).collect()
    }

    #[test]
    fn two_modules_that_use_each_other_are_a_cycle_with_both_lines() {
        let files = [
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "use crate::b::B;\npub struct A;"),
            ("src/b/mod.rs", "pub struct B;\n\nfn f(_: crate::a::A) {}"),
        ];
        assert_eq!(cycles(&files), ["cycle between modules: a → b → a (src/a.rs:1, src/b/mod.rs:3)"]);
    }

    #[test]
    fn a_cycle_inside_a_folder_is_found_by_both_kinds_of_paths() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a/mod.rs", "mod b; mod c; pub use c::C;"),
            ("src/a/b.rs", "fn f(_: super::C) {}"),
            ("src/a/c/mod.rs", "mod d; pub struct C;"),
            ("src/a/c/d.rs", "use crate::a::b;"),
        ];
        assert_eq!(cycles(&files), ["cycle between modules: b → c → b (src/a/b.rs:1, src/a/c/d.rs:1)"]);
        let other = [files[0], files[1], files[2], files[3], ("src/a/c/d.rs", "use crate::b; use crate::a::Other;")];
        assert_eq!(cycles(&other), [""; 0]);
    }

    #[test]
    fn a_re_export_of_the_root_counts_as_the_module_that_has_it() {
        let files = [
            ("src/lib.rs", "mod a; mod b; pub use a::{inner::A, D as E};"),
            ("src/a.rs", "use crate::b;"),
            ("src/b.rs", "use crate::E;"),
        ];
        assert_eq!(cycles(&files), ["cycle between modules: a → b → a (src/a.rs:1, src/b.rs:1)"]);
    }

    #[test]
    fn super_counts_only_where_it_leaves_the_module() {
        let files = [
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a/mod.rs", "mod inner; mod b {} use super::b::B;"),
            ("src/a/inner.rs", "use super::b as sibling; mod deep { fn f() { super::super::super::b::f() } }"),
            ("src/b.rs", "mod a { pub fn g() {} } fn f() { mod m { fn f() { super::a::g() } } }"),
        ];
        assert_eq!(cycles(&files), [""; 0]);
        let closed =
            [files[0], files[1], files[2], ("src/b.rs", "fn f() { mod m { fn f() { super::super::a::g() } } }")];
        assert_eq!(cycles(&closed), ["cycle between modules: a → b → a (src/a/mod.rs:1, src/b.rs:1)"]);
    }

    #[test]
    fn tests_and_documentation_do_not_count() {
        let files = [
            ("src/lib.rs", "mod a; mod b; #[cfg(test)] mod helper;"),
            ("src/a.rs", "use crate::b::B;"),
            (
                "src/b.rs",
                "/// As [`crate::a::A`].\npub struct B; mod tests; mod loom_models; #[cfg(all(test, unix))] fn f() { crate::a::f() }
                impl B { #[cfg(test)] fn g() { crate::a::f() } }",
            ),
        ];
        assert_eq!(cycles(&files), [""; 0]);
        let built = [files[0], files[1], ("src/b.rs", "#[cfg(not(test))] use crate::a;")];
        assert_eq!(cycles(&built).len(), 1);
    }

    #[test]
    fn paths_in_macros_and_attributes_count() {
        for text in [
            "fn f() { vec![0, crate::a::F(1)]; }",
            "m! { use crate::{b, a::A}; }",
            "#[serde(with(crate::a))] struct S;",
        ] {
            let files = [("src/lib.rs", "mod a; mod b;"), ("src/a.rs", "use crate::b;"), ("src/b.rs", text)];
            assert_eq!(cycles(&files).len(), 1, "{text}");
        }
    }
}
