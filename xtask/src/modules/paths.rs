//! Paths from the root of a crate or of a folder in one file of source.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, Path, TraitItem, UseTree};

/// A name in the folder that code refers to, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) name: String,
    pub(super) line: usize,
}

/// A module that a file declares (`mod x;`), below the modules that the file itself has inline.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) inline: Vec<String>,
    pub(super) name: String,
}

/// Collects a file's references and the modules that it declares.
#[derive(Debug)]
pub(super) struct Paths {
    /// The modules above an item, from the folder: `super` leaves one of them.
    depth: usize,
    /// The names of the modules from the root to the folder.
    folder: Vec<String>,
    inline: Vec<String>,
    pub(super) references: Vec<Reference>,
    pub(super) declared: Vec<Declared>,
}

impl Paths {
    /// Reads a file whose module is `depth` modules below the folder with this path from the root.
    pub(super) fn of(file: &syn::File, depth: usize, folder: &[String]) -> Self {
        let folder = folder.to_vec();
        let mut paths = Self { depth, folder, inline: Vec::new(), references: Vec::new(), declared: Vec::new() };
        paths.visit_file(file);
        paths
    }

    /// Records `path` if it starts at the root and enters the folder, or leaves every module above it.
    fn note(&mut self, path: &[(String, usize)]) {
        let mut names = path.iter().map(|(name, _)| name);
        let from_root =
            names.next().is_some_and(|first| first == "crate") && self.folder.iter().all(|it| names.next() == Some(it));
        let up = path.iter().take_while(|(name, _)| name == "super").count();
        let next = if from_root { 1 + self.folder.len() } else { up };
        if (from_root || (up > 0 && up == self.depth))
            && let Some((name, line)) = path.get(next)
        {
            self.references.push(Reference { name: name.clone(), line: *line });
        }
    }

    fn note_use(&mut self, tree: &UseTree, path: &mut Vec<(String, usize)>) {
        let ident = match tree {
            UseTree::Path(tree) => &tree.ident,
            UseTree::Name(tree) => &tree.ident,
            UseTree::Rename(tree) => &tree.ident,
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.note_use(tree, path)),
            _ => return self.note(path),
        };
        path.push((ident.to_string(), ident.span().start().line));
        match tree {
            UseTree::Path(tree) => self.note_use(&tree.tree, path),
            _ => self.note(path),
        }
        path.pop();
    }

    /// Records the paths in the tokens of a macro, which need not be valid Rust.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut path: Vec<(String, usize)> = Vec::new();
        let mut colons = 2;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.note(&std::mem::take(&mut path));
                    }
                    path.push((ident.to_string(), ident.span().start().line));
                    colons = 0;
                }
                TokenTree::Group(group) if colons == 2 && group.delimiter() == Delimiter::Brace && path.len() == 1 => {
                    // `use crate::{a, b::c}` in a macro.
                    let root = path.remove(0);
                    for part in group.stream() {
                        if let TokenTree::Ident(ident) = part {
                            self.note(&[root.clone(), (ident.to_string(), ident.span().start().line)]);
                        }
                    }
                }
                other => {
                    self.note(&std::mem::take(&mut path));
                    colons = 2;
                    if let TokenTree::Group(group) = other {
                        self.note_tokens(group.stream());
                    }
                }
            }
        }
        self.note(&path);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Fn(item) => &item.attrs[..],
            ImplItem::Const(item) => &item.attrs[..],
            _ => &[],
        };
        if !attributes.iter().any(is_test) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let test = matches!(item, TraitItem::Fn(item) if item.attrs.iter().any(is_test));
        if !test {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let name = item.ident.to_string();
        if ["tests", "loom_models"].contains(&name.as_str()) {
            return;
        }
        let Some((_, items)) = &item.content else {
            return self.declared.push(Declared { inline: self.inline.clone(), name });
        };
        self.depth += 1;
        self.inline.push(name);
        items.iter().for_each(|item| self.visit_item(item));
        self.inline.pop();
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_use(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let names = path.segments.iter().map(|part| (part.ident.to_string(), part.ident.span().start().line));
        self.note(&names.collect::<Vec<_>>());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.note_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta
            && !list.path.is_ident("doc")
        {
            self.note_tokens(list.tokens.clone());
        }
    }
}

/// Names that a root file re-exports, each with the module that it comes from.
pub(super) fn exports(file: &syn::File) -> Vec<(String, String)> {
    fn leaves(tree: &UseTree, module: Option<&str>, found: &mut Vec<(String, String)>) {
        match tree {
            UseTree::Path(tree) if tree.ident == "crate" || tree.ident == "self" => leaves(&tree.tree, None, found),
            UseTree::Path(tree) => {
                let name = tree.ident.to_string();
                leaves(&tree.tree, Some(module.unwrap_or(&name)), found);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, module, found)),
            UseTree::Name(tree) => found.extend(module.map(|module| (tree.ident.to_string(), module.to_owned()))),
            UseTree::Rename(tree) => found.extend(module.map(|module| (tree.rename.to_string(), module.to_owned()))),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for item in &file.items {
        if let Item::Use(item) = item {
            leaves(&item.tree, None, &mut found);
        }
    }
    found
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an attribute keeps an item out of everything but tests.
fn is_test(attribute: &Attribute) -> bool {
    fn names_test(tokens: TokenStream) -> bool {
        let mut negated = false;
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => {
                negated = ident == "not";
                ident == "test"
            }
            TokenTree::Group(group) => !std::mem::take(&mut negated) && names_test(group.stream()),
            _ => false,
        })
    }
    attribute.path().is_ident("test")
        || matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("cfg") && names_test(list.tokens.clone()))
}
