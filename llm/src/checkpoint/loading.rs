//! Conversion of parameters to the storage types of a session, while earlier ones are stored; reports of the progress.

use std::collections::TryReserveError;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;

use half::f16;
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
        let (to_reuse, stored) = mpsc::channel::<ConvertedTensor>();
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
        let mut keep = |parameter: &Parameter<'a>, memory: &ConvertedTensor| -> Result<()> {
            store(parameter, memory)?;
            self.release(parameter);
            Ok(())
        };
        thread::scope(|scope| {
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, convert) {
                log::debug!("weights are converted without a thread of their own: {error}");
                let mut memory = ConvertedTensor::default();
                for (name, form) in parameters {
                    let parameter = self.convert(name, form, &mut memory)?;
                    keep(&parameter, &memory)?;
                }
                return Ok(());
            }
            // Dropped before the scope waits for the thread: after an error, nothing receives what the thread sends.
            let converted = converted;
            while let Ok(outcome) = converted.recv() {
                let (parameter, memory) = outcome?;
                keep(&parameter, &memory)?;
                // The table of embeddings is much larger than other tensors. Its memory is not kept.
                if memory.allocated_bytes() <= MAX_REUSED_BYTES {
                    let _ = to_reuse.send(memory);
                }
            }
            Ok(())
        })
    }

    /// Converts a parameter to the form of a session, unless the file stores it in this form.
    fn convert<'a>(
        &'a self,
        name: &'a str,
        form: ParameterForm,
        memory: &mut ConvertedTensor,
    ) -> Result<Parameter<'a>> {
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
        let tensors = parts.iter().filter_map(|&(shard, part)| shard.tensor(part));
        let tensors: Vec<Tensor> = tensors.collect();
        memory.resize(name, &tensors, form)?;
        let mut start = [0; 3];
        for (tensor, (shard, part)) in tensors.iter().zip(&parts) {
            memory.convert(tensor, form, &mut start).map_err(|row| {
                let message =
                    format!("row {row} of '{part}' has numbers that are not finite, or too large to be stored so");
                Error::file(&shard.path, message, "load the weights as f32")
            })?;
        }
        if let (ParameterForm::F32 { .. }, Some(adapters)) = (form, &self.adapters) {
            adapters.merge_into(name, memory.numbers.elements_mut());
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
        let (numbers, bytes, scales) = (&converted.numbers, &converted.bytes, &converted.scales);
        match (self.stored, self.form) {
            (Some(stored), _) => session.try_set_parameter_bytes(self.name, stored),
            (None, ParameterForm::F32 { .. }) => session.try_set_parameter(self.name, numbers.elements()),
            (None, ParameterForm::F16) => session.try_set_parameter_bytes(self.name, bytes.elements()),
            (None, ParameterForm::Blocks(_)) => {
                session.try_set_parameter_bytes(self.name, bytes.elements())?;
                session.try_set_parameter_bytes(&format!("{}{SCALES}", self.name), scales.elements())
            }
        }
    }
}

/// Memory whose contents are overwritten. It never shrinks, because its growth fills it with zeros.
#[derive(Default)]
struct Buffer<T> {
    memory: Vec<T>,
    len: usize,
}

impl<T: Clone + Default> Buffer<T> {
    /// Sets the number of elements. Their values are those of earlier tensors.
    fn try_resize(&mut self, len: usize) -> std::result::Result<(), TryReserveError> {
        let more = len.saturating_sub(self.memory.len());
        self.memory.try_reserve(more)?;
        self.memory.resize(self.memory.len() + more, T::default());
        self.len = len;
        Ok(())
    }

    fn elements(&self) -> &[T] {
        &self.memory[..self.len]
    }

    fn elements_mut(&mut self) -> &mut [T] {
        &mut self.memory[..self.len]
    }
}

/// A parameter that was converted to the storage form of a session; buffers that the form does not need are unused.
#[derive(Default)]
pub(super) struct ConvertedTensor {
    numbers: Buffer<f32>,
    bytes: Buffer<u8>,
    scales: Buffer<u8>,
}

impl ConvertedTensor {
    /// Returns the number of allocated bytes.
    fn allocated_bytes(&self) -> usize {
        self.numbers.memory.capacity() * size_of::<f32>() + self.bytes.memory.capacity() + self.scales.memory.capacity()
    }

    /// Allocates memory for tensors. These buffers are most of the memory that loading needs.
    fn resize(&mut self, name: &str, tensors: &[Tensor], form: ParameterForm) -> Result<()> {
        let sizes = tensors.iter().map(|tensor| sizes(tensor, form));
        let [numbers, bytes, scales] = sizes.fold([0; 3], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]]);
        let resized = self.numbers.try_resize(numbers);
        let resized = resized.and_then(|()| self.bytes.try_resize(bytes));
        let resized = resized.and_then(|()| self.scales.try_resize(scales));
        resized.map_err(|_| Error::HostMemory {
            what: format!("the tensor '{name}'"),
            bytes: numbers * size_of::<f32>() + bytes + scales,
        })
    }

    /// Converts a tensor. `start` contains its first positions in the buffers, and afterwards the positions after its end. The
    /// error is the index of a row that cannot be stored in this form.
    fn convert(
        &mut self,
        tensor: &Tensor,
        form: ParameterForm,
        start: &mut [usize; 3],
    ) -> std::result::Result<(), usize> {
        let [numbers, bytes, scales] = sizes(tensor, form);
        let own_numbers = &mut self.numbers.elements_mut()[start[0]..][..numbers];
        let own_bytes = &mut self.bytes.elements_mut()[start[1]..][..bytes];
        let own_scales = &mut self.scales.elements_mut()[start[2]..][..scales];
        *start = [start[0] + numbers, start[1] + bytes, start[2] + scales];
        match form {
            ParameterForm::F32 { transposed } => {
                convert::to_f32(tensor, transposed, own_numbers);
                Ok(())
            }
            ParameterForm::F16 => convert::to_f16(tensor, own_bytes),
            ParameterForm::Blocks(format) => convert::to_blocks(tensor, format, own_bytes, own_scales),
        }
    }
}

/// Returns the numbers of elements that a tensor needs in the buffers of [`ConvertedTensor`].
fn sizes(tensor: &Tensor, form: ParameterForm) -> [usize; 3] {
    let [rows, width] = tensor.rows();
    match form {
        ParameterForm::F32 { .. } => [rows * width, 0, 0],
        ParameterForm::F16 => [0, rows * width * size_of::<f16>(), 0],
        ParameterForm::Blocks(format) => {
            let [bytes, scales] = convert::blocks_bytes(tensor, format);
            [0, bytes, scales]
        }
    }
}
