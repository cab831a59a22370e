//! Kernels that other crates register, written without `unsafe`.

use std::sync::{OnceLock, PoisonError, RwLock};

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::{Error, Result, registry};

use super::builtin::built_in;
use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, chunk, chunks, f32_only, stream_nanos};

/// The function of a registered kernel. It receives the attributes, a slice of the elements of each operand, and the
/// slice of the result at the same indices. It must write this slice. All slices have equal lengths.
pub type Elementwise = fn(&Attrs, &[&[f32]], &mut [f32]);

/// Maximum number of operands of a registered kernel. With this limit, their slices are collected without allocation.
const MAX_OPERANDS: usize = 8;

/// A kernel for an operator of another crate. It computes in `f32`, element by element: operands and result have
/// one type, and calls with other types are decomposed as if there were no kernel.
///
/// The call is cut into pieces, which run on several threads; the pieces only depend on the shape.
///
/// ```
/// use meganeura_cpu::{CpuKernel, register_kernel};
///
/// register_kernel!(CpuKernel::elementwise("mine.squared_relu", 1, |_, x, out| {
///     for (out, x) in out.iter_mut().zip(x[0]) {
///         *out = x.max(0.0) * x.max(0.0);
///     }
/// }));
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CpuKernel {
    name: &'static str,
    operands: usize,
    run: Elementwise,
    nanos: f32,
}

impl CpuKernel {
    /// Creates a kernel for the operator `name`, which has `operands` operands (1 to 8) and one result.
    pub const fn elementwise(name: &'static str, operands: usize, run: Elementwise) -> Self {
        CpuKernel {
            name,
            operands,
            run,
            nanos: 1.0,
        }
    }

    /// Sets the time that one element takes on one thread, in nanoseconds (default: 1). Short calls run on one
    /// thread, because waking other threads would take longer.
    #[must_use]
    pub const fn with_nanos_per_element(mut self, nanos: f32) -> Self {
        self.nanos = nanos;
        self
    }

    /// Returns the name of the operator.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// An entry of the registry of kernels.
#[doc(hidden)]
pub struct KernelEntry(pub CpuKernel);

registry::inventory::collect!(KernelEntry);

#[derive(Default)]
struct Table {
    kernels: Vec<CpuKernel>,
    problems: Vec<Error>,
}

impl Table {
    fn add(&mut self, kernel: CpuKernel) -> Result<()> {
        let fail = |message: String, remedy: &str| {
            Err(Error::Plugin {
                plugin: kernel.name.to_owned(),
                message,
                remedy: remedy.to_owned(),
            })
        };
        if built_in(kernel.name).is_some() {
            return fail(
                "the CPU backend has a kernel for this operator already".into(),
                "register kernels for operators of your own",
            );
        }
        if self.kernels.iter().any(|k| k.name == kernel.name) {
            return fail(
                "a second CPU kernel is registered for this operator".into(),
                "link only one of them",
            );
        }
        if kernel.operands == 0 || kernel.operands > MAX_OPERANDS {
            return fail(
                format!("its CPU kernel expects {} operands", kernel.operands),
                "elementwise kernels take 1 to 8",
            );
        }
        self.kernels.push(kernel);
        Ok(())
    }
}

fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut linked: Vec<CpuKernel> = registry::inventory::iter::<KernelEntry>
            .into_iter()
            .map(|e| e.0)
            .collect();
        linked.sort_by_key(|k| (k.name, k.operands));
        let mut table = Table::default();
        for kernel in linked {
            if let Err(problem) = table.add(kernel) {
                log::error!("{problem}");
                table.problems.push(problem);
            }
        }
        RwLock::new(table)
    })
}

/// Registers a kernel while the program runs. Sessions that are built afterwards use it.
///
/// # Errors
/// [`Error::Plugin`] if the operator already has a kernel, or the number of operands is not 1 to 8.
pub fn register_kernel(kernel: CpuKernel) -> Result<()> {
    table().write().unwrap_or_else(PoisonError::into_inner).add(kernel)
}

/// Returns the names of the operators with registered kernels.
pub fn registered_kernels() -> Vec<&'static str> {
    let table = table().read().unwrap_or_else(PoisonError::into_inner);
    let mut names: Vec<_> = table.kernels.iter().map(|k| k.name).collect();
    names.sort_unstable();
    names
}

/// Returns an error for each linked kernel that was rejected.
pub(crate) fn problems() -> Vec<Error> {
    table().read().unwrap_or_else(PoisonError::into_inner).problems.clone()
}

fn lookup(name: &str) -> Option<CpuKernel> {
    let table = table().read().unwrap_or_else(PoisonError::into_inner);
    table.kernels.iter().find(|k| k.name == name).copied()
}

/// Returns the kernel-table entry that all registered kernels share, if a kernel is registered for the operator.
pub(super) fn find(name: &str) -> Option<&'static KernelDef> {
    static ENTRY: KernelDef = KernelDef {
        name: "",
        supports,
        compile,
    };
    lookup(name).map(|_| &ENTRY)
}

fn absent(name: &str) -> String {
    format!("no CPU kernel is registered for {name}")
}

fn supports(call: &KernelDesc) -> Result<(), String> {
    let kernel = lookup(call.name).ok_or_else(|| absent(call.name))?;
    f32_only(call)?;
    let (operands, results) = (call.inputs.len(), call.outputs.len());
    if operands != kernel.operands || results != 1 {
        let wanted = kernel.operands;
        return Err(format!(
            "its CPU kernel expects {wanted} operands and 1 result, found {operands} and {results}"
        ));
    }
    if call.inputs.iter().any(|ty| *ty != call.outputs[0]) {
        return Err("its CPU kernel expects operands of the result's type".into());
    }
    if registry::op(call.name).is_some_and(|op| !op.writes().is_empty()) {
        return Err("a registered CPU kernel cannot update an operand in place".into());
    }
    Ok(())
}

fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let name = &cx.dispatch.kernel.name;
    let kernel = lookup(name).ok_or_else(|| absent(name))?;
    let result = cx.output_buffer(0);
    if (0..kernel.operands).any(|i| cx.input_buffer(i) == result) {
        return Err("a registered CPU kernel cannot update an operand in place".into());
    }
    let out = cx.output::<f32>(0);
    let inputs: Vec<_> = (0..kernel.operands).map(|i| cx.input::<f32>(i)).collect();
    let (len, attrs) = (out.len(), cx.attrs().clone());
    let bytes = 4 * len * (inputs.len() + 1);
    Ok(Compiled::one(Task {
        tasks: chunks(len),
        // The conversion to an integer saturates, also for NaN.
        nanos: stream_nanos(bytes).max((len as f32 * kernel.nanos) as u64),
        body: move |task: usize, _: &RunCx| {
            let own = chunk(len, task);
            let mut operands: [&[f32]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
            // SAFETY: only this task writes these elements. The operands are in other buffers than the result, so
            // this dispatch does not write them. The registered function only receives slices.
            unsafe {
                for (slot, view) in operands.iter_mut().zip(&inputs) {
                    *slot = view.slice(own.clone());
                }
                (kernel.run)(&attrs, &operands[..inputs.len()], out.slice_mut(own));
            }
        },
    }))
}
