//! Translation of expressions. A value gets a C++ name if it is used more than once, has a name in WGSL, or reads
//! memory. All other values are written as expressions where they are used.

use naga::{Expression, Handle, SwizzleComponent, TypeInner};

use super::body::Body;
use super::constants::array_of;
use super::error::{Result, WriteError};
use super::places::Index;

impl Body<'_> {
    /// Writes the definition of a value at this position, if the position matters.
    pub(super) fn emit(&mut self, handle: Handle<Expression>) -> Result<()> {
        if self.gets_name(handle) {
            let value = self.computed(handle)?;
            self.define(handle, &value)?;
        }
        Ok(())
    }

    /// Returns `true` if a value gets a name.
    pub(super) fn gets_name(&self, handle: Handle<Expression>) -> bool {
        if self.inner(handle).pointer_space().is_some() {
            return false;
        }
        let Ok(expression) = self.expression(handle) else {
            return false;
        };
        let uses = self.info[handle].ref_count;
        let is_named = self.function.named_expressions.contains_key(&handle);
        match expression {
            Expression::Load { .. }
            | Expression::CooperativeLoad { .. }
            | Expression::CooperativeMultiplyAdd { .. } => uses > 0 || is_named,
            Expression::CallResult(_)
            | Expression::AtomicResult { .. }
            | Expression::WorkGroupUniformLoadResult { .. }
            | Expression::SubgroupBallotResult
            | Expression::SubgroupOperationResult { .. } => true,
            _ => uses > 1 || is_named,
        }
    }

    /// Returns the C++ code of a value: its name, or its expression.
    pub(super) fn value(&self, handle: Handle<Expression>) -> Result<String> {
        match self.values.get(&handle) {
            Some(name) => Ok(name.clone()),
            None => self.computed(handle),
        }
    }

    pub(super) fn values_of(&self, handles: &[Handle<Expression>]) -> Result<Vec<String>> {
        handles.iter().map(|handle| self.value(*handle)).collect()
    }

    /// Returns the C++ expression that computes a value.
    fn computed(&self, handle: Handle<Expression>) -> Result<String> {
        Ok(match *self.expression(handle)? {
            Expression::Literal(literal) => self.cx.literal(literal)?,
            Expression::Constant(constant) => self.cx.constant_name(constant)?.to_owned(),
            Expression::ZeroValue(ty) => format!("{}{{}}", self.cx.type_name(ty)?),
            Expression::Compose { ty, ref components } => self.compose(ty, components)?,
            Expression::Splat { size, value } => format!("wgsl::splat<{}>({})", size as u8, self.value(value)?),
            Expression::Swizzle { size, vector, pattern } => {
                let components = pattern.iter().take(size as usize).map(|component| match component {
                    SwizzleComponent::X => "0",
                    SwizzleComponent::Y => "1",
                    SwizzleComponent::Z => "2",
                    SwizzleComponent::W => "3",
                });
                let components: Vec<&str> = components.collect();
                format!("wgsl::swizzle<{}>({})", components.join(", "), self.value(vector)?)
            }
            Expression::Access { base, index } => self.part(base, Index::Value(index))?,
            Expression::AccessIndex { base, index } => self.part(base, Index::Known(index))?,
            Expression::FunctionArgument(number) => match self.arguments.get(number as usize) {
                Some(name) => name.clone(),
                None => return Err(WriteError::invalid("an argument that the function does not have")),
            },
            Expression::GlobalVariable(_) | Expression::LocalVariable(_) => self.address(handle)?,
            Expression::Load { pointer } => self.load(pointer)?,
            Expression::Unary { op, expr } => self.unary(op, expr)?,
            Expression::Binary { op, left, right } => self.binary(op, left, right)?,
            Expression::Select {
                condition,
                accept,
                reject,
            } => self.select(condition, accept, reject)?,
            Expression::Relational { fun, argument } => self.relational(fun, argument)?,
            Expression::Math {
                fun,
                arg,
                arg1,
                arg2,
                arg3,
            } => {
                let rest = [arg1, arg2, arg3];
                let arguments: Vec<_> = [arg].into_iter().chain(rest.into_iter().flatten()).collect();
                self.math(fun, &arguments)?
            }
            Expression::As { expr, kind, convert } => self.convert(expr, kind, convert)?,
            Expression::ArrayLength(pointer) => self.array_length(pointer)?,
            Expression::CooperativeLoad { role, ref data, .. } => {
                // `type_of` checks that such matrices are supported.
                self.type_of(handle)?;
                self.load_matrix(role, data)?
            }
            Expression::CooperativeMultiplyAdd { a, b, c } => {
                for operand in [a, b, c] {
                    self.type_of(operand)?;
                }
                format!(
                    "wgsl::multiply_add({}, {}, {})",
                    self.value(a)?,
                    self.value(b)?,
                    self.value(c)?
                )
            }
            Expression::CallResult(_)
            | Expression::AtomicResult { .. }
            | Expression::WorkGroupUniformLoadResult { .. }
            | Expression::SubgroupBallotResult
            | Expression::SubgroupOperationResult { .. } => {
                return Err(WriteError::invalid("a result that is used before it is computed"));
            }
            Expression::Override(_) => return Err(WriteError::invalid("an override that has no value")),
            ref other => return Err(WriteError::unsupported(format!("the expression {other:?}"))),
        })
    }

    /// Returns the C++ code of the access to a component or element of a value.
    fn part(&self, base: Handle<Expression>, index: Index) -> Result<String> {
        if self.inner(base).pointer_space().is_some() {
            return Err(WriteError::unsupported("pointers as values"));
        }
        let value = self.value(base)?;
        match *self.inner(base) {
            TypeInner::Vector { size, .. } => Ok(format!("{value}.at[{}]", self.index(index, size as u32)?)),
            TypeInner::Array { base, size, stride } => {
                let elements = self.cx.elements_of(base, size, stride)?;
                let end = if elements.padded { ".value" } else { "" };
                let count = elements.count.unwrap_or(1);
                Ok(format!("{value}.at[{}]{end}", self.index(index, count)?))
            }
            TypeInner::Struct { .. } => match (index, self.info[base].ty.handle()) {
                (Index::Known(number), Some(ty)) => Ok(format!("{value}.{}", self.cx.member(ty, number as usize)?)),
                _ => Err(WriteError::invalid("an index into a structure")),
            },
            ref other => Err(WriteError::unsupported(format!("parts of the type {other:?}"))),
        }
    }

    fn compose(&self, ty: Handle<naga::Type>, components: &[Handle<Expression>]) -> Result<String> {
        let name = self.cx.type_name(ty)?;
        let values = self.values_of(components)?;
        Ok(match *self.cx.inner(ty) {
            TypeInner::Vector { size, .. } if values.len() == size as usize => {
                format!("{name}{{{{{}}}}}", values.join(", "))
            }
            // A vector that is composed of one vector equals that vector.
            TypeInner::Vector { .. } if values.len() == 1 => values.join(""),
            TypeInner::Vector { .. } => format!("wgsl::join({})", values.join(", ")),
            TypeInner::Array { base, size, stride } => {
                array_of(&name, values, self.cx.elements_of(base, size, stride)?.padded)
            }
            TypeInner::Struct { .. } => format!("WGSL_make_{name}({})", values.join(", ")),
            ref other => return Err(WriteError::unsupported(format!("values of the type {other:?}"))),
        })
    }

    fn load(&self, pointer: Handle<Expression>) -> Result<String> {
        if self.inner(pointer).is_atomic_pointer(&self.cx.module.types) {
            return self.atomic_load(pointer);
        }
        self.place(pointer)
    }
}
