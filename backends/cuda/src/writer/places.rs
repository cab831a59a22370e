//! Translation of pointers: the memory locations of expressions, with indices in bounds.

use naga::{AddressSpace, Expression, GlobalVariable, Handle, TypeInner};

use super::body::Body;
use super::context::is_buffer;
use super::error::{Result, WriteError};
use super::options::Bounds;

/// An index into an array or vector.
#[derive(Clone, Copy)]
pub(super) enum Index {
    Known(u32),
    Value(Handle<Expression>),
}

/// The C++ code for accessing a run-time sized array.
struct UnsizedArray {
    pointer: String,
    /// Expression for the number of elements, if the kernel needs it.
    count: Option<String>,
}

impl Body<'_> {
    /// Returns the memory location that a pointer points to, as an assignable expression.
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
        name.ok_or_else(|| WriteError::invalid("a local variable that does not exist"))
    }

    fn global_place(&self, global: Handle<GlobalVariable>) -> Result<String> {
        let name = self.cx.global_name(global)?;
        Ok(if is_buffer(self.cx.module.global_variables[global].space) {
            format!("(*{name})")
        } else {
            name.to_owned()
        })
    }

    fn points_to_unsized(&self, pointer: Handle<Expression>) -> bool {
        matches!(*self.inner(pointer), TypeInner::Pointer { base, .. } if self.cx.is_unsized(base))
    }

    /// Returns the memory location of a component or element, as an assignable expression.
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
                    Err(WriteError::invalid("a component of a value without components"))
                }
            },
            TypeInner::ValuePointer { size: Some(size), .. } => {
                Ok(format!("{}.at[{}]", self.place(base)?, self.index(index, size as u32)?))
            }
            _ => Err(WriteError::invalid("a component of a value that is not a pointer")),
        }
    }

    /// Returns the C++ code of an index into `count` elements. It is clamped if bounds are checked.
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
            (Bounds::Restrict, None) => Err(WriteError::unsupported("bounds checks for an array of unknown length")),
        }
    }

    /// Returns the value of a constant index; `None` for other expressions.
    fn known(&self, handle: Handle<Expression>) -> Option<u32> {
        u32::try_from(self.number(handle)?).ok()
    }

    /// Returns the pointer and the length of a run-time sized array. The array is a whole buffer or its last member.
    fn unsized_at(&self, pointer: Handle<Expression>) -> Result<UnsizedArray> {
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
            return Err(WriteError::invalid("an element of a value that is not an array"));
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
        Ok(UnsizedArray { pointer, count })
    }

    /// Returns the number of elements of a run-time sized array.
    pub(super) fn array_length(&self, pointer: Handle<Expression>) -> Result<String> {
        let count = self.unsized_at(pointer)?.count;
        count.ok_or_else(|| WriteError::invalid("the length of a buffer that the kernel does not ask for"))
    }

    /// Returns the address space of a pointer.
    pub(super) fn space(&self, pointer: Handle<Expression>) -> Result<AddressSpace> {
        let space = self.inner(pointer).pointer_space();
        space.ok_or_else(|| WriteError::invalid("no pointer"))
    }
}
