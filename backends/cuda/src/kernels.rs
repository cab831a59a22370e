//! Kernels of a device. They are translated from WGSL to CUDA C++, compiled on several threads, loaded, and shared
//! between plans.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{result, sys};
use meganeura_core::plan::BufferRef;
use meganeura_core::{Error, Result};
use meganeura_shaders::host::RejectedKernel;
use meganeura_shaders::{Binding, Launch, Memory};

use crate::cubins::Compiler;
use crate::gpu::{Gpu, NAME};
use crate::wgsl::read;
use crate::writer::{Bounds, Call, MergedKernel, Options, waits_late, write, write_merged};

/// Maximum number of prepared kernels that are kept for later plans.
const KEPT: usize = 64;
/// Stack size of the threads that compile, in bytes. The compiler recurses, and custom kernels may be deeply nested.
const STACK: usize = 32 << 20;

/// Name of the entry point of WGSL modules.
const MAIN: &str = "main";

/// A parameter of a kernel: the address of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Index of the parameter's launch among the launches that are merged into the kernel.
    pub(crate) launch: usize,
    /// Index of the binding of this launch that the parameter points to.
    pub(crate) binding: usize,
    /// `true` if the next parameter is the size of the buffer in bytes.
    pub(crate) has_length: bool,
    /// Minimum size of the buffer in bytes.
    pub(crate) least_bytes: u64,
    /// `true` if the kernel may write the buffer.
    pub(crate) writable: bool,
}

/// A compiled and loaded kernel.
pub(crate) struct Kernel {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// Number of threads of a block along each axis.
    threads: [u32; 3],
    blocks: Option<[u32; 3]>,
    pub(crate) parameters: Vec<Parameter>,
}

// SAFETY: modules and functions of CUDA belong to their context. They are not bound to a thread.
unsafe impl Send for Kernel {}
// SAFETY: as above. They do not change after they are loaded.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Returns the number of threads of a block along each axis.
    pub(crate) fn threads(&self) -> [u32; 3] {
        self.threads
    }

    /// Returns the number of blocks along each axis, if several launches are merged into the kernel. Otherwise the
    /// launch determines it.
    pub(crate) fn blocks(&self) -> Option<[u32; 3]> {
        self.blocks
    }

    /// Returns the driver's handle. It is valid while this object lives.
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.function
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the driver loaded the module, and plans that use it keep it alive.
        self.gpu.free(|| unsafe { result::module::unload(self.module) });
    }
}

/// The kernels in use on a device, by [`Key`].
pub(crate) struct Kernels {
    compiler: Compiler,
    /// `true` if launches may begin before their predecessors have ended.
    programmatic: bool,
    known: Mutex<HashMap<Key, Weak<Kernel>>>,
    /// Kernels that were prepared for later plans.
    kept: Mutex<Vec<Arc<Kernel>>>,
}

/// A request for a kernel that runs one or more independent launches.
pub(crate) struct Request<'a> {
    /// Label of one of the dispatches, for error messages.
    pub(crate) label: &'a str,
    pub(crate) launches: Vec<&'a Launch>,
    /// Buffers of the plan that no dispatch of the plan writes.
    pub(crate) unwritten: &'a HashSet<BufferRef>,
}

/// Everything that determines the machine code of a kernel: its launches, and their numbers of blocks if there are
/// several launches.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    launches: Vec<LaunchKey>,
    blocks: Vec<[u32; 3]>,
}

/// Everything that determines the machine code of a launch.
#[derive(Clone, PartialEq, Eq, Hash)]
struct LaunchKey {
    source: String,
    /// `true` if the launch writes no buffer that it also binds as read-only.
    restrict: bool,
    custom: bool,
    /// Buffers that the kernel may read before it waits for earlier launches.
    unwritten: Vec<&'static str>,
}

impl Key {
    fn of(request: &Request) -> Self {
        let launches = request.launches.iter();
        Key {
            blocks: match request.launches.len() {
                1 => Vec::new(),
                _ => launches.clone().map(|launch| launch.groups).collect(),
            },
            launches: launches
                .map(|launch| LaunchKey::of(launch, request.unwritten))
                .collect(),
        }
    }
}

impl LaunchKey {
    fn of(launch: &Launch, unwritten: &HashSet<BufferRef>) -> Self {
        let is_unwritten = |binding: &Binding| match binding {
            Binding::Memory(Memory::Buffer(buffer)) => unwritten.contains(buffer),
            _ => false,
        };
        let bound = launch.bindings.iter().zip(&launch.names);
        LaunchKey {
            source: launch.source.clone(),
            restrict: !has_aliases(launch),
            custom: launch.is_custom(),
            unwritten: if waits_late(&launch.source) {
                bound.filter(|(b, _)| is_unwritten(b)).map(|(_, name)| *name).collect()
            } else {
                Vec::new()
            },
        }
    }
}

