//! The format of manifests, and their size limits.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Fault;
use crate::term::{Term, shortened};

/// Version of the format of manifests.
pub(crate) const FORMAT: u32 = 1;
/// Maximum size of a manifest, in bytes.
pub(crate) const MANIFEST_BYTES: usize = 256 << 10;
/// Maximum size of any other file, in bytes.
pub(crate) const FILE_BYTES: usize = 128 << 10;
/// Maximum number of operators.
const MAX_OPS: usize = 64;
/// Maximum number of attributes, conditions and named values of an operator.
const MAX_PARTS: usize = 64;
/// Maximum number of operands, and of results.
const MAX_TENSORS: usize = 12;
/// Maximum number of axes in a shape.
pub(crate) const MAX_AXES: usize = 8;
/// Maximum number of values in a list.
pub(crate) const MAX_VALUES: usize = 16;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 48;
/// Maximum length of a text that is only displayed, in bytes.
const MAX_TEXT: usize = 500;

/// The manifest of a plugin.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format of manifests.
    pub(crate) format: u32,
    /// Name of the plugin: the namespace of its operators and rules.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Purpose of the plugin.
    #[serde(default)]
    pub description: String,
    /// File of the rules.
    rules: Option<String>,
    /// The rules themselves.
    rules_text: Option<String>,
    /// Builds in which the rules are used: `always`, `training` or `inference`.
    pub(crate) applies: Option<String>,
    #[serde(default)]
    pub(crate) op: Vec<OpEntry>,
}

/// An operator.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpEntry {
    pub(crate) name: String,
    pub(crate) formula: String,
    #[serde(default)]
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) attributes: Vec<AttributeEntry>,
    pub(crate) inputs: Vec<InputEntry>,
    pub(crate) outputs: Vec<OutputEntry>,
    /// Broadcasts `...` if `true`.
    #[serde(default)]
    pub(crate) broadcast: bool,
    #[serde(default, rename = "where")]
    pub(crate) conditions: Vec<String>,
    #[serde(rename = "let")]
    pub(crate) steps: BTreeMap<String, String>,
    pub(crate) wgsl: Option<WgslEntry>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttributeEntry {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) default: toml::Value,
    #[serde(default)]
    pub(crate) samples: Vec<toml::Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputEntry {
    pub(crate) name: String,
    #[serde(default = "float")]
    pub(crate) dtype: String,
    pub(crate) shape: Vec<Axis>,
    /// Kind of the numbers that tests use.
    pub(crate) values: Option<String>,
    /// Exclusive upper bound of all of its integers.
    pub(crate) below: Option<Axis>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputEntry {
    pub(crate) name: String,
    #[serde(default = "float")]
    pub(crate) dtype: String,
    pub(crate) shape: Vec<Axis>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WgslEntry {
    file: Option<String>,
    text: Option<String>,
    pub(crate) groups: Vec<Axis>,
    #[serde(default, rename = "where")]
    pub(crate) conditions: Vec<String>,
}

/// A size: a number, or an expression.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Axis {
    Number(i64),
    Text(String),
}

impl Axis {
    pub(crate) fn term(&self) -> Result<Term, String> {
        match self {
            Axis::Number(n) => Ok(Term::Int(*n)),
            Axis::Text(text) => Term::parse(text),
        }
    }
}

fn float() -> String {
    "float".into()
}

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// A description of the error, or of the exceeded limit.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if text.len() > MANIFEST_BYTES {
            let message = format!("its manifest has {} bytes; {MANIFEST_BYTES} are allowed", text.len());
            return Err(Fault::new(message));
        }
        let manifest: Manifest = toml::from_str(text)
            .map_err(|e| Fault::new(format!("its manifest cannot be read: {}", shortened(e.message()))))?;
        manifest.check().map_err(Fault::new)?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!(
                "its manifest has the format {}, expected {FORMAT}",
                self.format
            ));
        }
        let dashed: String = self.name.replace('-', "_");
        identifier("the plugin", &dashed)?;
        for (what, shown) in [("version", &self.version), ("description", &self.description)] {
            printable(what, shown)?;
        }
        if self.version.is_empty() {
            return Err("its version is empty".into());
        }
        most("operators", self.op.len(), MAX_OPS)?;
        if self.rules.is_some() && self.rules_text.is_some() {
            return Err("it has rules in a file and as a text; give one of them".into());
        }
        self.op.iter().try_for_each(|op| {
            let of = |e: String| format!("its operator '{}': {e}", shortened(&op.name));
            op.check().map_err(of)
        })
    }

    /// Returns the names of its files, relative to its folder, each once: first the file of the
    /// rules, then the files of the kernels in the order of the operators.
    ///
    /// # Errors
    /// A name that leads out of the folder.
    pub fn files(&self) -> Result<Vec<&str>, Fault> {
        let kernels = self.op.iter().filter_map(|op| op.wgsl.as_ref()?.file.as_deref());
        let mut files: Vec<&str> = Vec::new();
        for (name, end) in self
            .rules
            .iter()
            .map(|r| (r.as_str(), ".egg"))
            .chain(kernels.map(|k| (k, ".wgsl")))
        {
            let part = |part: &str| {
                let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
                !part.is_empty() && !part.starts_with('.') && part.chars().all(valid)
            };
            if !name.ends_with(end) || name.len() > MAX_TEXT || !name.split('/').all(part) {
                return Err(Fault::new(format!(
                    "'{}' is not the name of a file '*{end}' within its folder",
                    shortened(name)
                )));
            }
            if !files.contains(&name) {
                files.push(name);
            }
        }
        Ok(files)
    }

    /// Returns the rules; `files` contains them if they are in a file.
    ///
    /// # Errors
    /// A missing file.
    pub(crate) fn rules<'a>(&'a self, files: &'a BTreeMap<String, String>) -> Result<&'a str, String> {
        match (&self.rules, &self.rules_text) {
            (Some(name), _) => file(files, name),
            (None, Some(text)) => Ok(text),
            (None, None) => Ok(""),
        }
    }
}

