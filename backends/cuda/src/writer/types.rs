//! Translation of types, and of the structures that a module declares.

use std::collections::HashSet;
use std::fmt::Write as _;

use naga::proc::IndexableLength;
use naga::{ArraySize, CooperativeRole, CooperativeSize, Handle, ScalarKind, Type, TypeInner};

use super::context::{Context, Part};
use super::error::{Result, WriteError};

/// The memory layout of an array.
pub(super) struct Elements {
    pub(super) base: Handle<Type>,
    /// Distance between elements in bytes.
    pub(super) stride: u32,
    /// Number of elements; `None` for a run-time sized array.
    pub(super) count: Option<u32>,
    /// `true` if elements are shorter than the stride.
    pub(super) padded: bool,
}

impl Context<'_> {
    pub(super) fn inner(&self, ty: Handle<Type>) -> &TypeInner {
        &self.module.types[ty].inner
    }

    pub(super) fn scalar(&self, scalar: naga::Scalar) -> Result<&'static str> {
        match (scalar.kind, scalar.width) {
            (ScalarKind::Uint, 4) => Ok("u32"),
            (ScalarKind::Sint, 4) => Ok("i32"),
            (ScalarKind::Float, 4) => Ok("f32"),
            (ScalarKind::Float, 2) => {
                self.needs(Part::Half);
                Ok("f16")
            }
            (ScalarKind::Bool, _) => Ok("bool"),
            (kind, width) => Err(WriteError::unsupported(format!("scalars of {width} bytes ({kind:?})"))),
        }
    }

    /// Returns the C++ name of a type of the module.
    pub(super) fn type_name(&self, ty: Handle<Type>) -> Result<String> {
        match self.inner(ty) {
            TypeInner::Struct { .. } => match self.structs.get(&ty) {
                Some(name) => Ok(name.clone()),
                None => Err(WriteError::invalid("a structure without a name")),
            },
            inner => self.inner_name(inner),
        }
    }

    /// Returns the C++ name of a type that may be anonymous in the module.
    pub(super) fn inner_name(&self, inner: &TypeInner) -> Result<String> {
        Ok(match *inner {
            TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => self.scalar(scalar)?.to_owned(),
            TypeInner::Vector { size, scalar } => format!("vec<{}, {}>", self.scalar(scalar)?, size as u8),
            TypeInner::Array { base, size, stride } => {
                let elements = self.elements_of(base, size, stride)?;
                let element = self.element_name(&elements)?;
                match elements.count {
                    Some(count) => format!("array<{element}, {count}>"),
                    None => return Err(WriteError::invalid("an array of unknown length as a value")),
                }
            }
            TypeInner::CooperativeMatrix {
                columns,
                rows,
                scalar,
                role,
            } => self.matrix_name(columns, rows, scalar, role)?.to_owned(),
            TypeInner::Pointer { base, space } => {
                let constant = if is_read_only(space) { "const " } else { "" };
                format!("{constant}{}*", self.type_name(base)?)
            }
            TypeInner::ValuePointer { size, scalar, space } => {
                let constant = if is_read_only(space) { "const " } else { "" };
                match size {
                    Some(size) => format!("{constant}vec<{}, {}>*", self.scalar(scalar)?, size as u8),
                    None => format!("{constant}{}*", self.scalar(scalar)?),
                }
            }
            // `type_name` translates structures, because this function does not receive their handle.
            TypeInner::Struct { .. } => return Err(WriteError::invalid("a structure without a name")),
            TypeInner::Matrix { .. } => return Err(WriteError::unsupported("matrices of WGSL (mat2x2 to mat4x4)")),
            TypeInner::Image { .. } | TypeInner::Sampler { .. } => return Err(WriteError::unsupported("textures")),
            TypeInner::AccelerationStructure { .. } | TypeInner::RayQuery { .. } => {
                return Err(WriteError::unsupported("ray queries"));
            }
            TypeInner::BindingArray { .. } => return Err(WriteError::unsupported("arrays of bindings")),
        })
    }

    /// Returns the C++ type of a cooperative matrix. Tensor cores multiply half-precision numbers and add in single
    /// precision, in 16x16 tiles.
    fn matrix_name(
        &self,
        columns: CooperativeSize,
        rows: CooperativeSize,
        scalar: naga::Scalar,
        role: CooperativeRole,
    ) -> Result<&'static str> {
        let name = match (columns, rows, role, scalar.kind, scalar.width) {
            (CooperativeSize::Sixteen, CooperativeSize::Sixteen, role, ScalarKind::Float, width) => match (role, width)
            {
                (CooperativeRole::A, 2) => Some("matrix_a"),
                (CooperativeRole::B, 2) => Some("matrix_b"),
                (CooperativeRole::C, 4) => Some("matrix_c"),
                _ => None,
            },
            _ => None,
        };
        self.needs(Part::Matrix);
        name.ok_or_else(|| {
            let (columns, rows, bits) = (columns as u8, rows as u8, scalar.width * 8);
            let kind = match scalar.kind {
                ScalarKind::Float => "f",
                ScalarKind::Sint => "i",
                _ => "u",
            };
            WriteError::unsupported(format!(
                "cooperative matrices coop_mat{columns}x{rows}<{kind}{bits},{role:?}>"
            ))
        })
    }

    pub(super) fn elements_of(&self, base: Handle<Type>, size: ArraySize, stride: u32) -> Result<Elements> {
        // Overrides have been replaced by their values.
        let count = match size.resolve(self.module.to_ctx()) {
            Ok(IndexableLength::Known(count)) => Some(count),
            Ok(IndexableLength::Dynamic) => None,
            Err(error) => return Err(WriteError::Override(error.to_string())),
        };
        let padded = self.size(base)? < stride;
        Ok(Elements {
            base,
            stride,
            count,
            padded,
        })
    }

    /// Returns the C++ type of an array's elements in memory.
    pub(super) fn element_name(&self, elements: &Elements) -> Result<String> {
        let base = self.type_name(elements.base)?;
        Ok(if elements.padded {
            format!("padded<{base}, {}>", elements.stride)
        } else {
            base
        })
    }

    /// Returns the size of a value in C++, in bytes. A vector of three elements has the size of three numbers.
    pub(super) fn size(&self, ty: Handle<Type>) -> Result<u32> {
        Ok(match *self.inner(ty) {
            TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => u32::from(scalar.width),
            TypeInner::Vector { size, scalar } => u32::from(scalar.width) * u32::from(size as u8),
            TypeInner::Array { base, size, stride } => {
                let elements = self.elements_of(base, size, stride)?;
                let each = if elements.padded { stride } else { self.size(base)? };
                let bytes = u64::from(elements.count.unwrap_or(0)) * u64::from(each);
                u32::try_from(bytes).map_err(|_| WriteError::unsupported("arrays of 4 GiB and more"))?
            }
            TypeInner::Struct { ref members, span } => match members.last() {
                Some(last) if self.is_unsized(last.ty) => last.offset,
                _ => span,
            },
            ref other => {
                self.inner_name(other)?;
                return Err(WriteError::unsupported(format!("memory of the type {other:?}")));
            }
        })
    }

    /// Returns `true` for a run-time sized array.
    pub(super) fn is_unsized(&self, ty: Handle<Type>) -> bool {
        let size = match *self.inner(ty) {
            TypeInner::Array { size, .. } => size,
            _ => return false,
        };
        size == ArraySize::Dynamic
    }

    /// Returns the declarations of the structures among `used`, each with a function that constructs it from its
    /// members. Generated names begin with a prefix that no name of the module has.
    pub(super) fn declare_structs(&self, used: &HashSet<Handle<Type>>) -> Result<String> {
        let mut text = String::new();
        for (handle, name) in self
            .module
            .types
            .iter()
            .filter_map(|(handle, _)| Some((handle, self.structs.get(&handle)?)))
        {
            let TypeInner::Struct { members, span } = self.inner(handle) else {
                continue;
            };
            if !used.contains(&handle) {
                continue;
            }
            let mut fields = String::new();
            let (mut parameters, mut assigned) = (Vec::new(), String::new());
            // Members are placed at their WGSL offsets, regardless of their C++ alignment.
            let (mut at, mut is_sized) = (0, true);
            let gap = |fields: &mut String, at: u32, to: u32| {
                if to > at {
                    _ = writeln!(fields, "    char WGSL_gap_{at}[{}];", to - at);
                }
            };
            for (number, member) in members.iter().enumerate() {
                gap(&mut fields, at, member.offset);
                if self.is_unsized(member.ty) {
                    is_sized = false;
                    break;
                }
                let (ty, field) = (self.type_name(member.ty)?, self.member(handle, number)?);
                _ = writeln!(fields, "    {ty} {field};");
                parameters.push(format!("{ty} {field}"));
                _ = writeln!(assigned, "    WGSL_made.{field} = {field};");
                at = member.offset + self.size(member.ty)?;
            }
            if is_sized {
                gap(&mut fields, at, *span);
            }
            _ = writeln!(text, "struct {name} {{\n{fields}}};");
            if is_sized {
                _ = writeln!(
                    text,
                    "static __device__ __forceinline__ constexpr {name} WGSL_make_{name}({}) {{\n    {name} WGSL_made{{}};\n\
                     {assigned}    return WGSL_made;\n}}",
                    parameters.join(", ")
                );
            }
        }
        Ok(text)
    }

    /// Returns the name of a structure's member.
    pub(super) fn member(&self, ty: Handle<Type>, number: usize) -> Result<String> {
        let known = self.members.get(&ty).and_then(|members| members.get(number));
        known
            .cloned()
            .ok_or_else(|| WriteError::invalid("a member that the structure does not have"))
    }
}

/// Returns `true` if pointers to a space are read-only.
pub(super) fn is_read_only(space: naga::AddressSpace) -> bool {
    match space {
        naga::AddressSpace::Uniform => true,
        naga::AddressSpace::Storage { access } => !access.contains(naga::StorageAccess::STORE),
        _ => false,
    }
}