/// Returns `true` if a launch binds the same memory twice.
fn has_aliases(launch: &Launch) -> bool {
    let memory = |binding: &Binding| match *binding {
        Binding::Memory(memory) | Binding::Custom(memory) => Binding::Memory(memory),
        Binding::Fault | Binding::Guard => Binding::Fault,
        Binding::InlineScalars | Binding::Scalars => Binding::Scalars,
        other => other,
    };
    let all: Vec<Binding> = launch.bindings.iter().map(memory).collect();
    all.iter().enumerate().any(|(i, binding)| all[..i].contains(binding))
}

impl Kernels {
    pub(crate) fn new(compiler: Compiler, programmatic: bool) -> Self {
        Kernels {
            compiler,
            programmatic,
            known: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Returns the kernels for requests, in order.
    ///
    /// # Errors
    /// A kernel that cannot be translated to CUDA C++, or that the compiler or the driver rejects; a lost device.
    pub(crate) fn of(&self, gpu: &Arc<Gpu>, requests: &[Request]) -> Result<Vec<Arc<Kernel>>, RejectedKernel> {
        // A panic cannot leave the map half changed.
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<Key> = requests.iter().map(Key::of).collect();
        let mut found: HashMap<&Key, Arc<Kernel>> = HashMap::new();
        let mut missing: Vec<(&Key, &Request)> = Vec::new();
        {
            let mut known = lock();
            known.retain(|_, kernel| kernel.strong_count() > 0);
            for (key, request) in keys.iter().zip(requests) {
                if found.contains_key(key) || missing.iter().any(|(other, ..)| *other == key) {
                    continue;
                }
                match known.get(key).and_then(Weak::upgrade) {
                    Some(kernel) => {
                        found.insert(key, kernel);
                    }
                    None => missing.push((key, request)),
                }
            }
        }
        let made = self.make_all(gpu, &missing)?;
        let mut known = lock();
        for ((key, ..), kernel) in missing.iter().zip(made) {
            known.insert((*key).clone(), Arc::downgrade(&kernel));
            found.insert(key, kernel);
        }
        Ok(keys.iter().map(|key| found[key].clone()).collect())
    }

    /// Creates kernels of launches, like [`Kernels::of`], and keeps up to [`KEPT`] of them for later plans.
    ///
    /// # Errors
    /// As [`Kernels::of`].
    pub(crate) fn prepare(&self, gpu: &Arc<Gpu>, launches: &[(&str, &Launch)]) -> Result<(), RejectedKernel> {
        let unwritten = HashSet::new();
        let requests = launches.iter().map(|&(label, launch)| Request {
            label,
            launches: vec![launch],
            unwritten: &unwritten,
        });
        let made = self.of(gpu, &requests.collect::<Vec<_>>())?;
        // A panic cannot leave the list half changed.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(made);
        let over = kept.len().saturating_sub(KEPT);
        kept.drain(..over);
        Ok(())
    }

    fn make_all(&self, gpu: &Arc<Gpu>, missing: &[(&Key, &Request)]) -> Result<Vec<Arc<Kernel>>, RejectedKernel> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let share = missing.len().div_ceil(threads).max(1);
        let make_share = |share: &[(&Key, &Request)]| -> Result<Vec<Arc<Kernel>>, RejectedKernel> {
            share
                .iter()
                .map(|(key, request)| self.make(gpu, key, request))
                .collect()
        };
        let failed = |why: String| RejectedKernel {
            error: Box::new(Error::backend(NAME, why)),
            source: None,
        };
        std::thread::scope(|scope| {
            let workers = missing.chunks(share).map(|share| {
                let builder = std::thread::Builder::new().stack_size(STACK);
                let worker = builder.spawn_scoped(scope, move || make_share(share));
                worker.map_err(|e| failed(format!("cannot start a thread to compile kernels: {e}")))
            });
            let workers: Vec<_> = workers.collect();
            let mut all = Vec::with_capacity(missing.len());
            for worker in workers {
                let made = worker?.join();
                all.extend(made.map_err(|_| failed("compiling a kernel panicked".into()))??);
            }
            Ok(all)
        })
    }

    fn make(&self, gpu: &Arc<Gpu>, key: &Key, request: &Request) -> Result<Arc<Kernel>, RejectedKernel> {
        let refused = |why: String| {
            let source = request.launches.first().map(|launch| launch.source.clone());
            log::debug!(
                "the rejected kernel of {}:\n{}",
                request.label,
                source.as_deref().unwrap_or_default()
            );
            RejectedKernel {
                error: Box::new(Error::backend(NAME, format!("{}: {why}", request.label))),
                source,
            }
        };
        let written = self.write(key, request).map_err(refused)?;
        let parameters = written.bindings.iter().map(|(number, own)| {
            let launch = request.launches.get(*number);
            let binding = launch.and_then(|launch| launch.names.iter().position(|name| *name == own.name));
            let binding = binding.ok_or_else(|| refused(format!("'{}' has no buffer bound to it", own.name)))?;
            Ok(Parameter {
                launch: *number,
                binding,
                has_length: own.has_length,
                least_bytes: own.least_bytes,
                writable: own.writable,
            })
        });
        let parameters = parameters.collect::<Result<Vec<_>, RejectedKernel>>()?;
        let entry = std::ffi::CString::new(written.entry).map_err(|e| refused(e.to_string()))?;
        let load = |anew: bool| {
            let cubin = self.compiler.compile(&written.source, anew).map_err(refused)?;
            let loaded = gpu.call("loading a kernel", || {
                // SAFETY: the bytes are a complete image. The driver checks and copies it.
                let module = unsafe { result::module::load_data(cubin.bytes.as_ptr().cast::<c_void>()) }?;
                // SAFETY: the module was loaded above.
                let function = unsafe { result::module::get_function(module, entry.clone()) };
                let function = function.inspect_err(|_| {
                    // SAFETY: as above, and nothing uses the module.
                    let _ = unsafe { result::module::unload(module) };
                })?;
                Ok((module, function))
            });
            Ok((cubin.stored, loaded))
        };
        let loaded = match load(false)? {
            // A cached file may be damaged.
            (true, Err(error)) if !gpu.is_lost() => {
                log::debug!("a stored kernel cannot be loaded and is compiled again: {error}");
                load(true)?.1
            }
            (_, loaded) => loaded,
        };
        let (module, function) = loaded.map_err(|e| refused(e.to_string()))?;
        Ok(Arc::new(Kernel {
            gpu: gpu.clone(),
            module,
            function,
            threads: written.threads,
            blocks: (!key.blocks.is_empty()).then_some([written.blocks, 1, 1]),
            parameters,
        }))
    }

    /// Writes the CUDA C++ source of a request's launches.
    fn write(&self, key: &Key, request: &Request) -> Result<MergedKernel, String> {
        let mut unique: Vec<&LaunchKey> = Vec::new();
        let numbers: Vec<usize> = key
            .launches
            .iter()
            .map(|launch| {
                unique.iter().position(|known| *known == launch).unwrap_or_else(|| {
                    unique.push(launch);
                    unique.len() - 1
                })
            })
            .collect();
        let modules: Vec<_> = unique
            .iter()
            .map(|launch| read(&launch.source))
            .collect::<Result<_, _>>()?;
        let options: Vec<Options> = unique.iter().map(|launch| self.options(launch)).collect();
        if let ([(module, info)], [options], [_]) = (&modules[..], &options[..], &request.launches[..]) {
            let written = write(module, info, MAIN, options).map_err(|e| e.to_string())?;
            return Ok(MergedKernel {
                source: written.source,
                entry: written.entry,
                threads: written.threads,
                blocks: 0,
                bindings: written.bindings.into_iter().map(|binding| (0, binding)).collect(),
            });
        }
        let all = modules.iter().zip(&options);
        let all: Vec<_> = all.map(|((module, info), options)| (module, info, options)).collect();
        let calls = numbers.iter().zip(&key.blocks);
        let calls: Vec<Call> = calls
            .map(|(&module, &blocks)| Call {
                module,
                blocks,
                entry: MAIN,
            })
            .collect();
        write_merged(&all, &calls).map_err(|e| e.to_string())
    }

    fn options(&self, launch: &LaunchKey) -> Options {
        Options {
            // Third-party kernels get bounds checks. The kernels of this project stay within their buffers.
            bounds: if launch.custom {
                Bounds::Restrict
            } else {
                Bounds::Unchecked
            },
            restrict: launch.restrict,
            programmatic: self.programmatic,
            unwritten: launch.unwritten.iter().map(|name| (*name).to_owned()).collect(),
            natives: !launch.custom,
            ..Options::default()
        }
    }
}
