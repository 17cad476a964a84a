//! Files must not import each other in cycles: to change one, a reader would have to read them all.

use std::collections::{BTreeMap, BTreeSet};

use super::layering::{LIBRARIES, Source, sources};

/// The parts of a path in code, such as `super::a::B`.
type Path = Vec<String>;

/// A name that a file imports, or re-exports if it is public.
struct Import {
    path: Path,
    name: String,
    is_public: bool,
}

/// A file as a module.
struct Module {
    /// Whether it is the `mod.rs` of a folder, which declares its parts.
    is_face: bool,
    imports: Vec<Import>,
    /// Paths in the code outside imports.
    named: Vec<Path>,
}

/// Modules of a crate by path.
struct Modules(BTreeMap<Path, Module>);

fn parts(path: &str) -> Path {
    path.split("::").map(|part| part.trim().to_owned()).collect()
}

/// Returns the paths of a use tree with their local names: `a::{b, c::D as E}` has `a::b` as `b` and `a::c::D` as `E`.
fn tree(text: &str) -> Vec<(Path, String)> {
    let text = text.trim();
    if let Some(open) = text.find('{') {
        let before: Path = parts(&text[..open]).into_iter().filter(|part| !part.is_empty()).collect();
        let inner = text[open + 1..].strip_suffix('}').expect("a use tree ends with its bracket");
        let (mut depth, mut start, mut found) = (0, 0, Vec::new());
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    if !inner[start..at].trim().is_empty() {
                        found.extend(tree(&inner[start..at]));
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
        let whole = |(path, name): (Path, String)| match path.as_slice() {
            [only] if only == "self" => {
                (before.clone(), if name == "self" { before.last().cloned().unwrap_or_default() } else { name })
            }
            _ => (before.iter().cloned().chain(path).collect(), name),
        };
        return found.into_iter().map(whole).collect();
    }
    let (path, alias) = text.split_once(" as ").map_or((text, None), |(path, alias)| (path, Some(alias.trim())));
    let path = parts(path);
    let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
    vec![(path, name)]
}

impl Module {
    fn of(source: &Source) -> Self {
        let (mut imports, mut rest, mut lines) = (Vec::new(), String::new(), source.code.lines());
        while let Some(line) = lines.next() {
            let statement = line.trim_start();
            let after_pub = match statement.strip_prefix("pub") {
                Some(after) if after.starts_with('(') => {
                    after.split_once(')').map_or(after, |(_, rest)| rest).trim_start()
                }
                Some(after) => after.trim_start(),
                None => statement,
            };
            let Some(first) = after_pub.strip_prefix("use ") else {
                rest.push_str(line);
                rest.push('\n');
                continue;
            };
            let mut text = first.to_owned();
            while !text.trim_end().ends_with(';') {
                text.push(' ');
                text.push_str(lines.next().expect("a `use` ends").trim());
            }
            let is_public = statement.starts_with("pub");
            let text = text.trim_end().trim_end_matches(';').to_owned();
            imports.extend(tree(&text).into_iter().map(|(path, name)| Import { path, name, is_public }));
        }
        let is_face = source.path.ends_with("mod.rs") || source.path == "lib.rs";
        Self { is_face, imports, named: named(&rest) }
    }
}

/// Returns all paths of at least two parts that begin with a lowercase letter.
fn named(code: &str) -> Vec<Path> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let start = code[..at].rfind(|c| !is_word(c)).map_or(0, |before| before + 1);
        if code[..start].ends_with("::") || !code[start..at].starts_with(|c: char| c.is_lowercase()) {
            continue;
        }
        let end = code[at..].find(|c: char| !is_word(c) && c != ':').map_or(code.len(), |length| at + length);
        let path: Path = parts(&code[start..end]).into_iter().filter(|part| !part.is_empty()).collect();
        found.push(path);
    }
    found
}

impl Modules {
    fn of(crate_name: &str) -> Self {
        let module = |source: &Source| {
            let path = source.path.trim_end_matches(".rs");
            let path = path.trim_end_matches("/mod");
            let path: Path = path.split('/').map(str::to_owned).collect();
            (path, Module::of(source))
        };
        Self(sources(crate_name).iter().map(module).collect())
    }

