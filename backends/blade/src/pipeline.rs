//! Pipelines: compiled kernels. Several are created at the same time, and plans share pipelines of equal kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use blade_graphics as bg;
use blade_graphics::ShaderBindable as _;
use meganeura_core::{Error, Result};

use crate::gpu::{Gpu, NAME};
use meganeura_shaders::host::RejectedKernel;
use meganeura_shaders::{Binding, INLINE_SCALARS, Launch};

/// Maximum number of prepared pipelines that are kept for later plans.
const KEPT: usize = 64;

/// A compiled kernel.
pub(crate) struct Pipeline {
    gpu: Arc<Gpu>,
    pub(crate) raw: bg::ComputePipeline,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let raw = &mut self.raw;
        self.gpu.free(|context| context.destroy_compute_pipeline(raw));
    }
}

/// The pipelines in use on a device, by the source of their kernels.
#[derive(Default)]
pub(crate) struct Pipelines {
    known: Mutex<HashMap<String, Weak<Pipeline>>>,
    /// Pipelines that were prepared for later plans.
    kept: Mutex<Vec<Arc<Pipeline>>>,
    /// Sources of the kernels that the driver rejected in a test.
    #[cfg(test)]
    pub(crate) refused: Mutex<std::collections::HashSet<String>>,
}

impl Pipelines {
    /// Returns the pipelines of launches, in order. Errors name the label of a launch.
    ///
    /// # Errors
    /// A kernel that the driver rejects; a lost device.
    pub(crate) fn of(
        &self,
        gpu: &Arc<Gpu>,
        launches: &[(&str, &Launch)],
    ) -> Result<Vec<Arc<Pipeline>>, RejectedKernel> {
        // A panic cannot leave the map half changed.
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: HashMap<&str, Arc<Pipeline>> = HashMap::new();
        let mut missing: Vec<(&str, &Launch)> = Vec::new();
        {
            let mut known = lock();
            known.retain(|_, pipeline| pipeline.strong_count() > 0);
            for &(label, launch) in launches {
                let source = launch.source.as_str();
                if found.contains_key(source) || missing.iter().any(|(_, m)| m.source == source) {
                    continue;
                }
                match known.get(source).and_then(Weak::upgrade) {
                    Some(pipeline) => {
                        found.insert(source, pipeline);
                    }
                    None => missing.push((label, launch)),
                }
            }
        }
        #[cfg(test)]
        {
            let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((label, launch)) = missing.iter().find(|(_, launch)| refused.contains(&launch.source)) {
                return Err(RejectedKernel {
                    error: Box::new(Error::backend(NAME, format!("{label}: refused by a test"))),
                    source: Some(launch.source.clone()),
                });
            }
        }
        let made = create_all(gpu, &missing)?;
        let mut known = lock();
        for ((_, launch), pipeline) in missing.iter().zip(made) {
            known.insert(launch.source.clone(), Arc::downgrade(&pipeline));
            found.insert(&launch.source, pipeline);
        }
        Ok(launches.iter().map(|(_, l)| found[l.source.as_str()].clone()).collect())
    }
}

impl Pipelines {
    /// Creates pipelines of launches, like [`Pipelines::of`], and keeps up to [`KEPT`] of them for later plans.
    ///
    /// # Errors
    /// As [`Pipelines::of`].
    pub(crate) fn prepare(&self, gpu: &Arc<Gpu>, launches: &[(&str, &Launch)]) -> Result<(), RejectedKernel> {
        let made = self.of(gpu, launches)?;
        // A panic cannot leave the list half changed.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(made);
        let over = kept.len().saturating_sub(KEPT);
        kept.drain(..over);
        Ok(())
    }
}

