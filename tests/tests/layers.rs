//! Layering: sibling modules of a crate must not depend on each other in a cycle. A module and its
//! submodules count as one. Between crates the compiler ensures this.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree};

/// A module, from the root of its crate.
type Name = Vec<String>;

/// A path in a line of code.
struct Mention {
    from: Name,
    path: Name,
    line: String,
}

/// Pairs of a module and its dependency, each with a line that proves it.
type Dependencies<'a> = BTreeMap<(String, String), &'a str>;

/// The modules of a crate, without tests.
#[derive(Default)]
struct Modules {
    names: BTreeSet<Name>,
    mentions: Vec<Mention>,
    /// Targets of imported and re-exported names.
    imports: BTreeMap<(Name, String), Name>,
}

impl Modules {
    fn read(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        modules.add_file(root, vec![], root.parent().context("in a folder")?)?;
        let mentions = std::mem::take(&mut modules.mentions).into_iter();
        modules.mentions = mentions
            .filter_map(|mention| {
                let path = modules.absolute(&mention.from, &mention.path)?;
                Some(Mention { path, ..mention })
            })
            .collect();
        let imports = std::mem::take(&mut modules.imports).into_iter();
        modules.imports = imports
            .filter_map(|((module, name), path)| {
                let path = modules.absolute(&module, &path)?;
                Some(((module, name), path))
            })
            .collect();
        Ok(modules)
    }

    /// Adds a file, whose submodules are in `folder`.
    fn add_file(&mut self, file: &Path, name: Name, folder: &Path) -> Result<()> {
        let text = fs_err::read_to_string(file)?;
        let items = syn::parse_file(&text)
            .with_context(|| file.display().to_string())?
            .items;
        let lines: Vec<&str> = text.lines().collect();
        self.add_items(&items, &name, &|line| {
            format!("{}:{line}: {}", file.display(), lines[line - 1].trim())
        });
        self.names.insert(name.clone());
        for item in &items {
            let Item::Mod(ItemMod {
                ident,
                attrs,
                content: None,
                ..
            }) = item
            else {
                continue;
            };
            if is_of_tests(attrs) {
                continue;
            }
            let inside = folder.join(ident.to_string());
            let file = [inside.with_extension("rs"), inside.join("mod.rs")]
                .into_iter()
                .find(|file| file.exists())
                .with_context(|| format!("{}: no file of module {ident}", file.display()))?;
            self.add_file(&file, [name.clone(), vec![ident.to_string()]].concat(), &inside)?;
        }
        Ok(())
    }

    fn add_items(&mut self, items: &[Item], module: &Name, line: &dyn Fn(usize) -> String) {
        let mut visitor = Visitor {
            module,
            line,
            modules: self,
        };
        for item in items {
            visitor.visit_item(item);
        }
    }

    /// Makes a module's path relative to the crate root; `None` if it leads to another crate.
    fn absolute(&self, module: &Name, path: &[String]) -> Option<Name> {
        let mut name = module.clone();
        match path.first()?.as_str() {
            "crate" => name.clear(),
            "self" | "super" => {}
            first => {
                let inside = [module.clone(), vec![first.into()]].concat();
                self.names.contains(&inside).then_some(())?;
            }
        }
        for segment in path {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(name.pop()),
                _ => name.push(segment.clone()),
            }
        }
        Some(name)
    }

    /// The module that a path from the root leads to, following re-exports.
    fn resolve(&self, path: &[String]) -> Name {
        let mut name = Name::new();
        for (index, segment) in path.iter().enumerate() {
            let key = (name, segment.clone());
            if let Some(target) = self.imports.get(&key).filter(|target| !path.starts_with(target)) {
                return self.resolve(&[target, &path[index + 1..]].concat());
            }
            name = key.0;
            name.push(segment.clone());
            if !self.names.contains(&name) {
                name.pop();
                break;
            }
        }
        name
    }

    /// Dependencies between sibling modules, by their parent.
    fn dependencies(&self) -> BTreeMap<Name, Dependencies<'_>> {
        let mut dependencies: BTreeMap<Name, Dependencies<'_>> = BTreeMap::new();
        for Mention { from, path, line } in &self.mentions {
            let to = self.resolve(path);
            let common = from
                .iter()
                .zip(&to)
                .take_while(|(left, right)| left == right)
                .count();
            if let (Some(user), Some(used)) = (from.get(common), to.get(common)) {
                let beside = dependencies.entry(from[..common].to_vec()).or_default();
                beside.entry((user.clone(), used.clone())).or_insert(line);
            }
        }
        dependencies
    }

    /// The lines of each cycle.
    fn circles(&self) -> Vec<String> {
        let mut circles = vec![];
        for (inside, uses) in self.dependencies() {
            let users: BTreeSet<&String> = uses.keys().map(|(user, _)| user).collect();
            let mut reported: BTreeSet<&str> = BTreeSet::new();
            for user in users {
                if reported.contains(user.as_str()) {
                    continue;
                }
                if let Some(way) = way(&uses, user, user) {
                    reported.extend(way.iter().map(|(used, _)| used));
                    let lines: Vec<&str> = way.into_iter().map(|(_, line)| line).collect();
                    let place = if inside.is_empty() {
                        "crate".into()
                    } else {
                        inside.join("::")
                    };
                    circles.push(format!("in {place}:\n  {}", lines.join("\n  ")));
                }
            }
        }
        circles
    }
}

