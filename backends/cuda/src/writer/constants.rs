//! Writing of constants and constant expressions.

use std::collections::HashSet;
use std::fmt::Write as _;

use naga::{Constant, Expression, Handle, Literal, TypeInner};

use super::context::{Context, Part};
use super::error::{Result, WriteError};

impl Context<'_> {
    /// Formats a literal as C++.
    pub(super) fn literal(&self, literal: Literal) -> Result<String> {
        Ok(match literal {
            Literal::F32(value) if value.is_finite() => {
                if value.is_sign_negative() {
                    format!("({value:?}f)")
                } else {
                    format!("{value:?}f")
                }
            }
            Literal::F32(value) => format!("__int_as_float(0x{:08x})", value.to_bits()),
            Literal::F16(value) => {
                self.needs(Part::Half);
                format!("f16{{0x{:04x}}}", value.to_bits())
            }
            Literal::U32(value) => format!("{value}u"),
            // C++ has no negative literals, only a minus sign before a positive literal, which would overflow here.
            Literal::I32(i32::MIN) => "(-2147483647 - 1)".to_owned(),
            Literal::I32(value) if value < 0 => format!("({value})"),
            Literal::I32(value) => format!("{value}"),
            Literal::Bool(value) => format!("{value}"),
            other => return Err(WriteError::unsupported(format!("the number {other:?}"))),
        })
    }

    /// Returns the C++ code of a constant expression of the module, such as the initial value of a constant or
    /// variable.
    pub(super) fn constant_value(&self, handle: Handle<Expression>) -> Result<String> {
        let expressions = &self.module.global_expressions;
        let Ok(expression) = expressions.try_get(handle) else {
            return Err(WriteError::invalid("a constant that does not exist"));
        };
        match *expression {
            Expression::Literal(literal) => self.literal(literal),
            Expression::Constant(constant) => self.constant_value(self.module.constants[constant].init),
            Expression::ZeroValue(ty) => Ok(format!("{}{{}}", self.type_name(ty)?)),
            Expression::Splat { size, value } => {
                let ty = self.type_of_constant(handle)?;
                let parts = vec![self.constant_value(value)?; size as usize];
                Ok(format!("{ty}{{{{{}}}}}", parts.join(", ")))
            }
            Expression::Compose { ty, ref components } => self.composed(ty, components),
            ref other => Err(WriteError::unsupported(format!("the constant expression {other:?}"))),
        }
    }

    fn type_of_constant(&self, handle: Handle<Expression>) -> Result<String> {
        match self.info[handle].handle() {
            Some(ty) => self.type_name(ty),
            None => self.inner_name(self.info[handle].inner_with(&self.module.types)),
        }
    }

    fn composed(&self, ty: Handle<naga::Type>, components: &[Handle<Expression>]) -> Result<String> {
        let name = self.type_name(ty)?;
        let values = components.iter().map(|part| self.constant_value(*part));
        match *self.inner(ty) {
            TypeInner::Vector { .. } => {
                // Vectors are written element by element, because the initializer of a constant cannot call
                // functions.
                let parts: Result<Vec<Vec<String>>> =
                    components.iter().map(|part| self.elements_of_constant(*part)).collect();
                Ok(format!("{name}{{{{{}}}}}", parts?.concat().join(", ")))
            }
            TypeInner::Array { base, size, stride } => {
                let elements = self.elements_of(base, size, stride)?;
                let values: Result<Vec<String>> = values.collect();
                Ok(array_of(&name, values?, elements.padded))
            }
            TypeInner::Struct { .. } => {
                let values: Result<Vec<String>> = values.collect();
                Ok(format!("WGSL_make_{name}({})", values?.join(", ")))
            }
            ref other => Err(WriteError::unsupported(format!("constants of the type {other:?}"))),
        }
    }

    /// Returns the C++ code of a constant scalar, or of each element of a constant vector.
    fn elements_of_constant(&self, handle: Handle<Expression>) -> Result<Vec<String>> {
        let TypeInner::Vector { size, scalar } = *self.info[handle].inner_with(&self.module.types) else {
            return Ok(vec![self.constant_value(handle)?]);
        };
        match self.module.global_expressions[handle] {
            Expression::Constant(constant) => self.elements_of_constant(self.module.constants[constant].init),
            Expression::ZeroValue(_) => Ok(vec![format!("{}{{}}", self.scalar(scalar)?); size as usize]),
            Expression::Splat { value, .. } => Ok(vec![self.constant_value(value)?; size as usize]),
            Expression::Compose { ref components, .. } => {
                let parts: Result<Vec<Vec<String>>> =
                    components.iter().map(|part| self.elements_of_constant(*part)).collect();
                Ok(parts?.concat())
            }
            ref other => Err(WriteError::unsupported(format!("the constant expression {other:?}"))),
        }
    }

    /// Returns the declarations of the used constants.
    pub(super) fn declare_constants(&self, used: &HashSet<Handle<Constant>>) -> Result<String> {
        let mut text = String::new();
        for (handle, constant) in self.module.constants.iter().filter(|(handle, _)| used.contains(handle)) {
            let (ty, name) = (self.type_name(constant.ty)?, self.constant_name(handle)?);
            let value = self.constant_value(constant.init)?;
            let of_compiler = match self.inner(constant.ty) {
                TypeInner::Scalar(scalar) => scalar.width == 4 || scalar.kind == naga::ScalarKind::Bool,
                _ => false,
            };
            // A constant that is indexed must be in memory.
            let kind = if of_compiler {
                "static constexpr"
            } else {
                "static __device__ const"
            };
            _ = writeln!(text, "{kind} {ty} {name} = {value};");
        }
        Ok(text)
    }

    pub(super) fn constant_name(&self, handle: Handle<Constant>) -> Result<&str> {
        let name = self.constants.get(&handle).map(String::as_str);
        name.ok_or_else(|| WriteError::invalid("a constant that does not exist"))
    }
}

/// Returns the C++ code of an array with these values.
pub(super) fn array_of(ty: &str, values: Vec<String>, padded: bool) -> String {
    let values: Vec<String> = if padded {
        values.iter().map(|value| format!("{{{value}}}")).collect()
    } else {
        values
    };
    format!("{ty}{{{{{}}}}}", values.join(", "))
}
