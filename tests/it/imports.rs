//! Files of a crate import each other in one direction, so each file can be read without its importers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use proc_macro2::{Ident, TokenStream, TokenTree};
use rstest::rstest;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Item, Lit, UseTree, Visibility};

#[rstest]
#[case("crates/core/src/lib.rs")]
#[case("crates/api/src/lib.rs")]
#[case("crates/runtime/src/lib.rs")]
#[case("crates/notify/src/lib.rs")]
#[case("crates/aws/src/lib.rs")]
#[case("src/lib.rs")]
#[case("src/main.rs")]
#[case("xtask/src/lib.rs")]
#[case("testbed/src/lib.rs")]
#[case("testbed/src/main.rs")]
#[case("benches/figures/main.rs")]
fn files_have_no_import_cycle(#[case] root: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = |path: &Path| std::fs::read_to_string(folder.join(path)).ok();
    let cycles = Crate::read(Path::new(root), &source).cycles();
    assert!(
        cycles.is_empty(),
        "{root}: in each cycle, move an imported item to a file below both\n\n{}",
        cycles.join("\n")
    );
}

#[test]
fn cycle_is_printed_with_its_imports() {
    let files = HashMap::from([
        ("src/lib.rs", "mod a; mod b; mod c; pub use a::One;"),
        (
            "src/a.rs",
            "pub struct One;\nfn f() { vec![crate::b::two(1)]; }",
        ),
        ("src/b.rs", "use super::{c::*, One};\npub fn two(_: One) {}"),
        ("src/c.rs", "#[cfg(test)]\nmod tests { use crate::a::One; }"),
    ]);
    let source = |path: &Path| files.get(path.to_str()?).map(ToString::to_string);
    let cycles = Crate::read(Path::new("src/lib.rs"), &source).cycles();
    let expected = "src/a.rs:2 crate::b::two -> src/b.rs\nsrc/b.rs:1 super::One -> src/a.rs\n";
    assert_eq!(cycles, [expected]);
}

/// Path as written, such as `super::rules::Rule`, and its line.
type Line = (Vec<String>, usize);

/// Target of a path: a module, or an item of a file.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    File(usize),
}

#[derive(Default)]
struct Module {
    file: usize,
    parent: usize,
    modules: HashMap<String, usize>,
    items: HashSet<String>,
    /// Names of its types and traits.
    types: Vec<String>,
    /// Imports: the new name, the path, and whether other files may use the name.
    imports: Vec<(String, Vec<String>, bool)>,
    lines: Vec<Line>,
}

/// Modules of one crate, from the root on, without those for tests.
pub(crate) struct Crate<'a> {
    source: &'a dyn Fn(&Path) -> Option<String>,
    files: Vec<String>,
    modules: Vec<Module>,
}

impl<'a> Crate<'a> {
    pub(crate) fn read(root: &Path, source: &'a dyn Fn(&Path) -> Option<String>) -> Self {
        let (files, modules) = (Vec::new(), Vec::new());
        let mut read = Self {
            source,
            files,
            modules,
        };
        read.file(root, root.parent().unwrap(), 0).unwrap();
        read
    }

    /// Reads a file, whose modules are in `folder`; returns its module.
    fn file(&mut self, path: &Path, folder: &Path, parent: usize) -> Option<usize> {
        let items = syn::parse_file(&(self.source)(path)?).unwrap().items;
        self.files.push(path.display().to_string());
        Some(self.module(&items, self.files.len() - 1, folder, parent))
    }