    /// Resolves `path` in the module `from` relative to the crate root; `None` for other crates.
    fn resolve_from_root(&self, from: &Path, path: &[String], depth: usize) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let own: Path = if from == &["lib"] { Vec::new() } else { from.clone() };
        match first.as_str() {
            _ if depth > 8 => None,
            "crate" => Some(rest.to_vec()),
            "self" => Some([own, rest.to_vec()].concat()),
            "super" => {
                let mut up = own;
                let mut rest = path;
                while rest.first().is_some_and(|part| part == "super") {
                    up.pop();
                    rest = &rest[1..];
                }
                Some([up, rest.to_vec()].concat())
            }
            _ => {
                let child = [own.clone(), vec![first.clone()]].concat();
                if self.0.contains_key(&child) {
                    return Some([own, path.to_vec()].concat());
                }
                let import =
                    self.0[from].imports.iter().find(|import| import.name == *first && import.path != path[..1])?;
                Some([self.resolve_from_root(from, &import.path, depth + 1)?, rest.to_vec()].concat())
            }
        }
    }

    /// Returns the module that defines `path`, relative to the root. Follows re-exports.
    fn definer(&self, path: &[String], depth: usize) -> Option<Path> {
        let length = (0..=path.len()).rev().find(|&length| self.0.contains_key(&path[..length])).unwrap_or(0);
        let module: Path = if length == 0 { vec!["lib".to_owned()] } else { path[..length].to_vec() };
        let (Some(name), true) = (path.get(length), depth < 12) else { return Some(module) };
        let handed_on = self.0.get(&module)?.imports.iter().find(|import| import.is_public && import.name == *name);
        match handed_on {
            Some(import) => {
                let target = self.resolve_from_root(&module, &import.path, 0)?;
                self.definer(&[target, path[length + 1..].to_vec()].concat(), depth + 1)
            }
            None => Some(module),
        }
    }

    /// Returns the modules that each module needs. A module does not need its re-exports, and the `mod.rs` of a folder
    /// does not need its parts.
    fn needs(&self) -> BTreeMap<Path, BTreeSet<Path>> {
        let of = |(own, module): (&Path, &Module)| {
            let imported = module.imports.iter().filter(|import| !import.is_public).map(|import| &import.path);
            let target = |path: &Path| self.definer(&self.resolve_from_root(own, path, 0)?, 0);
            let is_need =
                |target: &Path| target != own && !(module.is_face && (target.starts_with(own) || own == &["lib"]));
            (own.clone(), imported.chain(&module.named).filter_map(target).filter(is_need).collect())
        };
        self.0.iter().map(of).collect()
    }
}

/// Returns the files that reach each other, cycle by cycle.
fn circles(needs: &BTreeMap<Path, BTreeSet<Path>>) -> BTreeSet<Vec<String>> {
    let reached = |from: &Path| {
        let (mut found, mut open): (BTreeSet<&Path>, Vec<&Path>) = (BTreeSet::new(), needs[from].iter().collect());
        while let Some(next) = open.pop() {
            if found.insert(next) {
                open.extend(needs.get(next).into_iter().flatten());
            }
        }
        found
    };
    let all: BTreeMap<&Path, BTreeSet<&Path>> = needs.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &&Path| {
        let others = all[*module].iter().filter(|other| all.get(**other).is_some_and(|back| back.contains(*module)));
        others.map(|other| other.join("/")).collect::<Vec<_>>()
    };
    all.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    for crate_name in LIBRARIES.iter().copied().chain(["gradus-cli"]) {
        let found = circles(&Modules::of(crate_name).needs());
        wrong.extend(found.iter().map(|files| format!("{crate_name}: {}", files.join(", "))));
    }
    assert!(wrong.is_empty(), "files import each other in a circle:\n{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_imports_sees_circles() {
    let source = |path: &str, code: &str| Source { path: path.into(), code: code.into() };
    let found = |files: &[(&str, &str)]| {
        let module = |(path, code): &(&str, &str)| {
            let source = source(path, code);
            let path = path.trim_end_matches(".rs").trim_end_matches("/mod").split('/').map(str::to_owned).collect();
            (path, Module::of(&source))
        };
        circles(&Modules(files.iter().map(module).collect()).needs())
    };
    let circle: BTreeSet<Vec<String>> = [vec!["a/b".to_owned(), "a/c".to_owned()]].into();
    let b = ("a/b.rs", "use super::{\n    c::C,\n    d::{self, D},\n};\npub struct B;\n");
    assert_eq!(found(&[b, ("a/c.rs", "pub struct C(super::b::B);"), ("a/d.rs", "pub struct D;")]), circle);
    let handed_on = ("a/mod.rs", "pub use b::B;\nmod b;\nmod c;\nmod d;\nuse c::C;\n");
    assert_eq!(found(&[handed_on, b, ("a/c.rs", "use super::B as Other;\npub struct C;"), ("a/d.rs", "")]), circle);
    assert_eq!(found(&[handed_on, b, ("a/c.rs", "use std::fmt;\npub struct C;"), ("a/d.rs", "")]), BTreeSet::new());
}
