//! Kernels on a device: written in CUDA C++ from their WGSL, compiled on several threads, loaded, and shared by plans.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{result, sys};
use meganeura_core::plan::BufferRef;
use meganeura_core::{Error, Result};
use meganeura_shaders::host::Refused;
use meganeura_shaders::{Binding, Launch, Memory};

use crate::cubins::Compiler;
use crate::gpu::{Gpu, NAME};
use crate::wgsl::read;
use crate::writer::{Bounds, Call, Merged, Options, waits_late, write, write_merged};

/// Kernels that are kept for the plans that are going to use them.
const KEPT: usize = 64;
/// Stack of the threads that compile: custom kernels are nested as deeply as is allowed, and what compiles them is recursive.
const STACK: usize = 32 << 20;

/// The entry point of modules.
const MAIN: &str = "main";

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// The launch, of those that are one kernel.
    pub(crate) launch: usize,
    /// The binding of the launch that it points to.
    pub(crate) binding: usize,
    /// Whether the number of its bytes follows it.
    pub(crate) has_length: bool,
    /// The least bytes that this may be.
    pub(crate) least_bytes: u64,
    /// Whether the kernel may write there.
    pub(crate) writable: bool,
}

/// A kernel that is loaded.
pub(crate) struct Kernel {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// Threads of a block along each axis.
    threads: [u32; 3],
    blocks: Option<[u32; 3]>,
    pub(crate) parameters: Vec<Parameter>,
}

// SAFETY: modules and functions of CUDA belong to their context and to no thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; they are not changed once they are loaded.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Threads of a block along each axis.
    pub(crate) fn threads(&self) -> [u32; 3] {
        self.threads
    }

    /// Blocks along each axis, where they are part of the kernel: several launches are one.
    pub(crate) fn blocks(&self) -> Option<[u32; 3]> {
        self.blocks
    }

    /// The function as the driver knows it, as long as this lives.
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.function
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: it was loaded by the driver; plans that use it keep it.
        self.gpu.free(|| unsafe { result::module::unload(self.module) });
    }
}

/// The kernels in use on a device, by their text and what else decides their machine code.
pub(crate) struct Kernels {
    compiler: Compiler,
    /// Whether launches may begin before those that they depend on have ended.
    programmatic: bool,
    known: Mutex<HashMap<Key, Weak<Kernel>>>,
    /// Made ahead of the plans that are going to use them.
    kept: Mutex<Vec<Arc<Kernel>>>,
}

/// Launches that become one kernel, which do not depend on each other.
pub(crate) struct Request<'a> {
    /// Label of a dispatch, for errors.
    pub(crate) label: &'a str,
    pub(crate) launches: Vec<&'a Launch>,
    /// Buffers of the plan that none of its dispatches writes.
    pub(crate) unwritten: &'a HashSet<BufferRef>,
}

/// What decides the machine code of a kernel: its launches, and how many blocks each has if they are several.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    launches: Vec<LaunchKey>,
    blocks: Vec<[u32; 3]>,
}

/// What decides the machine code of a launch.
#[derive(Clone, PartialEq, Eq, Hash)]
struct LaunchKey {
    source: String,
    /// Whether no buffer that is only read is one that is written.
    restrict: bool,
    custom: bool,
    /// What the kernel may read before it waits for earlier launches.
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
            unwritten: match waits_late(&launch.source) {
                true => bound.filter(|(b, _)| is_unwritten(b)).map(|(_, name)| *name).collect(),
                false => Vec::new(),
            },
        }
    }
}