/// The shortest path of dependencies between two modules: those after the first, with their lines.
fn way<'a>(uses: &'a Dependencies<'_>, from: &str, to: &str) -> Option<Vec<(&'a str, &'a str)>> {
    let mut ways = VecDeque::from([(from, vec![])]);
    let mut seen = BTreeSet::new();
    while let Some((at, way)) = ways.pop_front() {
        for ((user, used), line) in uses {
            if user != at || !seen.insert(used) {
                continue;
            }
            let way = [way.clone(), vec![(used.as_str(), *line)]].concat();
            if used == to {
                return Some(way);
            }
            ways.push_back((used, way));
        }
    }
    None
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|condition| condition == "test")
    })
}

/// Collects the paths of a file.
struct Visitor<'a> {
    module: &'a Name,
    line: &'a dyn Fn(usize) -> String,
    modules: &'a mut Modules,
}

impl Visitor<'_> {
    fn mention(&mut self, path: Name, line: usize) {
        let (from, line) = (self.module.clone(), (self.line)(line));
        self.modules.mentions.push(Mention { from, path, line });
    }

    fn import(&mut self, tree: &UseTree, mut path: Name) {
        let line = tree.span().start().line;
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(&tree.tree, path);
            }
            UseTree::Group(group) => group
                .items
                .iter()
                .for_each(|tree| self.import(tree, path.clone())),
            UseTree::Glob(_) => self.mention(path, line),
            UseTree::Name(name) => self.bind(path, &name.ident, &name.ident, line),
            UseTree::Rename(name) => self.bind(path, &name.ident, &name.rename, line),
        }
    }

    fn bind(&mut self, mut path: Name, name: &syn::Ident, bound: &syn::Ident, line: usize) {
        if name != "self" {
            path.push(name.to_string());
        }
        let key = (self.module.clone(), bound.to_string());
        self.modules.imports.insert(key, path.clone());
        self.mention(path, line);
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &vec![],
        };
        if !is_of_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, vec![]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Name = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if segments.len() > 1 && matches!(segments[0].as_str(), "crate" | "self" | "super") {
            self.mention(segments, path.span().start().line);
        }
        visit::visit_path(self, path);
    }
}

/// The root files of libraries and programs of the workspace.
fn roots() -> Result<Vec<PathBuf>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let targets = packages
        .iter()
        .flat_map(|package| package["targets"].as_array().into_iter().flatten());
    Ok(targets
        .filter(|target| matches!(target["kind"][0].as_str(), Some("lib" | "bin")))
        .filter_map(|target| target["src_path"].as_str().map(Into::into))
        .collect())
}

/// Invariant G18.
#[test]
fn no_modules_depend_on_each_other() -> Result<()> {
    let roots = roots()?;
    ensure!(roots.len() > 8, "only {roots:?}");
    let mut circles = vec![];
    for root in roots {
        circles.extend(Modules::read(&root)?.circles());
    }
    if !circles.is_empty() {
        bail!("modules depend on each other:\n{}", circles.join("\n"));
    }
    Ok(())
}

#[test]
fn a_circle_is_found_with_its_lines() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let write = |file: &str, text: &str| fs_err::write(folder.path().join(file), text);
    write(
        "lib.rs",
        "mod a;\nmod b;\nmod c;\npub use c::Shown;\n#[cfg(test)]\nmod tests;\n",
    )?;
    write("a.rs", "use std::fmt;\nuse crate::b::{self, Two};\n")?;
    write("b.rs", "pub struct Two;\nfn one() -> crate::Shown { todo!() }\n")?;
    write(
        "c.rs",
        "mod inner;\npub struct Shown;\npub fn of() -> inner::Inner { todo!() }\n",
    )?;
    fs_err::create_dir(folder.path().join("c"))?;
    write(
        "c/inner.rs",
        "use super::Shown;\npub struct Inner;\n#[cfg(test)]\nmod tests { use crate::a; }\n",
    )?;
    let root = folder.path().join("lib.rs");
    assert_eq!(Modules::read(&root)?.circles(), [""; 0]);
    write("c/inner.rs", "use super::super::a;\n")?;
    let circles = Modules::read(&root)?.circles();
    assert_eq!(circles.len(), 1, "{circles:?}");
    for line in [
        "a.rs:2: use crate::b::{self, Two};",
        "b.rs:2: fn one() -> crate::Shown { todo!() }",
        "inner.rs:1: use super::super::a;",
    ] {
        assert!(circles[0].contains(line), "{line} is not in {}", circles[0]);
    }
    Ok(())
}