/// Creates pipelines on several threads. The threads have large stacks, because the compiler recurses and custom
/// kernels may be deeply nested.
fn create_all(gpu: &Arc<Gpu>, launches: &[(&str, &Launch)]) -> Result<Vec<Arc<Pipeline>>, RejectedKernel> {
    const STACK: usize = 32 << 20;
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = launches.len().div_ceil(threads).max(1);
    let create_share = |share: &[(&str, &Launch)]| -> Result<Vec<Arc<Pipeline>>, RejectedKernel> {
        share.iter().map(|(label, launch)| create(gpu, label, launch)).collect()
    };
    let failed = |why: String| RejectedKernel {
        error: Box::new(Error::backend(NAME, why)),
        source: None,
    };
    std::thread::scope(|scope| {
        let workers = launches.chunks(share).map(|share| {
            let builder = std::thread::Builder::new().stack_size(STACK);
            let worker = builder.spawn_scoped(scope, move || create_share(share));
            worker.map_err(|e| failed(format!("cannot start a thread to create pipelines: {e}")))
        });
        let workers: Vec<_> = workers.collect();
        let mut all = Vec::with_capacity(launches.len());
        for worker in workers {
            let made = worker?.join();
            all.extend(made.map_err(|_| failed("creating a pipeline panicked".into()))??);
        }
        Ok(all)
    })
}

fn create(gpu: &Arc<Gpu>, label: &str, launch: &Launch) -> Result<Arc<Pipeline>, RejectedKernel> {
    let refused = |why: String| {
        log::debug!("the rejected kernel of {label}:\n{}", launch.source);
        RejectedKernel {
            error: Box::new(Error::backend(
                NAME,
                format!("{label}: the driver rejects the kernel: {why}"),
            )),
            source: Some(launch.source.clone()),
        }
    };
    let layout = layout(launch);
    let raw = gpu.attempt(|context| {
        let shader = context.try_create_shader(bg::ShaderDesc {
            source: &launch.source,
            naga_module: None,
        })?;
        Ok::<_, &str>(context.create_compute_pipeline(bg::ComputePipelineDesc {
            name: label,
            data_layouts: &[&layout],
            compute: shader.at("main"),
        }))
    });
    let raw = raw.map_err(refused)?.map_err(|e| refused(e.to_owned()))?;
    Ok(Arc::new(Pipeline { gpu: gpu.clone(), raw }))
}

fn layout(launch: &Launch) -> bg::ShaderDataLayout {
    let binding = |(&name, &binding): (&&'static str, &Binding)| {
        let kind = match binding {
            Binding::Reporter => bg::ShaderBinding::Plain { size: 4 },
            Binding::InlineScalars => bg::ShaderBinding::Plain {
                size: size_of::<Scalars>() as u32,
            },
            _ => bg::ShaderBinding::Buffer,
        };
        (name, kind)
    };
    bg::ShaderDataLayout {
        bindings: launch.names.iter().zip(&launch.bindings).map(binding).collect(),
    }
}

/// The values of the scalars that a launch receives as an argument.
pub(crate) type Scalars = [[u8; 4]; INLINE_SCALARS];

/// The value that a variable of a kernel is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Piece(bg::BufferPiece),
    Number(u32),
    /// The scalars of the current step.
    Scalars,
}

/// The values of all bindings of a launch, in order.
pub(crate) struct BoundLaunch<'a> {
    pub(crate) bound: &'a [Bound],
    pub(crate) scalars: &'a Scalars,
}

impl bg::ShaderData for BoundLaunch<'_> {
    // The layout belongs to the launch, not to this type.
    fn layout() -> bg::ShaderDataLayout {
        bg::ShaderDataLayout::default()
    }

    fn fill(&self, mut context: bg::PipelineContext) {
        for (i, bound) in (0u32..).zip(self.bound) {
            match bound {
                Bound::Piece(piece) => piece.bind_to(&mut context, i),
                Bound::Number(number) => number.bind_to(&mut context, i),
                Bound::Scalars => self.scalars.bind_to(&mut context, i),
            }
        }
    }
}
