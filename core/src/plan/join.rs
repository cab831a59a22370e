//! Several plans merged into one session, with shared parameters and states.

use std::collections::HashMap;

use super::{BufferRef, ExecutionPlan, FORWARD_BACKWARD, OWN_SEGMENTS, PREPARE, Segment, StateBuffer};
use crate::error::{Error, Result};

impl ExecutionPlan {
    /// Adds the forward pass of another plan as a segment, which `Session::try_step_of` runs. Parameters and states of
    /// equal names are shared, so weights and caches are in memory once; intermediates of different segments share
    /// memory. Inputs get the names `{segment}.{input}`, named outputs `{segment}.{output}`. Its outputs follow the
    /// outputs of this plan. Returns the index of the first of them.
    ///
    /// Packed parameters can be shared only if both plans pack the same parameters; otherwise,
    /// build both without rule sets that pack. On an error the plan is unchanged.
    ///
    /// # Errors
    /// [`Error::ParametersDiffer`] with all tensors of equal names, but different types or packing;
    /// [`Error::InvalidUse`] for a plan that trains, plans of different precision, a segment name that exists, is
    /// built-in, or is a prefix of an input's name; a buffer that is larger than the device binds.
    pub fn join(&mut self, other: &ExecutionPlan, segment: &str, max_buffer_bytes: Option<u64>) -> Result<usize> {
        self.check_joint(other, segment)?;
        let differences = self.differences(other);
        if !differences.is_empty() {
            return Err(Error::ParametersDiffer { differences });
        }
        let mut next = self.clone();
        let first_output = next.output_buffers.len();
        let mut map = next.shared_leaves(other);
        for (index, ty) in other.buffer_types.iter().enumerate() {
            map.entry(BufferRef(index as u32))
                .or_insert_with(|| next.add_buffer(ty));
        }
        next.add_leaves(other, segment, &map);
        next.add_dispatches(other, segment, &map);
        next.repeat_what_steps_change();
        next.recomputation = None;
        next.place_buffers(max_buffer_bytes)?;
        next.verify()?;
        *self = next;
        Ok(first_output)
    }

    fn check_joint(&self, other: &ExecutionPlan, segment: &str) -> Result<()> {
        self.verify()?;
        other.verify()?;
        let refuse = |message: String, remedy: &str| Err(Error::misuse(message, remedy));
        let trains = |plan: &ExecutionPlan| !plan.gradient_buffers.is_empty();
        let is_forward = |name: &str| [PREPARE, FORWARD_BACKWARD].contains(&name);
        if trains(self) || trains(other) || other.segments.iter().any(|s| !is_forward(&s.name)) {
            return refuse(
                "training plans and merged plans cannot be merged into a session with other plans".into(),
                "build all plans for inference, and merge them into one of them",
            );
        }
        if self.precision != other.precision {
            return refuse(
                format!(
                    "plans of the precisions {} and {} cannot be merged into one session",
                    self.precision, other.precision
                ),
                "build both with the same settings",
            );
        }
        if OWN_SEGMENTS.contains(&segment) {
            return refuse(
                format!("'{segment}' is the name of a built-in segment"),
                "give every plan that is merged its own segment name",
            );
        }
        if self.segment(segment).is_some() {
            return refuse(
                format!("the plan has a segment '{segment}' already"),
                "give every plan that is merged its own segment name",
            );
        }
        // The prefix of an input's name determines its segment.
        let begins = |(name, _): &&(String, BufferRef)| name.strip_prefix(segment).is_some_and(|n| n.starts_with('.'));
        if let Some((name, _)) = self.input_buffers.iter().find(begins) {
            return refuse(
                format!("the plan has an input '{name}' already, as if it were one of the segment '{segment}'"),
                "give the segment another name",
            );
        }
        Ok(())
    }

    /// Lists parameters and states that exist in both plans, but are stored differently.
    fn differences(&self, other: &ExecutionPlan) -> Vec<String> {
        let own: HashMap<String, String> = self.storages().collect();
        let mut differences: Vec<String> = other
            .storages()
            .filter_map(|(name, theirs)| {
                let ours = own.get(&name).filter(|ours| **ours != theirs)?;
                Some(format!("{name}: {ours} and {theirs}"))
            })
            .collect();
        differences.sort();
        differences
    }

    /// Returns the storage of each parameter, state and scalar, by the names that users see.
    fn storages(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let scalars = self.scalar_buffers.iter();
        let scalars = scalars.map(|(name, b)| (format!("scalar {name}"), self.buffer_types[b.index()].to_string()));
        let views = self.parameters().into_iter().chain(self.states());
        let views = views.map(|view| {
            let storage = match (view.part, self.parameter_name(view.buffer)) {
                (None, _) => view.ty.to_string(),
                (Some(part), name) => {
                    let whole = &self.buffer_types[view.buffer.index()];
                    let name = name.unwrap_or_default();
                    format!("{} at byte {} of the packed {whole} '{name}'", view.ty, part.offset)
                }
            };
            (view.name, storage)
        });
        views.chain(scalars)
    }

