//! Which modules of a crate import which, read from its source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, UseTree, Visibility};

use crate::{is_test, read, root, sources};

/// A module, or a name in one: the parts of its path, from the root of the crate.
type Place = Vec<String>;

/// The imports between siblings that belong to a cycle, or connect two. A module and its own
/// children may import each other.
pub(crate) fn cycles(source: &str) -> Vec<String> {
    let mut imports = between_siblings(&modules(source));
    loop {
        let imported: BTreeSet<Place> = imports.values().flatten().cloned().collect();
        let before: usize = imports.values().map(BTreeSet::len).sum();
        let importing: BTreeSet<Place> = imports.keys().cloned().collect();
        for targets in imports.values_mut() {
            targets.retain(|it| importing.contains(it));
        }
        imports.retain(|from, targets| imported.contains(from) && !targets.is_empty());
        if imports.values().map(BTreeSet::len).sum::<usize>() == before {
            break;
        }
    }
    let list = |(from, targets): (Place, BTreeSet<Place>)| {
        let from = from.join("::");
        targets.into_iter().map(move |to| format!("{source}: {from} imports {}", to.join("::")))
    };
    imports.into_iter().flat_map(list).collect()
}

#[derive(Default)]
struct Module {
    /// Paths as they are in the source.
    paths: Vec<Place>,
    /// Paths that it exports under their own name.
    exports: Vec<Place>,
}

fn modules(source: &str) -> BTreeMap<Place, Module> {
    let files = sources(source).into_iter().filter(|file| !is_test(file));
    let modules = files.map(|file| {
        let mut module = Module::default();
        module.visit_file(&syn::parse_file(&read(&file)).unwrap());
        (place(file.strip_prefix(root().join(source)).unwrap()), module)
    });
    modules.collect()
}

/// `lease.rs` and `lease/mod.rs` are both the module `lease`.
fn place(file: &Path) -> Place {
    let path = file.with_extension("");
    let names = path.iter().map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !["mod", "lib", "main"].contains(&name.as_str())).collect()
}

impl Visit<'_> for Module {
    fn visit_item(&mut self, item: &Item) {
        // Tests may import any module.
        if !matches!(item, Item::Mod(ItemMod { content: Some(_), .. })) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        let mut found = Vec::new();
        expand(&item.tree, &mut Vec::new(), &mut found);
        if !matches!(item.vis, Visibility::Inherited) {
            self.exports.extend(found.iter().cloned());
        }
        self.paths.extend(found);
    }

    /// The arguments of a macro are no syntax tree: their paths are read as text.
    fn visit_macro(&mut self, invoked: &syn::Macro) {
        let text = invoked.tokens.to_string().replace(" :: ", "::");
        let words = text.split(|it: char| !it.is_alphanumeric() && it != '_' && it != ':');
        let paths = words.filter(|word| word.contains("::"));
        self.paths.extend(paths.map(|path| path.split("::").map(ToOwned::to_owned).collect()));
        visit::visit_macro(self, invoked);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

fn expand(tree: &UseTree, before: &mut Place, found: &mut Vec<Place>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            expand(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => found.push(before.clone()),
        UseTree::Name(name) => found.push([before.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Rename(it) => found.push([before.as_slice(), &[it.ident.to_string()]].concat()),
        UseTree::Glob(_) => found.push(before.clone()),
        UseTree::Group(group) => group.items.iter().for_each(|it| expand(it, before, found)),
    }
}

fn between_siblings(modules: &BTreeMap<Place, Module>) -> BTreeMap<Place, BTreeSet<Place>> {
    let exports: BTreeMap<Place, Place> = modules
        .iter()
        .flat_map(|(place, module)| module.exports.iter().map(move |path| (place, path)))
        .filter_map(|(place, path)| {
            let name = [place.as_slice(), &[path.last()?.clone()]].concat();
            Some((name, absolute(place, path, modules)?))
        })
        .collect();
    let mut imports: BTreeMap<Place, BTreeSet<Place>> = BTreeMap::new();
    for (place, module) in modules {
        let absolute = module.paths.iter().filter_map(|path| absolute(place, path, modules));
        for target in absolute.map(|path| home(path, modules, &exports)) {
            let shared = place.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if let (Some(from), Some(to)) = (place.get(..=shared), target.get(..=shared)) {
                imports.entry(from.to_vec()).or_default().insert(to.to_vec());
            }
        }
    }
    imports
}

/// None for what another crate, or this very module, defines.
fn absolute(place: &Place, path: &Place, modules: &BTreeMap<Place, Module>) -> Option<Place> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let rest = path.get(ups..)?;
    match rest.first().map(String::as_str) {
        Some("crate") => Some(rest.get(1..)?.to_vec()),
        Some("self") => Some([place.as_slice(), rest.get(1..)?].concat()),
        Some(child) => {
            let from = place.get(..place.len().checked_sub(ups)?)?;
            let is_child = modules.contains_key(&[from, &[child.to_owned()]].concat());
            (ups > 0 || is_child).then(|| [from, rest].concat())
        }
        None => None,
    }
}

/// The module that defines `path`, which others may export in turn.
fn home(
    mut path: Place,
    modules: &BTreeMap<Place, Module>,
    exports: &BTreeMap<Place, Place>,
) -> Place {
    let prefixes = |path: &Place| {
        (1..=path.len()).rev().map(|length| path[..length].to_vec()).collect::<Vec<_>>()
    };
    while let Some(name) = prefixes(&path)
        .into_iter()
        .find(|name| exports.contains_key(name) && !modules.contains_key(name))
    {
        path = [exports[&name].as_slice(), &path[name.len()..]].concat();
    }
    let module = prefixes(&path).into_iter().find(|place| modules.contains_key(place));
    module.unwrap_or_default()
}
