//! A model that is ready to run.

use std::borrow::Cow;
use std::collections::HashMap;

use meganeura_compiler::{Builder, OptimizeReport};
use meganeura_core::{ExecutionPlan, Session, SharedWeights};

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::import::{Guard, GuardKind, Import, ImportOptions, OutputLabels, TensorInfo, may_decide_shapes};
use crate::model::Model;
use crate::port::{Dims, Port};
use crate::staged::StagedModel;
use crate::tensor::Tensor;

/// A model in a session, with its weights.
#[derive(Debug)]
pub struct Runner {
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
    /// Positions and values of inputs that became constants.
    constants: Vec<(usize, Tensor)>,
    labels: Vec<OutputLabels>,
    plan: Plan,
}

/// Execution of a model.
#[derive(Debug)]
enum Plan {
    /// The model runs as one graph.
    Whole(Box<SingleSession>),
    /// The model runs in stages, because shapes depend on computed data.
    Staged {
        staged: Box<StagedModel>,
        /// Inputs of the next run.
        given: Vec<Tensor>,
    },
}

#[derive(Debug)]
struct SingleSession {
    session: Session,
    report: OptimizeReport,
    guards: Vec<Guard>,
}

/// A compiled model, from which further runners are made without importing it again.
#[derive(Debug)]
pub(crate) struct Template {
    plan: ExecutionPlan,
    report: OptimizeReport,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
    constants: Vec<(usize, Tensor)>,
    labels: Vec<OutputLabels>,
    guards: Vec<Guard>,
}

impl Template {
    /// Compiles an import, and opens its first runner.
    fn open(import: &Import, constants: Vec<(usize, Tensor)>, builder: &Builder) -> Result<(Runner, Self)> {
        let (builder, _) = builder.clone().inference().opened()?;
        let (plan, report) = builder.clone().plan(&import.checked_graph())?;
        let template = Template {
            plan,
            report,
            inputs: import.inputs.clone(),
            outputs: import.outputs.clone(),
            constants,
            labels: import.labels.clone(),
            guards: import.guards.clone(),
        };
        let mut session = builder.open_session(template.plan.clone())?;
        import.set_parameters(&mut session)?;
        Ok((template.runner_of(session), template))
    }

    /// Opens a further runner with shared weights. Returns `None` if it cannot use all of them.
    pub(crate) fn runner(&self, builder: &Builder, weights: &SharedWeights) -> Result<Option<Runner>> {
        let builder = builder.clone().inference().weights(weights);
        let session = builder.open_session(self.plan.clone())?;
        let is_complete = session.unshared().next().is_none();
        Ok(is_complete.then(|| self.runner_of(session)))
    }

    fn runner_of(&self, session: Session) -> Runner {
        Runner {
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            constants: self.constants.clone(),
            labels: self.labels.clone(),
            plan: Plan::Whole(Box::new(SingleSession {
                session,
                report: self.report.clone(),
                guards: self.guards.clone(),
            })),
        }
    }
}

impl Runner {
    /// Creates a runner for inputs like these, in the order of [`Model::inputs`]: their shapes determine the open dimensions.
    ///
    /// If shapes in the model depend on the data of its inputs (a target shape, a number of elements), small inputs and integer
    /// inputs become constants, and [`Runner::run`] rejects other values for them.
    ///
    /// # Errors
    /// The same errors as [`Runner::new`] and [`Model::dims_of`].
    pub fn for_inputs(model: &Model, inputs: &[Tensor], builder: &Builder) -> Result<Self> {
        Runner::with_constants(model, inputs, &HashMap::new(), builder)
    }

    /// Creates a runner like [`Runner::for_inputs`], with constants for some inputs: values by name, also for
    /// [`Model::defaults`]. `inputs` are the remaining ones.
    ///
    /// # Errors
    /// The same errors as [`Runner::for_inputs`]; [`Error::Input`] if a constant has another type than the input, or the model
    /// has no input of its name.
    pub fn with_constants(
        model: &Model,
        inputs: &[Tensor],
        constants: &HashMap<String, Tensor>,
        builder: &Builder,
    ) -> Result<Self> {
        Ok(Runner::with_template(model, inputs, constants, builder)?.0)
    }

