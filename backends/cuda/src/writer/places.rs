//! Pointers: where in memory an expression points to, with its indices in bounds.

use naga::{AddressSpace, Expression, GlobalVariable, Handle, TypeInner};

use super::body::Body;
use super::context::is_buffer;
use super::error::{Result, WriteError};
use super::options::Bounds;

/// An index into something.
#[derive(Clone, Copy)]
pub(super) enum Index {
    Known(u32),
    Value(Handle<Expression>),
}

/// An array of as many elements as there is memory: where it begins and how many there are.
struct Unsized {
    pointer: String,
    /// The number of elements, where the kernel knows it.
    count: Option<String>,
}

impl Body<'_> {
    /// Where a pointer points to, as something that can be assigned to.
    pub(super) fn place(&self, pointer: Handle<Expression>) -> Result<String> {
        match *self.expression(pointer)? {
            Expression::GlobalVariable(global) => self.global_place(global),
            Expression::LocalVariable(local) => self.local_name(local),
            Expression::FunctionArgument(_) | Expression::CallResult(_) => Ok(format!("(*{})", self.value(pointer)?)),
            Expression::AccessIndex { base, index } => self.place_in(base, Index::Known(index)),
            Expression::Access { base, index } => self.place_in(base, Index::Value(index)),
            ref other => Err(WriteError::unsupported(format!("pointers that come of {other:?}"))),
        }
    }

    pub(super) fn address(&self, pointer: Handle<Expression>) -> Result<String> {
        match *self.expression(pointer)? {
            Expression::FunctionArgument(_) => self.value(pointer),
            _ if self.points_to_unsized(pointer) => Err(WriteError::unsupported(
                "pointers to arrays of unknown length as arguments of functions",
            )),
            _ => Ok(format!("&{}", self.place(pointer)?)),
        }
    }

    pub(super) fn local_name(&self, local: Handle<naga::LocalVariable>) -> Result<String> {
        let name = self.locals.get(&local).cloned();
        name.ok_or_else(|| WriteError::invalid("a local variable that is not there"))
    }

    fn global_place(&self, global: Handle<GlobalVariable>) -> Result<String> {
        let name = self.cx.global_name(global)?;
        Ok(match is_buffer(self.cx.module.global_variables[global].space) {
            true => format!("(*{name})"),
            false => name.to_owned(),
        })
    }

    fn points_to_unsized(&self, pointer: Handle<Expression>) -> bool {
        matches!(*self.inner(pointer), TypeInner::Pointer { base, .. } if self.cx.is_unsized(base))
    }

    /// A part of what a pointer points to.
    fn place_in(&self, base: Handle<Expression>, index: Index) -> Result<String> {
        match *self.inner(base) {
            TypeInner::Pointer { base: ty, .. } => match *self.cx.inner(ty) {
                TypeInner::Array {
                    base: element,
                    size,
                    stride,
                } => {
                    let elements = self.cx.elements_of(element, size, stride)?;
                    let value = if elements.padded { ".value" } else { "" };
                    match elements.count {
                        Some(count) => Ok(format!(
                            "{}.at[{}]{value}",
                            self.place(base)?,
                            self.index(index, count)?
                        )),
                        None => {
                            let start = self.unsized_at(base)?;
                            let index = self.index_below(index, start.count)?;
                            Ok(format!("{}[{index}]{value}", start.pointer))
                        }
                    }
                }
                TypeInner::Vector { size, .. } => {
                    Ok(format!("{}.at[{}]", self.place(base)?, self.index(index, size as u32)?))
                }
                TypeInner::Struct { .. } => match index {
                    Index::Known(number) => Ok(format!(
                        "{}.{}",
                        self.place(base)?,
                        self.cx.member(ty, number as usize)?
                    )),
                    Index::Value(_) => Err(WriteError::invalid("an index into a structure")),
                },
                ref other => {
                    self.cx.inner_name(other)?;
                    Err(WriteError::invalid("a part of what has none"))
                }
            },
            TypeInner::ValuePointer { size: Some(size), .. } => {
                Ok(format!("{}.at[{}]", self.place(base)?, self.index(index, size as u32)?))
            }
            _ => Err(WriteError::invalid("a part of what is no pointer")),
        }
    }

    /// An index into so many elements.
    pub(super) fn index(&self, index: Index, count: u32) -> Result<String> {
        match index {
            Index::Known(number) => Ok(format!("{number}")),
            Index::Value(handle) => match self.known(handle) {
                Some(number) if number < count => self.value(handle),
                _ => self.index_below(index, Some(format!("{count}u"))),
            },
        }
    }

    fn index_below(&self, index: Index, count: Option<String>) -> Result<String> {
        let value = match index {
            Index::Known(number) => format!("{number}u"),
            Index::Value(handle) => self.value(handle)?,
        };
        match (self.cx.bounds, count) {
            (Bounds::Unchecked, _) => Ok(value),
            (Bounds::Restrict, Some(count)) => Ok(format!("wgsl::within({value}, {count})")),
            (Bounds::Restrict, None) => Err(WriteError::unsupported("bounds of an array whose length is not known")),
        }
    }

    /// The value of an index that is a number.
    fn known(&self, handle: Handle<Expression>) -> Option<u32> {
        u32::try_from(self.number(handle)?).ok()
    }

    /// The elements of an array of unknown length: a whole buffer, or the last member of one.
    fn unsized_at(&self, pointer: Handle<Expression>) -> Result<Unsized> {
        let (global, member) = match *self.expression(pointer)? {
            Expression::GlobalVariable(global) => (global, None),
            Expression::AccessIndex { base, index } => match *self.expression(base)? {
                Expression::GlobalVariable(global) => (global, Some(index as usize)),
                _ => return Err(WriteError::unsupported("arrays of unknown length within arrays")),
            },
            _ => {
                return Err(WriteError::unsupported(
                    "arrays of unknown length through pointers of functions",
                ));
            }
        };
        let variable = &self.cx.module.global_variables[global];
        let name = self.cx.global_name(global)?;
        let (array, offset) = match (self.cx.inner(variable.ty), member) {
            (TypeInner::Struct { members, .. }, Some(number)) => match members.get(number) {
                Some(member) => (member.ty, member.offset),
                None => return Err(WriteError::invalid("a member that the structure does not have")),
            },
            _ => (variable.ty, 0),
        };
        let TypeInner::Array { base, size, stride } = *self.cx.inner(array) else {
            return Err(WriteError::invalid("elements of what is no array"));
        };
        let pointer = match member {
            None => name.to_owned(),
            Some(_) => {
                let element = self.cx.element_name(&self.cx.elements_of(base, size, stride)?)?;
                let constant = if super::types::is_read_only(variable.space) {
                    "const "
                } else {
                    ""
                };
                format!("wgsl::tail<{constant}{element}>({name}, {offset}u)")
            }
        };
        let bytes = self.cx.lengths.get(&global);
        let count = bytes.map(|bytes| format!("wgsl::elements({bytes}, {offset}u, {stride}u)"));
        Ok(Unsized { pointer, count })
    }

    /// How many elements an array of unknown length has.
    pub(super) fn array_length(&self, pointer: Handle<Expression>) -> Result<String> {
        let count = self.unsized_at(pointer)?.count;
        count.ok_or_else(|| WriteError::invalid("the length of a buffer that the kernel does not ask for"))
    }

    /// The address space that a pointer points to.
    pub(super) fn space(&self, pointer: Handle<Expression>) -> Result<AddressSpace> {
        let space = self.inner(pointer).pointer_space();
        space.ok_or_else(|| WriteError::invalid("no pointer"))
    }
}