    fn module(&mut self, items: &[Item], file: usize, folder: &Path, parent: usize) -> usize {
        let id = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            ..Module::default()
        });
        let mut lines = Lines::default();
        for item in items {
            lines.visit_item(item);
            let name = match item {
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    let name = module.ident.to_string();
                    let child = match &module.content {
                        Some((_, items)) => self.module(items, file, &folder.join(&name), id),
                        None => self.child(&name, &module.attrs, folder, id),
                    };
                    self.modules[id].modules.insert(name, child);
                    continue;
                }
                Item::Use(import) if !is_for_tests(&import.attrs) => {
                    let is_open = !matches!(import.vis, Visibility::Inherited);
                    let imports = uses(&import.tree, &[]).into_iter();
                    let imports = imports.map(|(name, (path, _))| (name, path, is_open));
                    self.modules[id].imports.extend(imports);
                    continue;
                }
                Item::Const(item) => &item.ident,
                Item::Enum(item) => &item.ident,
                Item::Fn(item) => &item.sig.ident,
                Item::Static(item) => &item.ident,
                Item::Struct(item) => &item.ident,
                Item::Trait(item) => &item.ident,
                Item::Type(item) => &item.ident,
                _ => continue,
            };
            if matches!(
                item,
                Item::Enum(_) | Item::Struct(_) | Item::Trait(_) | Item::Type(_)
            ) {
                self.modules[id].types.push(name.to_string());
            }
            self.modules[id].items.insert(name.to_string());
        }
        self.modules[id].lines = lines.0;
        id
    }

    /// Reads the file of `mod name;`, or the file that its attribute `path` names.
    fn child(&mut self, name: &str, attrs: &[Attribute], folder: &Path, parent: usize) -> usize {
        let within = folder.join(name);
        let path = |attribute: &Attribute| match &attribute.meta.require_name_value().ok()?.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) if attribute.path().is_ident("path") => Some(folder.join(text.value())),
            _ => None,
        };
        let found = match attrs.iter().find_map(path) {
            Some(path) => self.file(&path, path.parent().unwrap(), parent),
            None => self
                .file(&within.with_extension("rs"), &within, parent)
                .or_else(|| self.file(&within.join("mod.rs"), &within, parent)),
        };
        found.unwrap_or_else(|| panic!("{} has no file", within.display()))
    }

    /// Follows `path` from a module on; returns `None` if it leaves the crate.
    fn follow(&self, module: usize, path: &[String], depth: usize) -> Option<Target> {
        let mut target = Target::Module(module);
        for (index, name) in path.iter().enumerate() {
            let Target::Module(at) = target else { break };
            let is_last = index + 1 == path.len();
            target = match name.as_str() {
                "crate" => Target::Module(0),
                "super" => Target::Module(self.modules[at].parent),
                "self" => target,
                "*" => Target::File(self.modules[at].file),
                _ => match self.named(at, name, is_last, index == 0, depth) {
                    None if index == 0 => return None,
                    found => found.unwrap_or(Target::File(self.modules[at].file)),
                },
            };
        }
        Some(target)
    }

    /// Finds a name of a module. `is_own`: for the module itself, which may use its private imports.
    fn named(
        &self,
        at: usize,
        name: &str,
        is_last: bool,
        is_own: bool,
        depth: usize,
    ) -> Option<Target> {
        let module = &self.modules[at];
        let child = module.modules.get(name).copied().map(Target::Module);
        let item = module.items.get(name).map(|_| Target::File(module.file));
        let imported = || {
            let mut imports = module.imports.iter();
            imports.find_map(|(new, path, is_open)| match new.as_str() {
                _ if depth > 8 || !(is_own || *is_open) => None,
                "*" => match self.follow(at, &path[..path.len() - 1], depth + 1)? {
                    Target::Module(from) => self.named(from, name, is_last, false, depth + 1),
                    Target::File(_) => None,
                },
                _ if new == name => self.follow(at, path, depth + 1),
                _ => None,
            })
        };
        if is_last {
            item.or_else(imported).or(child)
        } else {
            child.or(item).or_else(imported)
        }
    }

    /// Returns each type and trait with its file.
    pub(crate) fn types(&self) -> impl Iterator<Item = (&str, &str)> {
        self.modules.iter().flat_map(|module| {
            let file = &*self.files[module.file];
            module.types.iter().map(move |name| (&**name, file))
        })
    }

    /// Returns the imports of each cycle.
    fn cycles(&self) -> Vec<String> {
        let mut imports = BTreeMap::<_, BTreeSet<_>>::new();
        for (id, module) in self.modules.iter().enumerate() {
            let from = module.file;
            for (path, line) in &module.lines {
                match self.follow(id, path, 0) {
                    Some(Target::File(to)) if to != from => {
                        let lines = imports.entry((from, to)).or_default();
                        lines.insert((*line, path.join("::")));
                    }
                    _ => {}
                }
            }
        }
        let count = self.files.len();
        let mut reaches = vec![vec![false; count]; count];
        for (from, to) in imports.keys() {
            reaches[*from][*to] = true;
        }
        for middle in 0..count {
            for from in 0..count {
                for to in 0..count {
                    reaches[from][to] |= reaches[from][middle] && reaches[middle][to];
                }
            }
        }
        let mut cycles = BTreeMap::<_, String>::new();
        for ((from, to), lines) in imports {
            let first = (0..count).find(|file| reaches[from][*file] && reaches[*file][from]);
            for (line, path) in lines.iter().filter(|_| reaches[to][from]) {
                let (from, to) = (&self.files[from], &self.files[to]);
                let import = format!("{from}:{line} {path} -> {to}\n");
                cycles.entry(first).or_default().push_str(&import);
            }
        }
        cycles.into_values().collect()
    }
}