    /// Creates a runner like [`Runner::with_constants`], and a template for further ones, unless the model runs in stages.
    pub(crate) fn with_template(
        model: &Model,
        inputs: &[Tensor],
        constants: &HashMap<String, Tensor>,
        builder: &Builder,
    ) -> Result<(Self, Option<Template>)> {
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
        let is_data_dependent =
            |result: &Result<Import>| matches!(result, Err(Error::Unsupported(report)) if report.depends_on_data());
        let first = model.import(&import_options);
        if !is_data_dependent(&first) {
            let (runner, template) = Template::open(&first?, Vec::new(), builder)?;
            return Ok((runner, Some(template)));
        }
        let small: Vec<(usize, Tensor)> = inputs
            .iter()
            .enumerate()
            .filter(|(_, t)| may_decide_shapes(t))
            .map(|(i, t)| (i, t.clone()))
            .collect();
        let mut with_inputs = import_options.clone();
        for (i, tensor) in &small {
            with_inputs.constants.insert(ports[*i].name.clone(), tensor.clone());
        }
        let second = model.import(&with_inputs);
        if !is_data_dependent(&second) {
            let (runner, template) = Template::open(&second?, small, builder)?;
            return Ok((runner, Some(template)));
        }
        let runner = Runner::in_stages(model, import_options, &ports, inputs, builder)?;
        Ok((runner, None))
    }

    /// Creates a runner of a model whose shapes depend on computed data, and runs it once to determine the shapes of
    /// its outputs.
    fn in_stages(
        model: &Model,
        options: ImportOptions,
        ports: &[&Port],
        inputs: &[Tensor],
        builder: &Builder,
    ) -> Result<Self> {
        let info = |(port, tensor): (&&Port, &Tensor)| TensorInfo {
            name: port.name.clone(),
            element: port.element,
            dims: tensor.dims().to_vec(),
        };
        let outputs = model.outputs().iter().map(|port| TensorInfo {
            name: port.name.clone(),
            element: port.element.of_result(),
            dims: Vec::new(),
        });
        let mut runner = Runner {
            inputs: ports.iter().zip(inputs).map(info).collect(),
            outputs: outputs.collect(),
            constants: Vec::new(),
            labels: Vec::new(),
            plan: Plan::Staged {
                staged: Box::new(StagedModel::new(model, options, builder)),
                given: Vec::new(),
            },
        };
        runner.run(inputs)?;
        Ok(runner)
    }

    /// Imports a model for these dimensions, builds it for inference and sets its weights. The builder selects the device and the
    /// options; `Builder::new()` uses the device from the environment and the configuration file.
    ///
    /// # Errors
    /// The same errors as [`Model::import`], and errors of building a session.
    pub fn new(model: &Model, dims: &Dims, builder: &Builder) -> Result<Self> {
        Runner::of_import(&model.import(&ImportOptions::new(dims.clone()))?, builder)
    }

    /// Creates a runner for an imported model.
    ///
    /// # Errors
    /// Errors of building a session.
    pub fn of_import(import: &Import, builder: &Builder) -> Result<Self> {
        Ok(Template::open(import, Vec::new(), builder)?.0)
    }

    /// Returns the inputs of the model.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    /// Returns the outputs of the model. If their shapes depend on computed data, these are the shapes of the last run.
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Returns the labels of the outputs that are strings or maps in the model. Empty for a model that runs in stages.
    pub fn labels(&self) -> &[OutputLabels] {
        &self.labels
    }