fn file<'a>(files: &'a BTreeMap<String, String>, name: &str) -> Result<&'a str, String> {
    let text = files.get(name).ok_or_else(|| {
        format!(
            "its file '{name}' does not exist; a manifest without a folder must contain its rules and kernels as \
            texts"
        )
    })?;
    if text.len() <= FILE_BYTES {
        Ok(text)
    } else {
        Err(format!(
            "its file '{name}' has {} bytes; {FILE_BYTES} are allowed",
            text.len()
        ))
    }
}

impl OpEntry {
    fn check(&self) -> Result<(), String> {
        identifier("the operator", &self.name)?;
        printable("formula", &self.formula)?;
        printable("source", &self.source)?;
        if self.formula.is_empty() {
            return Err("its formula is empty".into());
        }
        most("attributes", self.attributes.len(), MAX_PARTS)?;
        most("conditions", self.conditions.len(), MAX_PARTS)?;
        most("named values", self.steps.len(), MAX_PARTS)?;
        for (what, count) in [("operands", self.inputs.len()), ("results", self.outputs.len())] {
            most(what, count, MAX_TENSORS)?;
            if count == 0 {
                return Err(format!("it has no {what}"));
            }
        }
        for attribute in &self.attributes {
            identifier("an attribute", &attribute.name)?;
            most("samples of an attribute", attribute.samples.len(), MAX_VALUES)?;
        }
        let named = self.inputs.iter().map(|i| &i.name);
        named
            .chain(self.steps.keys())
            .try_for_each(|name| identifier("a value", name))?;
        if let Some(wgsl) = &self.wgsl {
            most("conditions of its kernel", wgsl.conditions.len(), MAX_PARTS)?;
            if !(1..=3).contains(&wgsl.groups.len()) {
                return Err("its kernel has no 'groups' along one, two or three axes".into());
            }
        }
        Ok(())
    }
}

impl WgslEntry {
    /// Returns the name of the text in messages.
    pub(crate) fn place(&self) -> String {
        match &self.file {
            Some(name) => shortened(name),
            None => "the text of its kernel".into(),
        }
    }

    /// Returns the text of the kernel; `files` contains it if it is in a file.
    pub(crate) fn text<'a>(&'a self, files: &'a BTreeMap<String, String>) -> Result<&'a str, String> {
        match (&self.file, &self.text) {
            (Some(name), None) => file(files, name),
            (None, Some(text)) => Ok(text),
            _ => Err("its kernel has either a 'file' or a 'text'".into()),
        }
    }
}

fn most(what: &str, count: usize, allowed: usize) -> Result<(), String> {
    if count <= allowed {
        Ok(())
    } else {
        Err(format!("it has {count} {what}; {allowed} are allowed"))
    }
}

fn identifier(what: &str, name: &str) -> Result<(), String> {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts || name.len() > MAX_NAME || !name.chars().all(valid) || name.contains("__") {
        return Err(format!(
            "{what} is called '{}'; names are up to {MAX_NAME} lower-case letters, digits and single '_'",
            shortened(name)
        ));
    }
    Ok(())
}

fn printable(what: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_TEXT || text.chars().any(char::is_control) {
        return Err(format!("its {what} is not one line of up to {MAX_TEXT} bytes"));
    }
    Ok(())
}
