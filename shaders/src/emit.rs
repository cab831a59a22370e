//! WGSL code that computes the elements of a body's values. The code of the operands precedes that of an element, and
//! each value is computed only once.

use std::collections::HashMap;
use std::fmt::Write as _;

use meganeura_core::ops::Call;
use meganeura_core::{DType, Shape, TensorType};

use super::body::{Body, Constant, Def, Id};
use super::kernel::CompileCx;
use super::location::{self, Base, Index, Location};
use super::module::Module;
use super::roles::Role;
use super::scalar::{self, literal, wgsl_type};
use super::{packed, pull, view};

/// Maximum number of variables of a kernel.
const MAX_VARIABLES: usize = 2_000;

/// A location as a sum of indices times strides, as [`location::terms`] returns it.
pub(crate) type Terms = Vec<(Index, usize)>;

/// Generator of the code that computes elements of values.
pub(crate) struct Emitter<'a> {
    pub(crate) body: &'a Body,
    pub(crate) cx: &'a CompileCx<'a>,
    pub(crate) module: Module<'a>,
    /// Statements that were generated so far.
    pub(crate) code: String,
    /// WGSL variables that contain elements of values, by value and location.
    known: HashMap<(Id, Location), String>,
    /// WGSL variables that contain indices.
    indices: HashMap<Index, String>,
    /// Values that are computed once for the current row. Each has its variable, and the locations where the kernel may
    /// read it.
    fixed: HashMap<Id, (String, Vec<Terms>)>,
    /// A value whose elements a function of the kernel returns by index, and the name of this function.
    looked_up: Option<(Id, &'static str)>,
    /// Index of the elements that are currently written. Overwritten operands may be read only at these elements.
    writing: Option<Base>,
    variables: usize,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(body: &'a Body, cx: &'a CompileCx<'a>) -> Self {
        Emitter {
            body,
            cx,
            module: Module::new(cx),
            code: String::new(),
            known: HashMap::new(),
            indices: HashMap::new(),
            fixed: HashMap::new(),
            looked_up: None,
            writing: None,
            variables: 0,
        }
    }

    /// Sets the WGSL variable that contains the element of a value at certain locations. The value may not be read at
    /// other locations.
    pub(crate) fn fix_terms(&mut self, id: Id, variable: &str, locations: Vec<Terms>) {
        self.fixed.insert(id, (variable.to_owned(), locations));
    }

    /// Sets the kernel function that returns the elements of a value by index.
    pub(crate) fn look_up(&mut self, id: Id, function: &'static str) {
        self.looked_up = Some((id, function));
    }

    /// Returns the variable of a value for which [`Emitter::fix_terms`] was called.
    pub(crate) fn fixed(&self, id: Id) -> Option<&str> {
        self.fixed.get(&id).map(|(variable, _)| &**variable)
    }

    /// Sets the WGSL variable that contains an index.
    pub(crate) fn name_index(&mut self, index: Index, variable: &str) {
        self.indices.insert(index, variable.to_owned());
    }

    /// Copies the values of the current row to variables that functions of the module can access. Then closes the
    /// scope of the local variables so far, because the functions cannot access them.
    pub(crate) fn share_fixed(&mut self) {
        let mut fixed: Vec<(&Id, &mut (String, Vec<Terms>))> = self.fixed.iter_mut().collect();
        fixed.sort_by_key(|(id, _)| **id);
        for (id, (variable, _)) in fixed {
            // Only local variables have to be copied. Literals are used directly, and the matmul has no variable yet.
            if variable.starts_with('v') {
                let (shared, ty) = (format!("shared_{variable}"), wgsl_type(self.body.ty(*id).dtype));
                self.module
                    .declare(&["var<private> ", &shared, ": ", ty, ";\n"].concat());
                let _ = writeln!(self.code, "{shared} = {variable};");
                *variable = shared;
            }
        }
        // In a scope of their own, the variable names do not collide with names of the kernel.
        self.code = ["{\n", &self.code, "}\n"].concat();
        self.known.clear();
        self.indices.clear();
    }

    /// Returns the code of a block. The variables of the block are not in scope afterwards.
    pub(crate) fn block<T>(
        &mut self,
        make: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<(String, T), String> {
        let (known, indices) = (self.known.clone(), self.indices.clone());
        let outer = std::mem::take(&mut self.code);
        let made = make(self);
        let code = std::mem::replace(&mut self.code, outer);
        (self.known, self.indices) = (known, indices);
        Ok((code, made?))
    }

    /// Returns the code of a block that ends with writes to the elements of a base. In contrast to
    /// [`Emitter::block`], the block may read operands that the results overwrite, but only at these elements.
    pub(crate) fn writing_block<T>(
        &mut self,
        base: &Base,
        make: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<(String, T), String> {
        let outer = self.writing.replace(base.clone());
        let made = self.block(make);
        self.writing = outer;
        made
    }

    /// Adds a WGSL variable with this value, and returns its name.
    pub(crate) fn bind(&mut self, value: &str) -> Result<String, String> {
        if self.variables > MAX_VARIABLES {
            return Err("it is too large for one kernel".into());
        }
        let name = self.fresh();
        // Writing to a string does not fail.
        let _ = writeln!(self.code, "let {name} = {value};");
        Ok(name)
    }

    /// Returns the number of variables that were created so far.
    pub(crate) fn variables(&self) -> usize {
        self.variables
    }

    /// Returns an unused name.
    pub(crate) fn fresh(&mut self) -> String {
        self.variables += 1;
        format!("v{}", self.variables)
    }

    /// Returns a variable that contains an index.
    pub(crate) fn index(&mut self, index: &Index) -> Result<String, String> {
        let text = index.wgsl();
        if !text.contains(' ') {
            return Ok(text);
        }
        if let Some(known) = self.indices.get(index) {
            return Ok(known.clone());
        }
        let name = self.bind(&text)?;
        self.indices.insert(index.clone(), name.clone());
        Ok(name)
    }

    /// Returns the linear index of a location, computed from indices in variables.
    pub(crate) fn linear(&mut self, location: &[Index], shape: &Shape) -> Result<String, String> {
        let terms = location::terms(location, shape).into_iter();
        let terms = terms.map(|(index, stride)| Ok((self.index(&index)?, stride)));
        Ok(location::sum(terms.collect::<Result<Vec<_>, String>>()?.into_iter()))
    }

    /// Returns the location in the shape `to` of the element at a location in the shape `from`.
    pub(crate) fn reshape(&mut self, location: &[Index], from: &Shape, to: &Shape) -> Result<Location, String> {
        if let Some(found) = location::reshape(location, from, to) {
            return Ok(found);
        }
        let number = self.linear(location, from)?;
        let name = self.bind(&number)?;
        Ok(location::split(&Base::new(&name, from.numel()), 1, to))
    }

    /// Returns a variable or a literal with the element of a value at a location.
    pub(crate) fn value(&mut self, id: Id, location: &[Index]) -> Result<String, String> {
        if let Some((variable, locations)) = self.fixed.get(&id) {
            let at = location::terms(location, &self.body.ty(id).shape);
            return if locations.contains(&at) {
                Ok(variable.clone())
            } else {
                Err("a result of a reduction is used elsewhere than in its row".into())
            };
        }
        let node = &self.body.nodes[id];
        if let Def::Constant(constant) = &node.def {
            return self.constant(constant, &node.ty, location);
        }
        let key = (id, location.to_vec());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let name = match &node.def {
            _ if self.looked_up.is_some_and(|(found, _)| found == id) => {
                let at = self.linear(location, &node.ty.shape)?;
                let function = self.looked_up.map_or("", |(_, function)| function);
                self.bind(&format!("{function}({at})"))?
            }
            Def::Operand(operand) => {
                let at = self.linear(location, &node.ty.shape)?;
                self.load(*operand, &at)?
            }
            Def::Call {
                op,
                attrs,
                inputs,
                role,
            } => {
                let types: Vec<TensorType> = inputs.iter().map(|&i| self.body.ty(i).clone()).collect();
                let call = Call {
                    attrs,
                    inputs: &types,
                    outputs: std::slice::from_ref(&node.ty),
                };
                self.call(op, *role, &call, inputs, location)?
            }
            Def::Constant(_) => return Err("a constant has no variable".into()),
        };
        self.known.insert(key, name.clone());
        Ok(name)
    }

    fn call(&mut self, op: &str, role: Role, call: &Call, inputs: &[Id], location: &[Index]) -> Result<String, String> {
        match role {
            Role::Pointwise => {
                let mut x = Vec::with_capacity(inputs.len());
                for (&input, ty) in inputs.iter().zip(call.inputs) {
                    x.push(self.value(input, &location::broadcast(location, &ty.shape))?);
                }
                let number = if scalar::counts(op) {
                    self.linear(location, &call.outputs[0].shape)?
                } else {
                    String::new()
                };
                let text = scalar::expression(op, call, &x, &number)?;
                self.bind(&text.ok_or_else(|| format!("there is no elementwise {op}"))?)
            }
            Role::View => {
                let location = view::location(self, op, call, location)?;
                self.value(inputs[0], &location)
            }
            Role::Pull => pull::value(self, op, call, inputs, location),
            Role::Packed => packed::value(self, call, inputs, location),
            Role::Reduction | Role::Contraction => Err(format!("{op} is used where it has not been computed")),
        }
    }

    fn constant(&mut self, constant: &Constant, ty: &TensorType, location: &[Index]) -> Result<String, String> {
        Ok(match constant {
            Constant::Same(bits) => literal(ty.dtype, *bits),
            Constant::Count(first) => {
                let number = self.linear(location, &ty.shape)?;
                let number = match first {
                    0 => number,
                    _ => format!("{number} + {first}u"),
                };
                match ty.dtype {
                    DType::U32 => self.bind(&number)?,
                    _ => self.bind(&format!("{}({number})", wgsl_type(ty.dtype)))?,
                }
            }
            Constant::Table(words) => {
                let number = self.linear(location, &ty.shape)?;
                let table = self.module.table(words, ty.dtype);
                self.bind(&format!("{table}[{number}]"))?
            }
        })
    }

    /// Returns a variable with an element of an operand.
    pub(crate) fn load(&mut self, operand: usize, index: &str) -> Result<String, String> {
        if self.cx.is_overwritten(operand) {
            let element = self.writing.as_ref().is_some_and(|base| *base.name == *index);
            let only = index == "0u" && self.writing.as_ref().is_some_and(|base| base.extent == 1);
            if !element && !only {
                return Err("it reads other elements of what it overwrites than it writes".into());
            }
        }
        let text = self.module.load(operand, index);
        self.bind(&text)
    }
}