    /// Returns the report of the graph's rewriting; of the last stage, if the model runs in stages.
    pub fn report(&self) -> &OptimizeReport {
        match &self.plan {
            Plan::Whole(whole) => &whole.report,
            Plan::Staged { staged, .. } => &staged.last().1,
        }
    }

    /// Returns the session, for profiles and statistics; of the last stage, if the model runs in stages.
    pub fn session(&mut self) -> &mut Session {
        match &mut self.plan {
            Plan::Whole(whole) => &mut whole.session,
            Plan::Staged { staged, .. } => staged.last_session(),
        }
    }

    /// Shares the weights with other runners of the model ([`Builder::weights`]). Returns `None` if the device does not
    /// share memory between sessions, or if the model runs in stages.
    ///
    /// # Errors
    /// Those of [`Session::share_weights`].
    pub fn share_weights(&mut self) -> Result<Option<SharedWeights>> {
        match &mut self.plan {
            Plan::Whole(whole) => Ok(whole.session.share_weights_if_supported()?),
            Plan::Staged { .. } => Ok(None),
        }
    }

    /// Returns the positions of the inputs that became constants, because they determine shapes.
    pub(crate) fn deciding_inputs(&self) -> Vec<usize> {
        self.constants.iter().map(|(at, _)| *at).collect()
    }

    /// Returns the number of stages in which the model runs. It is 1 unless shapes depend on computed data.
    pub fn stages(&self) -> usize {
        match &self.plan {
            Plan::Whole(_) => 1,
            Plan::Staged { staged, .. } => staged.len(),
        }
    }

    /// Runs the model on inputs in the order of [`Runner::inputs`], or of [`Model::inputs`] if [`Runner::for_inputs`] created the
    /// runner.
    ///
    /// If shapes depend on computed data, the model runs in stages. If the data that determine the shapes of a stage
    /// differ from the last run, the stage is imported and compiled again.
    ///
    /// # Errors
    /// [`Error::Input`] if the number, element types or shapes of the inputs differ, or an integer does not fit into 32 bits;
    /// [`Error::Overflow`] if a 64-bit integer that the model computes does not fit; those of [`Model::import`] for a stage.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.set_inputs(inputs)?;
        if let Plan::Whole(whole) = &mut self.plan {
            whole.session.try_step()?;
            whole.session.try_wait()?;
        }
        self.results()
    }

    /// Sets the inputs of the next step.
    ///
    /// # Errors
    /// The same errors as [`Runner::run`].
    pub fn set_inputs(&mut self, inputs: &[Tensor]) -> Result<()> {
        let mut constants = self.constants.iter().peekable();
        let mut chosen = Vec::with_capacity(self.inputs.len());
        for (i, tensor) in inputs.iter().enumerate() {
            match constants.next_if(|(at, _)| *at == i) {
                Some((_, constant)) if constant == tensor => {}
                Some(_) => {
                    let message =
                        format!("input {i} must keep the value that the shapes of the model were computed from");
                    return Err(Error::Input(message));
                }
                None => chosen.push(tensor),
            }
        }
        if chosen.len() != self.inputs.len() {
            let names: Vec<&str> = self.inputs.iter().map(|i| i.name.as_str()).collect();
            return Err(wrong_count(inputs.len(), &names));
        }
        match &mut self.plan {
            Plan::Whole(whole) => {
                for (info, tensor) in self.inputs.iter().zip(chosen) {
                    set_input(&mut whole.session, info, tensor)?;
                }
            }
            Plan::Staged { given, .. } => {
                let checked = self
                    .inputs
                    .iter()
                    .zip(chosen)
                    .map(|(info, tensor)| Ok(checked(info, tensor)?.into_owned()));
                *given = checked.collect::<Result<_>>()?;
            }
        }
        Ok(())
    }

    /// Returns the results of the last step. A model in stages runs now, on the inputs of [`Runner::set_inputs`].
    ///
    /// # Errors
    /// [`Error::Overflow`] if a 64-bit integer exceeded 32 bits; errors of reading from the device; in stages, those of
    /// [`Runner::run`].
    pub fn results(&mut self) -> Result<Vec<Tensor>> {
        match &mut self.plan {
            Plan::Whole(whole) => read_results(&mut whole.session, &self.outputs, &whole.guards),
            Plan::Staged { staged, given } => {
                let names = self.inputs.iter().map(|info| info.name.as_str());
                let results = staged.run(&names.zip(given.iter()).collect())?;
                for (info, result) in self.outputs.iter_mut().zip(&results) {
                    info.dims = result.dims().to_vec();
                }
                Ok(results)
            }
        }
    }
}

