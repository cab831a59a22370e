//! A model that is ready to run.

use std::borrow::Cow;
use std::collections::HashMap;

use meganeura_compiler::{Builder, OptimizeReport};
use meganeura_core::Session;

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::import::{Import, ImportOptions, TensorInfo};
use crate::model::{Dims, Model, Port};
use crate::tensor::Tensor;

/// A model in a session, with its weights.
#[derive(Debug)]
pub struct Runner {
    session: Session,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
    report: OptimizeReport,
    /// Position among the inputs and value of those that became constants.
    constants: Vec<(usize, Tensor)>,
}

/// Inputs with at most that many elements become constants if shapes depend on them.
const MAX_CONSTANT_INPUT: usize = 64;

impl Runner {
    /// A runner for inputs like these, in the order of [`Model::inputs`]: they give the open dimensions their sizes.
    ///
    /// Where shapes in the model depend on the data of its inputs (a target shape, a number of elements), small inputs and
    /// those of integers become constants, and [`Runner::run`] refuses other values for them.
    ///
    /// # Errors
    /// As [`Runner::new`] and [`Model::dims_of`].
    pub fn for_inputs(model: &Model, inputs: &[Tensor], builder: &Builder) -> Result<Self> {
        Runner::with_constants(model, inputs, &HashMap::new(), builder)
    }

    /// [`Runner::for_inputs`] of a model some of whose inputs are constants: values by name, also of [`Model::defaults`].
    /// `inputs` are the other ones.
    ///
    /// # Errors
    /// As [`Runner::for_inputs`]; [`Error::Input`] if a constant has another type than the input, or the model has no input
    /// of its name.
    pub fn with_constants(
        model: &Model,
        inputs: &[Tensor],
        constants: &HashMap<String, Tensor>,
        builder: &Builder,
    ) -> Result<Self> {
        let all = || model.inputs().iter().chain(model.defaults());
        let mut values = HashMap::new();
        for (name, tensor) in constants {
            let port = all().find(|p| p.name == *name);
            let port = port.ok_or_else(|| Error::Input(format!("the model has no input `{name}`")))?;
            values.insert(name.clone(), converted(tensor, &port.name, port.element)?.into_owned());
        }
        let ports: Vec<&Port> = model
            .inputs()
            .iter()
            .filter(|p| !constants.contains_key(&p.name))
            .collect();
        if ports.len() != inputs.len() {
            let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
            return Err(wrong_count(inputs.len(), &names));
        }
        let shapes = ports.iter().zip(inputs).map(|(p, t)| (p.name.as_str(), t.dims()));
        let own = values
            .iter()
            .filter(|(name, _)| model.inputs().iter().any(|p| p.name == **name));
        let shapes = shapes.chain(own.map(|(name, t)| (name.as_str(), t.dims())));
        let mut import_options = ImportOptions::new(model.dims_of(shapes)?);
        import_options.constants = values;
        let first = model.import(&import_options);
        let (import, constants) = match first {
            Err(Error::Unsupported(report)) if report.depends_on_data() => {
                let small = |t: &Tensor| t.len() <= MAX_CONSTANT_INPUT || t.ints().is_some();
                let small: Vec<(usize, Tensor)> = inputs
                    .iter()
                    .enumerate()
                    .filter(|(_, t)| small(t))
                    .map(|(i, t)| (i, t.clone()))
                    .collect();
                for (i, tensor) in &small {
                    import_options.constants.insert(ports[*i].name.clone(), tensor.clone());
                }
                (model.import(&import_options)?, small)
            }
            other => (other?, Vec::new()),
        };
        let mut runner = Runner::of_import(&import, builder)?;
        runner.constants = constants;
        Ok(runner)
    }

    /// Imports a model for these dimensions, builds it for inference and sets its weights. The builder says on which device
    /// and how; `Builder::new()` takes the device that environment and configuration file select.
    ///
    /// # Errors
    /// As [`Model::import`], and those of building a session.
    pub fn new(model: &Model, dims: &Dims, builder: &Builder) -> Result<Self> {
        Runner::of_import(&model.import(&ImportOptions::new(dims.clone()))?, builder)
    }

