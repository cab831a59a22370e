//! Conversion of parameters to the storage types of a session, while earlier ones are stored; reports of the progress.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;

use half::f16;
use meganeura_core::quantization::BLOCK;
use meganeura_core::{Error, Result, Session};

use super::{Checkpoint, ParameterForm, SCALES};
use crate::tensors::convert;
use crate::tensors::element::Element;
use crate::tensors::shard::Tensor;

/// Maximum size of the memory of a converted tensor that is kept for a later one, in bytes.
const MAX_REUSED_BYTES: usize = 256 << 20;

/// Size of the weights that are loaded, and of all weights, as they are stored in the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadedBytes {
    /// Bytes of the weights that the device has received.
    pub loaded: u64,
    /// Bytes of all weights.
    pub total: u64,
}

/// A function that is called after each loaded weight, such as for a progress bar.
#[derive(Clone)]
pub struct LoadObserver(Arc<dyn Fn(LoadedBytes) + Send + Sync>);

impl LoadObserver {
    /// Creates an observer. `report` is called in the thread that loads the weights, which waits for it.
    pub fn new(report: impl Fn(LoadedBytes) + Send + Sync + 'static) -> Self {
        LoadObserver(Arc::new(report))
    }

    pub(crate) fn report(&self, bytes: LoadedBytes) {
        (self.0)(bytes);
    }
}

impl fmt::Debug for LoadObserver {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("LoadObserver")
    }
}

impl Checkpoint {
    /// Converts the tensors of parameters on a thread, and stores each of them while the next one is converted.
    ///
    /// # Errors
    /// The first error of a conversion or of `store`, in the order of the parameters.
    pub(super) fn convert_while_storing<'a>(
        &'a self,
        parameters: impl Iterator<Item = (&'a str, ParameterForm)> + Clone + Send,
        mut store: impl FnMut(&Parameter<'a>, &ConvertedTensor) -> Result<()>,
    ) -> Result<()> {
        let (to_store, converted) = mpsc::sync_channel(0);
        let (to_reuse, stored) = mpsc::channel::<Memory>();
        let all = parameters.clone();
        let convert = move || {
            for (name, form) in all {
                let mut memory = stored.try_recv().unwrap_or_default();
                let outcome = self.convert(name, form, &mut memory);
                // The receiver has ended after an error.
                if to_store.send(outcome.map(|parameter| (parameter, memory))).is_err() {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, convert) {
                log::debug!("weights are converted without a thread of their own: {error}");
                let mut memory = Memory::default();
                for (name, form) in parameters {
                    let parameter = self.convert(name, form, &mut memory)?;
                    store(&parameter, &memory.whole)?;
                    self.release(&parameter);
                }
                return Ok(());
            }
            // Dropped before the scope waits for the thread: after an error, nothing receives what the thread sends.
            let converted = converted;
            while let Ok(outcome) = converted.recv() {
                let (parameter, memory) = outcome?;
                store(&parameter, &memory.whole)?;
                self.release(&parameter);
                // The table of embeddings is much larger than other tensors. Its memory is not kept.
                if memory.bytes() <= MAX_REUSED_BYTES {
                    let _ = to_reuse.send(memory);
                }
            }
            Ok(())
        })
    }

    /// Converts a parameter to the form of a session, unless the file stores it in this form.
    fn convert<'a>(&'a self, name: &'a str, form: ParameterForm, memory: &mut Memory) -> Result<Parameter<'a>> {
        let parts = self.parts(name);
        // Adapters are added to transposed matrices.
        let element = match form {
            ParameterForm::F32 { transposed: false } => Some(Element::F32),
            ParameterForm::F16 => Some(Element::F16),
            _ => None,
        };
        let mut parameter = Parameter {
            name,
            form,
            stored: None,
        };
        if let (&[(shard, part)], Some(element)) = (parts.as_slice(), element) {
            let tensor = shard.tensor(part);
            parameter.stored = tensor.and_then(|tensor| tensor.bytes_in(element));
            if parameter.stored.is_some() {
                return Ok(parameter);
            }
        }
        let Memory { whole, part: one } = memory;
        whole.clear();
        for &(shard, part) in &parts {
            let Some(tensor) = shard.tensor(part) else { continue };
            // A parameter of a single tensor is converted in place.
            let to = if parts.len() == 1 { &mut *whole } else { &mut *one };
            to.reserve(part, &tensor, form)?;
            to.convert(&tensor, form).map_err(|row| {
                let message =
                    format!("row {row} of '{part}' has numbers that are not finite, or too large to be stored so");
                Error::file(&shard.path, message, "load the weights as f32")
            })?;
            if parts.len() > 1 {
                whole.extend(one);
            }
        }
        if let (ParameterForm::F32 { .. }, Some(adapters)) = (form, &self.adapters) {
            adapters.merge_into(name, &mut whole.numbers);
        }
        Ok(parameter)
    }

    /// Gives the mapped memory of a parameter's tensors back to the system.
    fn release(&self, parameter: &Parameter) {
        for (shard, part) in self.parts(parameter.name) {
            shard.release(part);
        }
    }
}

/// A parameter that was read from the files.
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    form: ParameterForm,
    /// Bytes of the file, if they already have the form of the session. Otherwise, the parameter was converted.
    stored: Option<&'a [u8]>,
}