/// Sets an input of a session.
pub(crate) fn set_input(session: &mut Session, info: &TensorInfo, tensor: &Tensor) -> Result<()> {
    let bytes = checked(info, tensor)?
        .graph_bytes()
        .map_err(|e| Error::Input(format!("input `{}`: {e}", info.name)))?;
    Ok(session.try_set_input_bytes(&info.name, &bytes)?)
}

/// Converts a tensor to the element type of an input, and checks its shape and numbers.
fn checked<'t>(info: &TensorInfo, tensor: &'t Tensor) -> Result<Cow<'t, Tensor>> {
    let name = &info.name;
    let tensor = converted(tensor, name, info.element)?;
    if tensor.dims() != info.dims {
        let (wanted, found) = (&info.dims, tensor.dims());
        return Err(Error::Input(format!(
            "input `{name}`: expected shape {wanted:?}, found {found:?}"
        )));
    }
    if let Some(value) = tensor.beyond_f32() {
        let message = format!("input `{name}`: {value:e} does not fit into f32, the type for float64 in a graph");
        return Err(Error::Input(message));
    }
    Ok(tensor)
}

/// Reads the outputs of a session, whose graph has one more output if there are guards.
pub(crate) fn read_results(session: &mut Session, outputs: &[TensorInfo], guards: &[Guard]) -> Result<Vec<Tensor>> {
    check_guards(session, outputs.len(), guards)?;
    let mut results = Vec::with_capacity(outputs.len());
    for (i, info) in outputs.iter().enumerate() {
        let bytes = session.try_read_output_bytes(i)?;
        results.push(Tensor::from_graph_bytes(info.element, &info.dims, bytes));
    }
    Ok(results)
}

/// Returns an error if a 64-bit integer of a node exceeded 32 bits in the last step, or a category was unknown. The output
/// `at` has the index of the node.
fn check_guards(session: &mut Session, at: usize, guards: &[Guard]) -> Result<()> {
    if guards.is_empty() {
        return Ok(());
    }
    let bytes = session.try_read_output_bytes(at)?;
    let code = bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b)) as usize;
    let raised = guards.len().checked_sub(code).and_then(|i| guards.get(i));
    match raised {
        None => Ok(()),
        Some(guard) if guard.kind == GuardKind::Category => Err(Error::UnknownCategory {
            place: guard.place.clone(),
            operator: guard.operator.clone(),
        }),
        Some(guard) => Err(Error::Overflow {
            place: guard.place.clone(),
            operator: guard.operator.clone(),
            element: guard.element,
        }),
    }
}

/// Converts a tensor to the element type of an input.
fn converted<'t>(tensor: &'t Tensor, name: &str, element: ElementType) -> Result<Cow<'t, Tensor>> {
    if tensor.element() == element {
        return Ok(Cow::Borrowed(tensor));
    }
    // An array library may have other float types than the model.
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

/// Returns true if all integers are in the range of the type.
fn fits(tensor: &Tensor, element: ElementType) -> bool {
    let (low, high) = element.range();
    tensor
        .ints()
        .is_some_and(|data| data.iter().all(|v| (low..=high).contains(v)))
}

fn wrong_count(given: usize, names: &[&str]) -> Error {
    let count = names.len();
    Error::Input(format!("found {given} inputs, expected {count}: {}", names.join(", ")))
}
