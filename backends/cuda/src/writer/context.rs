//! Information about a module that its translation needs.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use naga::valid::{FunctionInfo, GlobalUse, ModuleInfo};
use naga::{AddressSpace, Constant, Function, GlobalVariable, Handle, Type, TypeInner};

use super::names::Names;
use super::options::{Bounds, Options};

/// The optional parts of the prelude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Half,
    Atomics,
    Subgroup,
    Matrix,
    Launch,
    Natives,
}

pub(super) struct Context<'a> {
    pub(super) module: &'a naga::Module,
    pub(super) info: &'a ModuleInfo,
    pub(super) bounds: Bounds,
    pub(super) restrict: bool,
    pub(super) programmatic: bool,
    pub(super) natives: bool,
    /// Buffers that may be read before the kernel waits for earlier launches. `None` if the kernel does not mark the
    /// position of the wait.
    pub(super) early: Option<HashSet<Handle<GlobalVariable>>>,
    /// `true` if the kernel becomes a part of a merged kernel.
    pub(super) is_part: bool,
    /// Names that local variables must not have, because they are already in use.
    pub(super) names: Names,
    pub(super) structs: HashMap<Handle<Type>, String>,
    pub(super) members: HashMap<Handle<Type>, Vec<String>>,
    pub(super) constants: HashMap<Handle<Constant>, String>,
    pub(super) globals: HashMap<Handle<GlobalVariable>, String>,
    /// Names of the parameters that contain the sizes of buffers in bytes. Only buffers whose length the kernel needs
    /// have such a parameter.
    pub(super) lengths: HashMap<Handle<GlobalVariable>, String>,
    pub(super) functions: HashMap<Handle<Function>, String>,
    half: Cell<bool>,
    atomics: Cell<bool>,
    subgroup: Cell<bool>,
    matrix: Cell<bool>,
    launch: Cell<bool>,
    native: Cell<bool>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        module: &'a naga::Module,
        info: &'a ModuleInfo,
        entry: &FunctionInfo,
        options: &Options,
        early: Option<HashSet<Handle<GlobalVariable>>>,
        is_part: bool,
    ) -> Self {
        let mut names = Names::new();
        let mut structs = HashMap::new();
        for (handle, ty) in module.types.iter() {
            if matches!(ty.inner, TypeInner::Struct { .. }) {
                structs.insert(handle, names.unique(ty.name.as_deref().unwrap_or("Struct")));
            }
        }
        // A member with the same name as a type would hide the type.
        let mut members = HashMap::new();
        for (handle, ty) in module.types.iter() {
            if let TypeInner::Struct { members: list, .. } = &ty.inner {
                let mut own = names.clone();
                let name = |member: &naga::StructMember| own.unique(member.name.as_deref().unwrap_or("member"));
                members.insert(handle, list.iter().map(name).collect());
            }
        }
        let functions = module.functions.iter();
        let functions =
            functions.map(|(handle, function)| (handle, names.unique(function.name.as_deref().unwrap_or("function"))));
        let functions = functions.collect();
        let constants = module.constants.iter();
        let constants =
            constants.map(|(handle, constant)| (handle, names.unique(constant.name.as_deref().unwrap_or("constant"))));
        let constants = constants.collect();
        let (mut globals, mut lengths) = (HashMap::new(), HashMap::new());
        for (handle, variable) in module.global_variables.iter() {
            let name = names.unique(variable.name.as_deref().unwrap_or("buffer"));
            let wants = options.bounds == Bounds::Restrict || entry[handle].contains(GlobalUse::QUERY);
            if wants && is_buffer(variable.space) && has_unsized_end(module, variable.ty) {
                lengths.insert(handle, names.unique(&format!("{name}_bytes")));
            }
            globals.insert(handle, name);
        }
        Context {
            module,
            info,
            bounds: options.bounds,
            restrict: options.restrict,
            programmatic: options.programmatic,
            natives: options.natives,
            early,
            is_part,
            names,
            structs,
            members,
            constants,
            globals,
            lengths,
            functions,
            launch: Cell::new(false),
            native: Cell::new(false),
            half: Cell::new(false),
            atomics: Cell::new(false),
            subgroup: Cell::new(false),
            matrix: Cell::new(false),
        }
    }

    fn part(&self, part: Part) -> &Cell<bool> {
        match part {
            Part::Launch => &self.launch,
            Part::Natives => &self.native,
            Part::Half => &self.half,
            Part::Atomics => &self.atomics,
            Part::Subgroup => &self.subgroup,
            Part::Matrix => &self.matrix,
        }
    }

    /// Records that the kernel needs a part of the prelude.
    pub(super) fn needs(&self, part: Part) {
        self.part(part).set(true);
    }

    pub(super) fn is_needed(&self, part: Part) -> bool {
        self.part(part).get()
    }

    /// Returns the module's variables that a function uses, directly or through the functions that it calls.
    pub(super) fn used<'b>(
        &'b self,
        info: &'b FunctionInfo,
    ) -> impl Iterator<Item = (Handle<GlobalVariable>, &'a GlobalVariable)> + 'b {
        let all = self.module.global_variables.iter();
        all.filter(|(handle, _)| !info[*handle].is_empty())
    }
}

pub(super) fn is_buffer(space: AddressSpace) -> bool {
    matches!(space, AddressSpace::Storage { .. } | AddressSpace::Uniform)
}

/// Returns `true` if a type is a run-time sized array, or ends with one.
fn has_unsized_end(module: &naga::Module, ty: Handle<Type>) -> bool {
    module.types[ty].inner.is_dynamically_sized(&module.types)
}