impl Parameter<'_> {
    /// Sets the parameter of a session.
    ///
    /// # Errors
    /// Errors of the session.
    pub(super) fn store(&self, session: &mut Session, converted: &ConvertedTensor) -> Result<()> {
        let ConvertedTensor { numbers, bytes, scales } = converted;
        match (self.stored, self.form) {
            (Some(stored), _) => session.try_set_parameter_bytes(self.name, stored),
            (None, ParameterForm::F32 { .. }) => session.try_set_parameter(self.name, numbers),
            (None, ParameterForm::F16) => session.try_set_parameter_bytes(self.name, bytes),
            (None, ParameterForm::Blocks(_)) => {
                session.try_set_parameter_bytes(self.name, bytes)?;
                session.try_set_parameter_bytes(&format!("{}{SCALES}", self.name), scales)
            }
        }
    }
}

/// Memory for the conversion of tensors.
#[derive(Default)]
struct Memory {
    whole: ConvertedTensor,
    /// The current one of several tensors of a parameter.
    part: ConvertedTensor,
}

impl Memory {
    /// Returns the number of allocated bytes.
    fn bytes(&self) -> usize {
        let parts = [&self.whole, &self.part];
        let bytes = |part: &ConvertedTensor| {
            part.numbers.capacity() * size_of::<f32>() + part.bytes.capacity() + part.scales.capacity()
        };
        parts.into_iter().map(bytes).sum()
    }
}

/// A tensor that was converted to the storage form of a parameter; buffers that the form does not need are empty.
#[derive(Default)]
pub(super) struct ConvertedTensor {
    numbers: Vec<f32>,
    bytes: Vec<u8>,
    scales: Vec<u8>,
}

impl ConvertedTensor {
    fn clear(&mut self) {
        self.numbers.clear();
        self.bytes.clear();
        self.scales.clear();
    }

    fn extend(&mut self, other: &ConvertedTensor) {
        self.numbers.extend_from_slice(&other.numbers);
        self.bytes.extend_from_slice(&other.bytes);
        self.scales.extend_from_slice(&other.scales);
    }

    /// Reserves memory for a tensor. These buffers are most of the memory that loading needs.
    fn reserve(&mut self, name: &str, tensor: &Tensor, form: ParameterForm) -> Result<()> {
        self.clear();
        let [rows, width] = tensor.rows();
        let (numbers, bytes, scales) = match form {
            ParameterForm::F32 { .. } => (rows * width, 0, 0),
            ParameterForm::F16 => (0, rows * width * size_of::<f16>(), 0),
            ParameterForm::Blocks(format) => {
                let blocks = rows * (width / BLOCK);
                (0, blocks * format.bytes(), blocks * format.scales() * size_of::<f16>())
            }
        };
        let reserved = self.numbers.try_reserve(numbers);
        let reserved = reserved.and_then(|()| self.bytes.try_reserve(bytes));
        let reserved = reserved.and_then(|()| self.scales.try_reserve(scales));
        reserved.map_err(|_| Error::HostMemory {
            what: format!("the tensor '{name}'"),
            bytes: numbers * size_of::<f32>() + bytes + scales,
        })
    }

    /// Converts a tensor; the error is the index of a row that cannot be stored in this form.
    fn convert(&mut self, tensor: &Tensor, form: ParameterForm) -> std::result::Result<(), usize> {
        self.clear();
        match form {
            ParameterForm::F32 { transposed } => {
                convert::to_f32(tensor, transposed, &mut self.numbers);
                Ok(())
            }
            ParameterForm::F16 => convert::to_f16(tensor, &mut self.bytes),
            ParameterForm::Blocks(format) => convert::to_blocks(tensor, format, &mut self.bytes, &mut self.scales),
        }
    }
}
