//! Templates: kernel files whose parts are replaced for a call.
//!
//! A file in `kernels/` is a complete and valid WGSL kernel. Sizes are constants with defaults, element types are
//! aliases, and functions with default bodies contain the code that depends on the call. [`Template`] replaces these
//! by name for a call. An unknown name is an error. Directives in comments express what WGSL cannot:
//!
//! ```wgsl
//! // @repeat i < TILES_DOWN, j < TILES_ACROSS
//! sum_i_j = coopMultiplyAdd(a_i, b_j, sum_i_j);
//! // @end
//! // @if A_K_MAJOR
//! let a_i = coopLoadT<MatrixA>(&shared_a[at_a_i], A_STRIDE);
//! // @else
//! //# let a_i = coopLoad<MatrixA>(&shared_a[at_a_i], A_STRIDE);
//! // @end
//! // @insert before
//! // @replace sum
//! sum += x[i];
//! // @end
//! ```
//!
//! `@repeat` writes lines once for each value of its indices. An index is replaced by its value if it is an
//! identifier, or a part of an identifier after an underscore. Its range (`i < N` or `i in N..M`) and the condition
//! of `@if` are expressions of constants. Text after `//#` becomes code only when directives are expanded. The
//! unexpanded file contains the other branch. `@insert` is an insertion point for statements. `@replace` contains
//! lines that are replaced if statements are given. In the unexpanded file, the indices are constants, and all
//! repeated code has one instance. The expansion keeps only the items that `main` uses, so default functions that
//! were replaced disappear together with their buffers.

mod expand;
mod expression;
mod inline;
mod items;
#[cfg(test)]
mod tests;
mod variant;

use std::collections::{HashMap, HashSet};

use super::library;
use super::module::{COOP, F16};
use expand::Expander;
pub(crate) use inline::{Functions, InlinedCall};
pub(crate) use items::{Item, Kind, names, parse};
pub use variant::Replacements;

/// A kernel file of `kernels/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFile {
    /// Name of the file, without `.wgsl`.
    pub name: &'static str,
    /// Text of the file.
    pub text: &'static str,
}

/// The line of the entry point that reads the index of its workgroup. The first checks of a launch replace this line.
pub(crate) const WORKGROUP: &str = "let group_number = group.x;";

/// A kernel file with the replacements for a call.
#[derive(Debug)]
pub(crate) struct Template {
    file: KernelFile,
    constants: HashMap<&'static str, String>,
    aliases: HashMap<String, String>,
    bodies: HashMap<String, String>,
    inserts: HashMap<String, String>,
    more: String,
}

/// A kernel file that is expanded for a call, before its buffers are bound.
#[derive(Debug)]
pub(crate) struct Expanded {
    /// Name of the kernel file.
    pub(crate) kernel: &'static str,
    /// WGSL extensions that the kernel uses.
    pub(crate) enables: Vec<&'static str>,
    /// Buffers that are declared and used.
    pub(crate) buffers: Vec<Buffer>,
    /// All used items except buffers, including functions of the library.
    pub(crate) text: String,
    /// Number of threads of a workgroup.
    pub(crate) threads: usize,
}

/// A buffer of a kernel file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) name: &'static str,
    /// Element type of the buffer's array.
    pub(crate) element: String,
    pub(crate) writes: bool,
}

impl Template {
    pub(crate) fn new(file: KernelFile) -> Self {
        Template {
            file,
            constants: HashMap::new(),
            aliases: HashMap::new(),
            bodies: HashMap::new(),
            inserts: HashMap::new(),
            more: String::new(),
        }
    }

    /// Replaces the value of a `u32` constant.
    pub(crate) fn size(mut self, name: &'static str, value: usize) -> Self {
        self.constants.insert(name, format!("{value}u"));
        self
    }

