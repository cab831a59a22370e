//! The parts of a module that an entry point uses.

use std::collections::HashSet;

use naga::{Block, Constant, Expression, Function, Handle, Module, Statement, Type, TypeInner};

/// The declarations of a module that an entry point uses.
#[derive(Default)]
pub(super) struct Uses {
    pub(super) functions: HashSet<Handle<Function>>,
    pub(super) constants: HashSet<Handle<Constant>>,
    pub(super) types: HashSet<Handle<Type>>,
}

impl Uses {
    pub(super) fn of(module: &Module, entry: &Function, info: &naga::valid::FunctionInfo) -> Self {
        let mut uses = Uses::default();
        uses.add_function(module, entry);
        for (handle, variable) in module.global_variables.iter() {
            if !info[handle].is_empty() {
                uses.add_type(module, variable.ty);
                uses.add_constant(module, variable.init);
            }
        }
        uses
    }

    fn add_function(&mut self, module: &Module, function: &Function) {
        for argument in &function.arguments {
            self.add_type(module, argument.ty);
        }
        if let Some(result) = &function.result {
            self.add_type(module, result.ty);
        }
        for (_, local) in function.local_variables.iter() {
            self.add_type(module, local.ty);
        }
        for (_, expression) in function.expressions.iter() {
            self.add_expression(module, expression);
        }
        self.add_calls(module, &function.body);
    }

    fn add_expression(&mut self, module: &Module, expression: &Expression) {
        match *expression {
            Expression::Constant(constant) => {
                self.constants.insert(constant);
                self.add_type(module, module.constants[constant].ty);
                self.add_constant(module, Some(module.constants[constant].init));
            }
            Expression::ZeroValue(ty) | Expression::Compose { ty, .. } | Expression::AtomicResult { ty, .. } => {
                self.add_type(module, ty);
            }
            _ => {}
        }
    }

    /// Adds everything that a constant expression of the module uses.
    fn add_constant(&mut self, module: &Module, init: Option<Handle<Expression>>) {
        let Some(expression) = init.and_then(|init| module.global_expressions.try_get(init).ok()) else {
            return;
        };
        if let Expression::Compose { components, .. } = expression {
            for component in components {
                self.add_constant(module, Some(*component));
            }
        }
        // Values of constants are written inline, so the order of these declarations does not matter.
        if let Expression::ZeroValue(ty) | Expression::Compose { ty, .. } = *expression {
            self.add_type(module, ty);
        }
    }

    fn add_type(&mut self, module: &Module, ty: Handle<Type>) {
        if !self.types.insert(ty) {
            return;
        }
        match &module.types[ty].inner {
            TypeInner::Pointer { base, .. } | TypeInner::Array { base, .. } => self.add_type(module, *base),
            TypeInner::Struct { members, .. } => {
                for member in members {
                    self.add_type(module, member.ty);
                }
            }
            _ => {}
        }
    }

    fn add_calls(&mut self, module: &Module, block: &Block) {
        for statement in block.iter() {
            match statement {
                Statement::Call { function, .. } => {
                    let is_new = self.functions.insert(*function);
                    if is_new {
                        self.add_function(module, &module.functions[*function]);
                    }
                }
                Statement::Block(block) => self.add_calls(module, block),
                Statement::If { accept, reject, .. } => {
                    self.add_calls(module, accept);
                    self.add_calls(module, reject);
                }
                Statement::Switch { cases, .. } => {
                    for case in cases {
                        self.add_calls(module, &case.body);
                    }
                }
                Statement::Loop { body, continuing, .. } => {
                    self.add_calls(module, body);
                    self.add_calls(module, continuing);
                }
                _ => {}
            }
        }
    }
}
