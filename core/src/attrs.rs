//! Named, typed attributes of an operator call (stride, axis, epsilon …).
//!
//! Attributes are plain data: they are compared and hashed for common-subexpression elimination, printed, and
//! serialised into plans. They are addressed by name, never by position.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::program::Program;

/// One attribute value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Attr {
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A floating-point number.
    Float(f64),
    /// A Boolean value.
    Bool(bool),
    /// A string.
    Str(String),
    /// An element type.
    DType(DType),
    /// Several calls fused into one: the computation of a fused operator.
    Program(Arc<Program>),
}

/// Kind of an attribute's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttrKind {
    /// [`Attr::Int`].
    Int,
    /// [`Attr::Ints`].
    Ints,
    /// [`Attr::Float`].
    Float,
    /// [`Attr::Bool`].
    Bool,
    /// [`Attr::Str`].
    Str,
    /// [`Attr::DType`].
    DType,
    /// [`Attr::Program`].
    Program,
}

impl Attr {
    /// Returns the kind of the attribute.
    pub fn kind(&self) -> AttrKind {
        match self {
            Attr::Int(_) => AttrKind::Int,
            Attr::Ints(_) => AttrKind::Ints,
            Attr::Float(_) => AttrKind::Float,
            Attr::Bool(_) => AttrKind::Bool,
            Attr::Str(_) => AttrKind::Str,
            Attr::DType(_) => AttrKind::DType,
            Attr::Program(_) => AttrKind::Program,
        }
    }
}

impl PartialEq for Attr {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Attr::Int(a), Attr::Int(b)) => a == b,
            (Attr::Ints(a), Attr::Ints(b)) => a == b,
            // By bits, so that equality agrees with the hash and NaN equals itself.
            (Attr::Float(a), Attr::Float(b)) => a.to_bits() == b.to_bits(),
            (Attr::Bool(a), Attr::Bool(b)) => a == b,
            (Attr::Str(a), Attr::Str(b)) => a == b,
            (Attr::DType(a), Attr::DType(b)) => a == b,
            (Attr::Program(a), Attr::Program(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Attr {}

impl Hash for Attr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Attr::Int(v) => v.hash(state),
            Attr::Ints(v) => v.hash(state),
            Attr::Float(v) => v.to_bits().hash(state),
            Attr::Bool(v) => v.hash(state),
            Attr::Str(v) => v.hash(state),
            Attr::DType(v) => v.hash(state),
            Attr::Program(v) => v.hash(state),
        }
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Int(v) => write!(f, "{v}"),
            Attr::Ints(v) => write!(f, "{v:?}"),
            Attr::Float(v) => write!(f, "{v}"),
            Attr::Bool(v) => write!(f, "{v}"),
            Attr::Str(v) => write!(f, "{v:?}"),
            Attr::DType(v) => write!(f, "{v}"),
            Attr::Program(v) => write!(f, "{v}"),
        }
    }
}

/// The attributes of one call, ordered as the operator declares them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attrs(Arc<Vec<(Cow<'static, str>, Attr)>>);

impl Attrs {
    /// Creates an empty list of attributes.
    pub fn new() -> Self {
        Attrs::default()
    }