    /// Maps buffers of another plan to buffers of this one: parameters, states, scalars and equal
    /// constants.
    fn shared_leaves(&self, other: &ExecutionPlan) -> HashMap<BufferRef, BufferRef> {
        let mut map = HashMap::new();
        let by_name = |list: &[(String, BufferRef)]| list.iter().cloned().collect::<HashMap<String, BufferRef>>();
        for (own, theirs) in [
            (&self.param_buffers, &other.param_buffers),
            (&self.scalar_buffers, &other.scalar_buffers),
        ] {
            let own = by_name(own);
            map.extend(theirs.iter().filter_map(|(name, b)| Some((*b, *own.get(name)?))));
        }
        let states: HashMap<&str, BufferRef> = self.state_buffers.iter().map(|s| (s.name.as_str(), s.buffer)).collect();
        let shared = other.state_buffers.iter();
        map.extend(shared.filter_map(|s| Some((s.buffer, *states.get(s.name.as_str())?))));
        let ty = |plan: &ExecutionPlan, b: BufferRef| plan.buffer_types[b.index()].clone();
        let own: HashMap<_, _> = self.constants().map(|(b, data)| ((ty(self, b), data), b)).collect();
        let constants = other.constants();
        map.extend(constants.filter_map(|(b, data)| Some((b, *own.get(&(ty(other, b), data))?))));
        map
    }

    /// Adds the leaves of another plan that this one lacks, including all inputs.
    fn add_leaves(&mut self, other: &ExecutionPlan, segment: &str, map: &HashMap<BufferRef, BufferRef>) {
        // New buffers come after the existing ones.
        let is_known = |list: &[(String, BufferRef)], buffer: BufferRef| list.iter().any(|(_, b)| *b == buffer);
        for ((name, buffer), info) in other.param_buffers.iter().zip(&other.param_info) {
            if is_known(&self.param_buffers, map[buffer]) {
                continue;
            }
            self.param_buffers.push((name.clone(), map[buffer]));
            self.param_info.push(info.clone());
            if let Some(derived) = other.derived(*buffer) {
                let sources = other.derived_params[derived].1.clone();
                self.derived_params.push((map[buffer], sources));
                self.derived_info.push(other.derived_info[derived].clone());
            }
        }
        for (name, buffer) in &other.scalar_buffers {
            if !is_known(&self.scalar_buffers, map[buffer]) {
                self.scalar_buffers.push((name.clone(), map[buffer]));
            }
        }
        for state in &other.state_buffers {
            if !self.state_buffers.iter().any(|s| s.buffer == map[&state.buffer]) {
                self.state_buffers.push(StateBuffer {
                    buffer: map[&state.buffer],
                    packed: state.packed.map(|p| map[&p]),
                    ..state.clone()
                });
            }
        }
        let constants: Vec<BufferRef> = self.constants().map(|(b, _)| b).collect();
        let is_new = |b: &BufferRef| !constants.contains(&map[b]);
        let floats = other.constant_buffers.iter().filter(|(b, _)| is_new(b));
        self.constant_buffers
            .extend(floats.map(|(b, data)| (map[b], data.clone())));
        let raw = other.raw_constant_buffers.iter().filter(|(b, _)| is_new(b));
        self.raw_constant_buffers
            .extend(raw.map(|(b, data)| (map[b], data.clone())));
        let inputs = other.input_buffers.iter();
        self.input_buffers
            .extend(inputs.map(|(name, b)| (format!("{segment}.{name}"), map[b])));
        // Either all outputs have names or none: unnamed outputs get their index as a name.
        if !(self.output_names.is_empty() && other.output_names.is_empty()) {
            let number = |i: usize| i.to_string();
            if self.output_names.is_empty() {
                self.output_names = (0..self.output_buffers.len()).map(number).collect();
            }
            let named = |i: usize| other.output_names.get(i).cloned().unwrap_or_else(|| number(i));
            let names = (0..other.output_buffers.len()).map(|i| format!("{segment}.{}", named(i)));
            self.output_names.extend(names);
        }
        self.output_buffers.extend(other.output_buffers.iter().map(|b| map[b]));
        self.output_types.extend_from_slice(&other.output_types);
    }

    fn add_dispatches(&mut self, other: &ExecutionPlan, segment: &str, map: &HashMap<BufferRef, BufferRef>) {
        let first_source = self.sources.len() as u32;
        self.sources.extend(other.sources.iter().cloned());
        let first = self.dispatches.len();
        self.segments.extend(other.segments.iter().map(|s| Segment {
            name: if s.once {
                format!("{segment}.{}", s.name)
            } else {
                segment.to_owned()
            },
            first: first + s.first,
            ..s.clone()
        }));
        self.dispatches.extend(other.dispatches.iter().map(|d| {
            let mut d = d.clone();
            for operand in d.inputs.iter_mut().chain(&mut d.outputs) {
                operand.buffer = map[&operand.buffer];
            }
            d.source = d.source.map(|source| source + first_source);
            d
        }));
    }
}
