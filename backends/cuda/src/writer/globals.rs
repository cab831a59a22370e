//! Translation of the module's variables. Buffers become parameters, workgroup memory becomes shared memory, and
//! private variables become variables of the kernel. Functions receive the variables that they use as parameters.

use std::fmt::Write as _;

use naga::valid::FunctionInfo;
use naga::{AddressSpace, GlobalVariable, Handle, TypeInner};

use super::context::{Context, is_buffer};
use super::error::{Result, WriteError};
use super::options::Binding;
use super::types::is_read_only;

/// Maximum size of the shared memory of a kernel in bytes.
const MAX_SHARED: u32 = 48 * 1024;
/// Alignment of arrays in shared memory in bytes, so that tensor cores can read them.
const SHARED_ALIGNMENT: u32 = 32;

impl Context<'_> {
    pub(super) fn global_name(&self, handle: Handle<GlobalVariable>) -> Result<&str> {
        let name = self.globals.get(&handle).map(String::as_str);
        name.ok_or_else(|| WriteError::invalid("a variable that does not exist"))
    }

    /// Returns the type that the pointer to a buffer points to: the element type of an array without a fixed size.
    fn pointee(&self, variable: &GlobalVariable) -> Result<String> {
        match *self.inner(variable.ty) {
            TypeInner::Array { base, size, stride } if self.is_unsized(variable.ty) => {
                self.element_name(&self.elements_of(base, size, stride)?)
            }
            _ => self.type_name(variable.ty),
        }
    }

    /// Returns a function's parameters for the module's variables that it uses. The kernel itself declares private
    /// variables instead.
    pub(super) fn global_parameters(&self, info: &FunctionInfo, is_entry: bool) -> Result<Vec<String>> {
        let mut parameters = Vec::new();
        for (handle, variable) in self.ordered(info) {
            let name = self.global_name(handle)?;
            match variable.space {
                AddressSpace::Private if !is_entry => {
                    parameters.push(format!("{}& {name}", self.type_name(variable.ty)?));
                }
                AddressSpace::Private | AddressSpace::WorkGroup => {}
                space if is_buffer(space) => {
                    let ty = self.pointee(variable)?;
                    // With `__restrict__`, the compiler would read such a buffer through the read-only cache, and
                    // move these loads after the wait.
                    let is_early = self.early.as_ref().is_some_and(|early| early.contains(&handle));
                    parameters.push(match (is_read_only(space), self.restrict && !is_early) {
                        (true, true) => format!("const {ty}* __restrict__ {name}"),
                        (true, false) => format!("const {ty}* {name}"),
                        (false, _) => format!("{ty}* {name}"),
                    });
                    if let Some(length) = self.lengths.get(&handle) {
                        parameters.push(format!("wgsl::u64 {length}"));
                    }
                }
                space => {
                    return Err(WriteError::unsupported(format!(
                        "variables in the address space {space:?}"
                    )));
                }
            }
        }
        Ok(parameters)
    }

    /// Returns the arguments of a call that match [`Self::global_parameters`].
    pub(super) fn global_arguments(&self, info: &FunctionInfo) -> Result<Vec<String>> {
        let mut arguments = Vec::new();
        for (handle, variable) in self.ordered(info) {
            if variable.space == AddressSpace::Private || is_buffer(variable.space) {
                arguments.push(self.global_name(handle)?.to_owned());
                arguments.extend(self.lengths.get(&handle).cloned());
            }
        }
        Ok(arguments)
    }

    /// Returns the variables that a function uses, with buffers in the order of their bindings.
    fn ordered(&self, info: &FunctionInfo) -> Vec<(Handle<GlobalVariable>, &GlobalVariable)> {
        let mut used: Vec<_> = self.used(info).collect();
        used.sort_by_key(|(_, variable)| {
            let binding = variable.binding.as_ref();
            binding.map_or((u32::MAX, u32::MAX), |binding| (binding.group, binding.binding))
        });
        used
    }

    /// Returns the buffers of the kernel in the order of its parameters.
    pub(super) fn bindings(&self, entry: &FunctionInfo) -> Result<Vec<Binding>> {
        let buffers = self
            .ordered(entry)
            .into_iter()
            .filter(|(_, variable)| is_buffer(variable.space));
        let mut bindings = Vec::new();
        for (handle, variable) in buffers {
            let Some(place) = &variable.binding else {
                return Err(WriteError::invalid("a buffer without a binding"));
            };
            bindings.push(Binding {
                group: place.group,
                binding: place.binding,
                name: variable.name.clone().unwrap_or_default(),
                writable: !is_read_only(variable.space),
                has_length: self.lengths.contains_key(&handle),
                least_bytes: self.least_bytes(variable)?,
            });
        }
        Ok(bindings)
    }

    fn least_bytes(&self, variable: &GlobalVariable) -> Result<u64> {
        let last = match *self.inner(variable.ty) {
            TypeInner::Struct { ref members, .. } => members.last().map_or(variable.ty, |last| last.ty),
            _ => variable.ty,
        };
        let fixed = u64::from(self.size(variable.ty)?);
        Ok(match *self.inner(last) {
            TypeInner::Array { stride, .. } if self.is_unsized(last) => fixed + u64::from(stride),
            _ => fixed,
        })
    }

    /// Returns the declarations of shared memory, and the size of this memory in bytes.
    pub(super) fn declare_shared(&self, entry: &FunctionInfo) -> Result<(String, u32)> {
        let (mut text, mut bytes) = (String::new(), 0_u32);
        for (handle, variable) in self
            .used(entry)
            .filter(|(_, variable)| variable.space == AddressSpace::WorkGroup)
        {
            let (ty, name) = (self.type_name(variable.ty)?, self.global_name(handle)?);
            _ = writeln!(text, "alignas({SHARED_ALIGNMENT}) __shared__ {ty} {name};");
            let own = self.size(variable.ty)?.next_multiple_of(SHARED_ALIGNMENT);
            bytes = bytes.saturating_add(own);
        }
        if bytes > MAX_SHARED {
            let what = format!("{bytes} bytes of workgroup memory; there are {MAX_SHARED}");
            return Err(WriteError::unsupported(what));
        }
        Ok((text, bytes))
    }

    /// Returns the declarations of private variables for the start of the kernel.
    pub(super) fn declare_private(&self, entry: &FunctionInfo) -> Result<Vec<String>> {
        let private = self
            .used(entry)
            .filter(|(_, variable)| variable.space == AddressSpace::Private);
        let declaration = |(handle, variable): (Handle<GlobalVariable>, &GlobalVariable)| {
            let (ty, name) = (self.type_name(variable.ty)?, self.global_name(handle)?);
            let value = match variable.init {
                Some(init) => self.constant_value(init)?,
                None => format!("{ty}{{}}"),
            };
            Ok(format!("{ty} {name} = {value};"))
        };
        private.map(declaration).collect()
    }
}