    /// The same of a model that is imported.
    ///
    /// # Errors
    /// Those of building a session.
    pub fn of_import(import: &Import, builder: &Builder) -> Result<Self> {
        let (mut session, report) = builder.clone().inference().build(&import.graph)?;
        import.set_parameters(&mut session)?;
        Ok(Runner {
            session,
            inputs: import.inputs.clone(),
            outputs: import.outputs.clone(),
            report,
            constants: Vec::new(),
        })
    }

    /// What the model takes.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    /// What the model gives.
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// How the graph was rewritten.
    pub fn report(&self) -> &OptimizeReport {
        &self.report
    }

    /// The session, for profiles and statistics.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Runs the model on inputs in the order of [`Runner::inputs`], or of [`Model::inputs`] if [`Runner::for_inputs`] made it.
    ///
    /// # Errors
    /// [`Error::Input`] if number, element types or shapes of the inputs differ, or an integer does not fit into 32 bits.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.set_inputs(inputs)?;
        self.session.try_step()?;
        self.session.try_wait()?;
        self.results()
    }

    /// Gives the inputs of the next step.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub fn set_inputs(&mut self, inputs: &[Tensor]) -> Result<()> {
        let mut constants = self.constants.iter().peekable();
        let mut given = Vec::with_capacity(self.inputs.len());
        for (i, tensor) in inputs.iter().enumerate() {
            match constants.next_if(|(at, _)| *at == i) {
                Some((_, constant)) if constant == tensor => {}
                Some(_) => {
                    let message =
                        format!("input {i} has another value than the shapes of the model were computed from");
                    return Err(Error::Input(message));
                }
                None => given.push(tensor),
            }
        }
        if given.len() != self.inputs.len() {
            let names: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
            return Err(wrong_count(inputs.len(), &names));
        }
        for (info, tensor) in self.inputs.iter().zip(given) {
            let tensor = converted(tensor, &info.name, info.element)?;
            if tensor.dims() != info.dims {
                let (name, wanted, found) = (&info.name, &info.dims, tensor.dims());
                return Err(Error::Input(format!(
                    "input `{name}` has the shape {wanted:?}, and {found:?} is given"
                )));
            }
            if let Some(value) = tensor.beyond_f32() {
                let name = &info.name;
                let message =
                    format!("input `{name}`: {value:e} does not fit into f32, the type for float64 in a graph");
                return Err(Error::Input(message));
            }
            let bytes = tensor
                .graph_bytes()
                .map_err(|e| Error::Input(format!("input `{}`: {e}", info.name)))?;
            self.session.try_set_input_bytes(&info.name, &bytes)?;
        }
        Ok(())
    }

    /// Results of the last step.
    ///
    /// # Errors
    /// Those of reading from the device.
    pub fn results(&mut self) -> Result<Vec<Tensor>> {
        let mut results = Vec::with_capacity(self.outputs.len());
        for (i, info) in self.outputs.iter().enumerate() {
            let bytes = self.session.try_read_output_bytes(i)?;
            results.push(Tensor::from_graph_bytes(info.element, &info.dims, bytes));
        }
        Ok(results)
    }
}

/// A tensor in the element type of an input.
fn converted<'t>(tensor: &'t Tensor, name: &str, element: ElementType) -> Result<Cow<'t, Tensor>> {
    if tensor.element() == element {
        return Ok(Cow::Borrowed(tensor));
    }
    // The float types of an array library are not always those of a model.
    let floats = tensor.element().is_float() && element.is_float();
    let integers = tensor.ints().is_some() && !element.is_float() && fits(tensor, element);
    if floats || integers {
        return Ok(Cow::Owned(tensor.cast(element)));
    }
    let found = tensor.element();
    Err(Error::Input(format!(
        "input `{name}`: expected {element}, found {found}"
    )))
}

/// Whether all integers are in the range of the type.
fn fits(tensor: &Tensor, element: ElementType) -> bool {
    let (low, high) = element.range();
    tensor
        .ints()
        .is_some_and(|data| data.iter().all(|v| (low..=high).contains(v)))
}

fn wrong_count(given: usize, names: &[&str]) -> Error {
    let count = names.len();
    Error::Input(format!(
        "{given} inputs are given, and the model takes {count}: {}",
        names.join(", ")
    ))
}