/// Whether a launch binds the same memory twice.
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

    /// The kernels of requests, in their order.
    ///
    /// # Errors
    /// A kernel that has no CUDA C++, or that the compiler or the driver refuses; a lost device.
    pub(crate) fn of(&self, gpu: &Arc<Gpu>, requests: &[Request]) -> Result<Vec<Arc<Kernel>>, Refused> {
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

    /// Makes kernels of launches, as [`Kernels::of`], and keeps the last ones for the plans that are going to use them.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn prepare(&self, gpu: &Arc<Gpu>, launches: &[(&str, &Launch)]) -> Result<(), Refused> {
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

    fn make_all(&self, gpu: &Arc<Gpu>, missing: &[(&Key, &Request)]) -> Result<Vec<Arc<Kernel>>, Refused> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let share = missing.len().div_ceil(threads).max(1);
        let make_share = |share: &[(&Key, &Request)]| -> Result<Vec<Arc<Kernel>>, Refused> {
            share
                .iter()
                .map(|(key, request)| self.make(gpu, key, request))
                .collect()
        };
        let failed = |why: String| Refused {
            error: Box::new(Error::backend(NAME, why)),
            source: None,
        };
        std::thread::scope(|scope| {
            let workers = missing.chunks(share).map(|share| {
                let builder = std::thread::Builder::new().stack_size(STACK);
                let worker = builder.spawn_scoped(scope, move || make_share(share));
                worker.map_err(|e| failed(format!("no thread to compile kernels could be started: {e}")))
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

    fn make(&self, gpu: &Arc<Gpu>, key: &Key, request: &Request) -> Result<Arc<Kernel>, Refused> {
        let refused = |why: String| {
            let source = request.launches.first().map(|launch| launch.source.clone());
            log::debug!(
                "the refused kernel of {}:\n{}",
                request.label,
                source.as_deref().unwrap_or_default()
            );
            Refused {
                error: Box::new(Error::backend(NAME, format!("{}: {why}", request.label))),
                source,
            }
        };
        let written = self.write(key, request).map_err(refused)?;
        let parameters = written.bindings.iter().map(|(number, own)| {
            let launch = request.launches.get(*number);
            let binding = launch.and_then(|launch| launch.names.iter().position(|name| *name == own.name));
            let binding = binding.ok_or_else(|| refused(format!("nothing is bound to '{}'", own.name)))?;
            Ok(Parameter {
                launch: *number,
                binding,
                has_length: own.has_length,
                least_bytes: own.least_bytes,
                writable: own.writable,
            })
        });
        let parameters = parameters.collect::<Result<Vec<_>, Refused>>()?;
        let entry = std::ffi::CString::new(written.entry).map_err(|e| refused(e.to_string()))?;
        let load = |anew: bool| {
            let cubin = self.compiler.compile(&written.source, anew).map_err(refused)?;
            let loaded = gpu.call("loading a kernel", || {
                // SAFETY: the bytes are those of a whole image, which the driver checks and copies.
                let module = unsafe { result::module::load_data(cubin.bytes.as_ptr().cast::<c_void>()) }?;
                // SAFETY: the module was loaded above.
                let function = unsafe { result::module::get_function(module, entry.clone()) };
                let function = function.inspect_err(|_| {
                    // SAFETY: as above, and nothing uses it.
                    let _ = unsafe { result::module::unload(module) };
                })?;
                Ok((module, function))
            });
            Ok((cubin.stored, loaded))
        };
        let loaded = match load(false)? {
            // A file may have been damaged.
            (true, Err(error)) if !gpu.is_lost() => {
                log::debug!("a stored kernel does not load, and is compiled anew: {error}");
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

    /// The CUDA C++ of launches.
    fn write(&self, key: &Key, request: &Request) -> Result<Merged, String> {
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
            return Ok(Merged {
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
            // Others' kernels are held within their buffers; those of this project keep within them by themselves.
            bounds: match launch.custom {
                true => Bounds::Restrict,
                false => Bounds::Unchecked,
            },
            restrict: launch.restrict,
            programmatic: self.programmatic,
            unwritten: launch.unwritten.iter().map(|name| (*name).to_owned()).collect(),
            natives: !launch.custom,
            ..Options::default()
        }
    }
}
