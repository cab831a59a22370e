//! Inputs and results of a model, and the sizes of their open dimensions.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::element::ElementType;

/// A dimension of an input or result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Dim {
    /// A fixed size.
    Size(usize),
    /// A name whose size [`Dims`] contains. A dimension without a name in the file is named after its position: `x.2` is the
    /// third dimension of `x`.
    Name(String),
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Size(size) => write!(f, "{size}"),
            Dim::Name(name) => f.write_str(name),
        }
    }
}

/// An input or result as the file declares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Name of the input or result.
    pub name: String,
    /// Element type of the tensor.
    pub element: ElementType,
    /// Dimensions; `None` if the file does not even specify the rank.
    pub dims: Option<Vec<Dim>>,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.element)?;
        match &self.dims {
            None => f.write_str(" of any shape"),
            Some(dims) => {
                let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
                write!(f, "[{}]", dims.join(", "))
            }
        }
    }
}

/// Sizes of the open dimensions of a model, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dims(BTreeMap<String, usize>);

impl Dims {
    /// Creates an empty map, which suffices for a model without open dimensions.
    pub fn new() -> Self {
        Dims::default()
    }

    /// Adds a size for a name: the name in the file, or `INPUT.AXIS`, which has priority.
    #[must_use]
    pub fn bind(mut self, name: impl Into<String>, size: usize) -> Self {
        self.0.insert(name.into(), size);
        self
    }

    /// Returns the size for a name.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }

    /// Returns all names with their sizes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(name, size)| (name.as_str(), *size))
    }

    pub(crate) fn insert(&mut self, name: &str, size: usize) -> Option<usize> {
        self.0.insert(name.to_owned(), size)
    }

    /// Returns the size of a dimension: the size for `place` (`INPUT.AXIS`) if it is present, otherwise the size for the
    /// dimension's name.
    pub(crate) fn resolve(&self, dim: &Dim, place: &str) -> Option<usize> {
        match dim {
            Dim::Size(size) => Some(*size),
            Dim::Name(name) => self.get(place).or_else(|| self.get(name)),
        }
    }
}