/// Paths of an item, other than single names, and those of its imports.
#[derive(Default)]
struct Lines(Vec<Line>);

impl Visit<'_> for Lines {
    fn visit_item_mod(&mut self, _: &syn::ItemMod) {}

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            let imports = uses(&item.tree, &[]).into_iter();
            self.0.extend(imports.map(|(_, line)| line));
        }
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        self.add(path.segments.iter().map(|segment| &segment.ident).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        visit::visit_macro(self, call);
        self.scan(call.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &syn::MetaList) {
        self.scan(list.tokens.clone());
    }
}

impl Lines {
    fn add(&mut self, path: Vec<&Ident>) {
        if path.len() > 1 {
            let line = path[0].span().start().line;
            self.0
                .push((path.into_iter().map(Ident::to_string).collect(), line));
        }
    }

    /// Adds the paths in the arguments of a macro or an attribute.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in &tokens {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(name) if colons == 2 && !path.is_empty() => path.push(name),
                other => {
                    self.add(std::mem::take(&mut path));
                    match other {
                        TokenTree::Ident(name) => path.push(name),
                        TokenTree::Group(group) => self.scan(group.stream()),
                        _ => {}
                    }
                }
            }
            colons = 0;
        }
        self.add(path);
    }
}

/// Returns the imports of a `use`, each with the new name.
fn uses(tree: &UseTree, before: &[String]) -> Vec<(String, Line)> {
    let path = |name: String| [before, &[name]].concat();
    let one = |new: String, name: &Ident| {
        let line = name.span().start().line;
        vec![(new, (path(name.to_string()), line))]
    };
    match tree {
        UseTree::Path(tree) => uses(&tree.tree, &path(tree.ident.to_string())),
        UseTree::Group(group) => {
            let trees = group.items.iter();
            trees.flat_map(|tree| uses(tree, before)).collect()
        }
        UseTree::Name(tree) if tree.ident == "self" => {
            one(before[before.len() - 1].clone(), &tree.ident)
        }
        UseTree::Name(tree) => one(tree.ident.to_string(), &tree.ident),
        UseTree::Rename(tree) => one(tree.rename.to_string(), &tree.ident),
        UseTree::Glob(tree) => {
            let line = tree.star_token.spans[0].start().line;
            vec![("*".to_owned(), (path("*".to_owned()), line))]
        }
    }
}

fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attribute| {
        let argument = || attribute.parse_args::<Ident>();
        attribute.path().is_ident("cfg") && argument().is_ok_and(|argument| argument == "test")
    })
}