    /// Replaces the values of several constants.
    pub(crate) fn sizes<const N: usize>(self, all: [(&'static str, usize); N]) -> Self {
        all.into_iter()
            .fold(self, |template, (name, value)| template.size(name, value))
    }

    /// Replaces the value of a `bool` constant.
    pub(crate) fn flag(self, name: &'static str, value: bool) -> Self {
        self.value(name, if value { "true" } else { "false" })
    }

    /// Replaces the value of a constant, as WGSL.
    pub(crate) fn value(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.constants.insert(name, value.into());
        self
    }

    /// Replaces the type of an alias.
    pub(crate) fn alias(mut self, name: impl Into<String>, ty: impl Into<String>) -> Self {
        self.aliases.insert(name.into(), ty.into());
        self
    }

    /// Replaces the body of a function: the statements between its braces.
    pub(crate) fn body(mut self, name: impl Into<String>, statements: impl Into<String>) -> Self {
        self.bodies.insert(name.into(), statements.into());
        self
    }

    /// Replaces the body of a function that returns a value. `statements` come before the `return` of `value`.
    pub(crate) fn returns(self, name: impl Into<String>, statements: &str, value: &str) -> Self {
        self.body(name, [statements, "return ", value, ";\n"].concat())
    }

    /// Inserts statements at an insertion point of the file, or replaces the lines there.
    pub(crate) fn insert(mut self, location: impl Into<String>, statements: impl Into<String>) -> Self {
        self.inserts.insert(location.into(), statements.into());
        self
    }

    /// Adds declarations that replaced bodies use.
    pub(crate) fn with(mut self, declarations: &str) -> Self {
        self.more.push_str(declarations);
        self
    }

    fn error(&self, what: impl std::fmt::Display) -> String {
        let name = self.file.name;
        let folder = if name.contains('/') { "" } else { "kernels/" };
        format!("{folder}{name}.wgsl: {what}")
    }

    /// Returns the functions of the file, for inlining.
    ///
    /// # Errors
    /// As [`Template::expand`].
    pub(crate) fn functions(&self) -> Result<Functions, String> {
        let items = self.items().map_err(|what| self.error(what))?;
        Ok(Functions::new(self.file.name, items))
    }

    /// Returns the kernel with all replacements, without unused items.
    ///
    /// # Errors
    /// The file does not contain a name, a name has another kind, or a directive is invalid.
    pub(crate) fn expand(&self) -> Result<Expanded, String> {
        let mut items = self.items().map_err(|what| self.error(what))?;
        self.replace(&mut items, Kind::Alias, &self.aliases)?;
        self.replace(&mut items, Kind::Function, &self.bodies)?;
        let more = items::parse(&self.more).map_err(|what| self.error(what))?;
        items.extend(more);
        // The functions of the library replace the short functions of the same names that make the unexpanded file
        // valid.
        let library = library::items()?;
        items.retain(|item| library.iter().all(|own| own.name != item.name));
        let items: Vec<&Item> = items.iter().chain(library).collect();
        let reached = reached(&items).map_err(|what| self.error(what))?;
        let main = items.iter().find(|item| item.name == "main");
        let main = main.ok_or_else(|| self.error("there is no entry point 'main'"))?;
        if !main.text.contains(WORKGROUP) {
            return Err(self.error(format_args!("'main' does not say `{WORKGROUP}`")));
        }
        let mut expanded = Expanded {
            kernel: self.file.name,
            enables: Vec::new(),
            buffers: Vec::new(),
            text: String::new(),
            threads: self.size_of(main, &items)?,
        };
        for item in items.iter().filter(|item| reached.contains(&*item.name)) {
            match item.kind {
                Kind::Enable => {}
                Kind::Buffer => expanded.buffers.push(self.buffer(item)?),
                _ => {
                    expanded.text.push_str(&item.text);
                    expanded.text.push('\n');
                }
            }
        }
        let names = items::names(&expanded.text);
        let uses = |extension: &str| match extension {
            COOP => names.iter().any(|name| name.starts_with("coop")),
            _ => names.contains(&extension) || expanded.buffers.iter().any(|b| b.element.contains(extension)),
        };
        expanded.enables = [F16, COOP].into_iter().filter(|extension| uses(extension)).collect();
        Ok(expanded)
    }

    /// Returns the statements of the entry point that follow the index of the workgroup, and the declarations that
    /// they use. Another kernel can include them. Constants are replaced by their values, because the other kernel
    /// has its own constants.
    ///
    /// # Errors
    /// As [`Template::expand`].
    pub(crate) fn prologue(&self) -> Result<[String; 2], String> {
        let expanded = self.expand()?;
        let items = items::parse(&expanded.text).map_err(|what| self.error(what))?;
        let (constants, others): (Vec<Item>, Vec<Item>) = items.into_iter().partition(|i| i.kind == Kind::Constant);
        let values: HashMap<&str, String> = constants
            .iter()
            .filter_map(|constant| Some((&*constant.name, constant.value()?)))
            .collect();
        let text = |of: &str| -> String {
            let words = items::words(of).into_iter();
            words.map(|word| values.get(word).map_or(word, |value| value)).collect()
        };
        let (main, declared): (Vec<Item>, Vec<Item>) = others.into_iter().partition(|i| i.name == "main");
        let library = library::items()?;
        let own = declared
            .iter()
            .filter(|item| library.iter().all(|known| known.name != item.name));
        let declarations = own.flat_map(|item| [text(item.code()), "\n".to_owned()]).collect();
        let code = main
            .first()
            .and_then(|main| main.text.split_once(WORKGROUP))
            .map(|(_, code)| code);
        let code = code.and_then(|code| Some(code.rsplit_once('}')?.0));
        let code = code.ok_or_else(|| self.error("there is no entry point 'main'"))?;
        Ok([declarations, text(code.trim_start_matches('\n'))])
    }

    /// Returns the items of the file, with constants replaced and directives expanded.
    fn items(&self) -> Result<Vec<Item>, String> {
        let mut expander = Expander::new(&self.constants, &self.inserts);
        let text = expander.expand(self.file.text)?;
        let unknown = self.constants.keys().find(|name| !expander.has(name));
        if let Some(name) = unknown {
            return Err(format!("there is no constant '{name}'"));
        }
        match self.inserts.keys().find(|location| !expander.has_place(location)) {
            Some(location) => Err(format!("there is no location '{location}' to insert at")),
            None => items::parse(&text),
        }
    }

    fn replace(&self, items: &mut [Item], kind: Kind, by: &HashMap<String, String>) -> Result<(), String> {
        for (name, text) in by {
            let item = items.iter_mut().find(|item| item.kind == kind && item.name == *name);
            let item = item.ok_or_else(|| self.error(format_args!("there is no {kind} '{name}' to replace")))?;
            item.replace(text);
        }
        Ok(())
    }

    /// Returns the number of threads of a workgroup, according to the attribute of the entry point.
    fn size_of(&self, main: &Item, items: &[&Item]) -> Result<usize, String> {
        let size = main
            .text
            .split("@workgroup_size(")
            .nth(1)
            .and_then(|rest| rest.split(')').next());
        let size = size.ok_or_else(|| self.error("'main' has no workgroup size"))?.trim();
        let of = |name: &str| {
            items
                .iter()
                .find(|i| i.kind == Kind::Constant && i.name == name)
                .and_then(|item| item.value())
        };
        let text = of(size).unwrap_or_else(|| size.to_owned());
        let value = text.trim_end_matches('u').parse();
        value.map_err(|_| self.error(format_args!("the workgroup size '{size}' is no number")))
    }

    fn buffer(&self, item: &Item) -> Result<Buffer, String> {
        let cannot = || self.error(format_args!("the buffer '{}' is no array in storage", item.name));
        let (element, writes) = item.buffer().ok_or_else(cannot)?;
        let names = items::names(self.file.text);
        let name = names.into_iter().find(|name| **name == item.name).ok_or_else(cannot)?;
        Ok(Buffer { name, element, writes })
    }
}

/// Returns the names of the items that the entry point needs, directly or indirectly.
fn reached<'a>(items: &[&'a Item]) -> Result<HashSet<&'a str>, String> {
    let mut known: HashMap<&str, &Item> = HashMap::with_capacity(items.len());
    let mut twice = HashSet::new();
    for item in items.iter().filter(|item| item.kind != Kind::Enable) {
        if known.insert(&item.name, item).is_some() {
            twice.insert(&*item.name);
        }
    }
    let mut reached: HashSet<&str> = HashSet::new();
    let mut open = vec!["main"];
    while let Some(name) = open.pop() {
        if let Some(item) = known.get(name)
            && reached.insert(&item.name)
        {
            open.extend(item.needs().iter().map(String::as_str));
        }
    }
    match twice.iter().find(|name| reached.contains(*name)) {
        Some(name) => Err(format!("there are two items '{name}'")),
        None => Ok(reached),
    }
}
