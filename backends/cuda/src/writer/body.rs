//! The body of a function during translation, with the C++ names of its values.

use std::collections::{HashMap, HashSet};

use naga::valid::FunctionInfo;
use naga::{Expression, Function, Handle, LocalVariable, TypeInner};

use super::context::Context;
use super::error::{Result, WriteError};
use super::names::Names;

pub(super) struct Body<'a> {
    pub(super) cx: &'a Context<'a>,
    pub(super) function: &'a Function,
    pub(super) info: &'a FunctionInfo,
    pub(super) names: Names,
    pub(super) arguments: Vec<String>,
    pub(super) locals: HashMap<Handle<LocalVariable>, String>,
    /// C++ names of the values that were already computed.
    pub(super) values: HashMap<Handle<Expression>, String>,
    /// Values that are declared before the loop that computes them.
    pub(super) declared: HashSet<Handle<Expression>>,
    /// Labels of the enclosing loops. `continue` jumps to the label of a loop that has a continuing block.
    pub(super) loops: Vec<Option<String>>,
    pub(super) text: String,
    pub(super) indent: usize,
}

impl<'a> Body<'a> {
    pub(super) fn new(cx: &'a Context<'a>, function: &'a Function, info: &'a FunctionInfo) -> Self {
        let mut names = cx.names.clone();
        let arguments = function.arguments.iter();
        let arguments = arguments.map(|argument| names.unique(argument.name.as_deref().unwrap_or("argument")));
        let arguments = arguments.collect();
        let locals = function.local_variables.iter();
        let locals = locals.map(|(handle, local)| (handle, names.unique(local.name.as_deref().unwrap_or("local"))));
        let locals = locals.collect();
        Body {
            cx,
            function,
            info,
            names,
            arguments,
            locals,
            values: HashMap::new(),
            declared: HashSet::new(),
            loops: Vec::new(),
            text: String::new(),
            indent: 1,
        }
    }

    /// Adds a line of code.
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(&"    ".repeat(self.indent));
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(super) fn expression(&self, handle: Handle<Expression>) -> Result<&'a Expression> {
        let expression = self.function.expressions.try_get(handle);
        expression.map_err(|_| WriteError::invalid("an expression that does not exist"))
    }

    /// Returns the type of an expression.
    pub(super) fn inner(&self, handle: Handle<Expression>) -> &'a TypeInner {
        self.info[handle].ty.inner_with(&self.cx.module.types)
    }

    /// Returns the C++ type of an expression.
    pub(super) fn type_of(&self, handle: Handle<Expression>) -> Result<String> {
        match self.info[handle].ty.handle() {
            Some(ty) => self.cx.type_name(ty),
            None => self.cx.inner_name(self.inner(handle)),
        }
    }

    /// Returns the C++ name for a value that is about to be computed: the name of the `let` in WGSL, or a generated
    /// name.
    pub(super) fn name_of(&mut self, handle: Handle<Expression>) -> String {
        let wanted = match self.function.named_expressions.get(&handle) {
            Some(name) => name.clone(),
            None => format!("e{}", handle.index()),
        };
        self.names.unique(&wanted)
    }

    /// Writes the definition of a named value.
    pub(super) fn define(&mut self, handle: Handle<Expression>, value: &str) -> Result<()> {
        if self.declared.contains(&handle) {
            let name = self.values.get(&handle).cloned();
            let name = name.ok_or_else(|| WriteError::invalid("a value without a name"))?;
            self.line(&format!("{name} = {value};"));
            return Ok(());
        }
        let ty = self.type_of(handle)?;
        let name = self.name_of(handle);
        self.line(&format!("const {ty} {name} = {value};"));
        self.values.insert(handle, name);
        Ok(())
    }
}