    /// Adds or replaces one attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Attr>) -> Self {
        let value = value.into();
        let list = Arc::make_mut(&mut self.0);
        match list.iter_mut().find(|(n, _)| n == name) {
            Some(slot) => slot.1 = value,
            None => list.push((Cow::Borrowed(name), value)),
        }
        self
    }

    /// Returns the attribute with this name.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Iterates over names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attr)> {
        self.0.iter().map(|(n, v)| (n.as_ref(), v))
    }

    /// Returns `true` if there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an integer attribute.
    ///
    /// # Errors
    /// A message if the attribute is absent or of another kind. This holds for every typed getter here.
    pub fn int(&self, name: &str) -> Result<i64, String> {
        match self.get(name) {
            Some(Attr::Int(v)) => Ok(*v),
            other => Err(mismatch(name, "an integer", other)),
        }
    }

    /// Returns an attribute that is a list of integers.
    ///
    /// # Errors
    /// See [`Attrs::int`].
    pub fn ints(&self, name: &str) -> Result<&[i64], String> {
        match self.get(name) {
            Some(Attr::Ints(v)) => Ok(v),
            other => Err(mismatch(name, "a list of integers", other)),
        }
    }

    /// Returns an attribute that is a list of `N` non-negative integers.
    ///
    /// # Errors
    /// See [`Attrs::int`]; also when the length differs or an entry is negative.
    pub fn sizes<const N: usize>(&self, name: &str) -> Result<[usize; N], String> {
        let list = self.ints(name)?;
        if list.len() != N {
            return Err(format!("attribute '{name}' needs {N} entries, got {list:?}"));
        }
        let mut out = [0; N];
        for (o, &v) in out.iter_mut().zip(list) {
            *o = usize::try_from(v).map_err(|_| format!("attribute '{name}' has the negative entry {v}"))?;
        }
        Ok(out)
    }

    /// Returns an attribute that is a list of non-negative integers, such as a shape.
    ///
    /// # Errors
    /// See [`Attrs::int`]; also when an entry is negative.
    pub fn dims(&self, name: &str) -> Result<Vec<usize>, String> {
        let entry = |&v: &i64| usize::try_from(v).map_err(|_| format!("attribute '{name}' has the negative entry {v}"));
        self.ints(name)?.iter().map(entry).collect()
    }

    /// Returns an integer attribute that is not negative.
    ///
    /// # Errors
    /// See [`Attrs::int`]; also when it is negative.
    pub fn size(&self, name: &str) -> Result<usize, String> {
        let v = self.int(name)?;
        usize::try_from(v).map_err(|_| format!("attribute '{name}' is negative: {v}"))
    }

    /// Returns a floating-point attribute.
    ///
    /// # Errors
    /// See [`Attrs::int`].
    pub fn float(&self, name: &str) -> Result<f64, String> {
        match self.get(name) {
            Some(Attr::Float(v)) => Ok(*v),
            other => Err(mismatch(name, "a real number", other)),
        }
    }

    /// Returns a Boolean attribute.
    ///
    /// # Errors
    /// See [`Attrs::int`].
    pub fn bool(&self, name: &str) -> Result<bool, String> {
        match self.get(name) {
            Some(Attr::Bool(v)) => Ok(*v),
            other => Err(mismatch(name, "a flag", other)),
        }
    }

    /// Returns an attribute that is an element type.
    ///
    /// # Errors
    /// See [`Attrs::int`].
    pub fn dtype(&self, name: &str) -> Result<DType, String> {
        match self.get(name) {
            Some(Attr::DType(v)) => Ok(*v),
            other => Err(mismatch(name, "an element type", other)),
        }
    }

    /// Returns an attribute that is a program.
    ///
    /// # Errors
    /// See [`Attrs::int`].
    pub fn program(&self, name: &str) -> Result<&Arc<Program>, String> {
        match self.get(name) {
            Some(Attr::Program(v)) => Ok(v),
            other => Err(mismatch(name, "a program", other)),
        }
    }
}

fn mismatch(name: &str, wanted: &str, found: Option<&Attr>) -> String {
    match found {
        None => format!("attribute '{name}' is missing; it should be {wanted}"),
        Some(v) => format!("attribute '{name}' should be {wanted}, not {v}"),
    }
}

impl fmt::Display for Attrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

macro_rules! from {
    ($($t:ty => |$v:ident| $e:expr),* $(,)?) => {
        $(impl From<$t> for Attr { fn from($v: $t) -> Self { $e } })*
    };
}

from! {
    i64 => |v| Attr::Int(v),
    i32 => |v| Attr::Int(v.into()),
    u32 => |v| Attr::Int(v.into()),
    usize => |v| Attr::Int(v as i64),
    f64 => |v| Attr::Float(v),
    f32 => |v| Attr::Float(v.into()),
    bool => |v| Attr::Bool(v),
    DType => |v| Attr::DType(v),
    Program => |v| Attr::Program(Arc::new(v)),
    Arc<Program> => |v| Attr::Program(v),
    &str => |v| Attr::Str(v.to_owned()),
    Vec<i64> => |v| Attr::Ints(v),
    &[i32] => |v| Attr::Ints(v.iter().map(|&x| x.into()).collect()),
    &[u32] => |v| Attr::Ints(v.iter().map(|&x| x.into()).collect()),
    &[usize] => |v| Attr::Ints(v.iter().map(|&x| x as i64).collect()),
    [u32; 2] => |v| Attr::Ints(v.iter().map(|&x| x.into()).collect()),
    [usize; 2] => |v| Attr::Ints(v.iter().map(|&x| x as i64).collect()),
}
