//! The CPU backend, which has one device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;

use meganeura_core::backend::{
    Backend, BackendInfo, Capabilities, CostModel, Device, DeviceInfo, DeviceKind, Executable, KernelDesc,
    SharedBuffers, Support,
};
use meganeura_core::config::Config;
use meganeura_core::plan::BufferRef;
use meganeura_core::{DType, Error, ExecutionPlan, Result};

use crate::arena::{Arena, Lent};
use crate::executor::{CpuExecutable, Program, orders, out_of_memory};
use crate::kernels;
use crate::memory::host_memory;
use crate::pool::ThreadPool;

/// Name of the environment variable that sets the number of threads.
pub const THREADS_VARIABLE: &str = "MEGANEURA_THREADS";

/// The CPU backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend;

/// The host's processor together with a thread pool.
pub struct CpuDevice {
    capabilities: Capabilities,
    pool: Arc<ThreadPool>,
}

impl CpuDevice {
    /// Creates a device with `threads` threads (at least one).
    pub fn new(threads: usize) -> Self {
        CpuDevice {
            capabilities: Capabilities {
                name: "cpu".into(),
                dtypes: DType::ALL.to_vec(),
                max_buffer_bytes: None,
                memory_bytes: host_memory(),
                unified_memory: true,
                cost: CostModel {
                    launch: Duration::from_nanos(200),
                    bytes_per_second: 10e9 * threads.clamp(1, 8) as f64,
                    flops_per_second: 50e9 * threads.max(1) as f64,
                    // Kernels convert half precision while loading. The conversion is a small part
                    // of a matmul's time.
                    half_flops_per_second: 50e9 * threads.max(1) as f64,
                    free_views: false,
                },
            },
            pool: shared_pool(threads.max(1)),
        }
    }

    /// Creates a device with the number of threads of [`THREADS_VARIABLE`], of the configuration, or of processors.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid number.
    pub fn from_config(config: &Config) -> Result<Self> {
        Ok(CpuDevice::new(thread_count(config)?))
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs `job(task)` for every task in `0..tasks` on the threads of the device, and returns when all have ended. Devices
    /// with the same number of threads share them. Inside a task, a session of such a device computes on the thread of this task
    /// only. Several small sessions then finish sooner than one after the other.
    ///
    /// A task must not wait for another thread that uses a session of such a device, and must not use a device with another
    /// number of threads: both may wait forever.
    ///
    /// # Panics
    /// If a task panics.
    pub fn run(&self, tasks: usize, job: &(dyn Fn(usize) + Sync)) {
        self.pool.run(tasks, &|task, _| job(task));
    }
}

/// Returns the thread pool of this size. All devices of the process share it: the idle workers of a second
/// pool would take processor time from the first, and sessions that run at the same time take turns anyway.
fn shared_pool(threads: usize) -> Arc<ThreadPool> {
    static POOLS: Mutex<BTreeMap<usize, Weak<ThreadPool>>> = Mutex::new(BTreeMap::new());
    // A panic cannot leave the map half changed.
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&threads).and_then(Weak::upgrade) {
        return pool;
    }
    let pool = Arc::new(ThreadPool::new(threads));
    pools.retain(|_, other| other.strong_count() > 0);
    pools.insert(threads, Arc::downgrade(&pool));
    pool
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Maximum number of threads. More threads only use memory, until the system refuses and the process ends.
const MAX_THREADS: usize = 1024;

/// Caps a number of threads at [`MAX_THREADS`], or at the number of available processors if that is larger.
/// The warning names `origin` as the source of the number.
fn capped(threads: usize, origin: &str) -> usize {
    static WARNED: Once = Once::new();
    let most = MAX_THREADS.max(available_threads());
    if threads > most {
        WARNED.call_once(|| log::warn!("{origin} is {threads}, above the maximum; {most} threads are used"));
    }
    threads.min(most)
}

/// Returns the number of threads. The environment variable comes first, then the setting
/// `backend.cpu.threads`, then the number of processors.
fn thread_count(config: &Config) -> Result<usize> {
    let fail = |text: &str| Error::Config {
        origin: THREADS_VARIABLE.into(),
        message: format!("expected a number of threads of at least 1, found '{text}'"),
    };
    if let Some(value) = std::env::var_os(THREADS_VARIABLE).filter(|v| !v.is_empty()) {
        let text = value.to_string_lossy();
        let count = text.trim().parse().ok().filter(|&n| n > 0);
        return count.map(|n| capped(n, THREADS_VARIABLE)).ok_or_else(|| fail(&text));
    }
    config.check_backend("cpu", &["threads"])?;
    match config.backend_size("cpu", "threads")? {
        Some(0) => Err(Error::Config {
            origin: config.origin(),
            message: "backend.cpu.threads: expected at least 1, found 0".into(),
        }),
        Some(n) => Ok(capped(n, "backend.cpu.threads")),
        None => Ok(available_threads()),
    }
}

impl Backend for CpuBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: "cpu".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            origin: format!("crate {}", env!("CARGO_PKG_NAME")),
        }
    }

    fn devices(&self, config: &Config) -> Result<Vec<DeviceInfo>> {
        let threads = thread_count(config)?;
        let plural = if threads == 1 { "" } else { "s" };
        let name = format!(
            "{} with {threads} thread{plural}, {}",
            std::env::consts::ARCH,
            crate::vmath::detect().name()
        );
        Ok(vec![DeviceInfo::new(0, name, DeviceKind::Cpu)])
    }

    fn open(&self, index: usize, config: &Config) -> Result<Arc<dyn Device>> {
        if index != 0 {
            return Err(Error::backend(
                "cpu",
                format!("there is one device, so no index {index}"),
            ));
        }
        Ok(Arc::new(CpuDevice::from_config(config)?))
    }

    fn problems(&self) -> Vec<Error> {
        kernels::problems()
    }
}

impl Device for CpuDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        let Some(def) = kernels::find(kernel.name) else {
            return Support::No("the CPU backend has no such kernel".into());
        };
        if kernel.version != 1 {
            return Support::No(format!("the CPU backend implements version 1, not {}", kernel.version));
        }
        match (def.supports)(kernel) {
            Ok(()) => Support::Yes,
            Err(reason) => Support::No(reason),
        }
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        kernels::efficiency(kernel)
    }

    fn kernels(&self) -> String {
        format!("{} {:?}", env!("CARGO_PKG_VERSION"), kernels::registered_kernels())
    }

    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        plan.verify()?;
        // The estimate accesses no page of the arena.
        let none = SharedBuffers::new();
        let arena = Arena::new(plan, &none).map_err(out_of_memory)?;
        let (orders, _) = orders(plan, &none);
        Ok(Program::new(plan, &arena, orders)?.workspace_bytes(plan, self.pool.threads()))
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.compile_sharing(plan, &SharedBuffers::new())
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn usable_buffers(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Vec<BufferRef> {
        let (_, unreadable) = orders(plan, shared);
        let known = shared.iter().filter(|(_, shared)| shared.memory::<Lent>().is_some());
        known
            .map(|(buffer, _)| *buffer)
            .filter(|buffer| !unreadable.contains(buffer))
            .collect()
    }

    fn compile_sharing(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        let pool = self.pool.clone();
        Ok(Box::new(CpuExecutable::new(plan, pool, &self.capabilities, shared)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_a_machine_can_have_are_not_started() {
        assert_eq!(capped(3, "a setting"), 3);
        assert_eq!(capped(1_000_000, "a setting"), MAX_THREADS.max(available_threads()));
        // The environment variable would override the configuration.
        if std::env::var_os(THREADS_VARIABLE).is_none() {
            let path = std::env::temp_dir().join(format!("meganeura-threads-{}.toml", std::process::id()));
            std::fs::write(&path, "[backend.cpu]\nthreads = 100000\n").expect("written");
            let config = Config::read(&path).expect("a configuration");
            std::fs::remove_file(&path).expect("it was there");
            assert!(thread_count(&config).expect("capped") <= MAX_THREADS.max(available_threads()));
        }
    }

    /// Kernel scratch that does not fit in memory is also refused before its allocation.
    #[test]
    fn workspace_beside_the_buffers_has_to_fit() {
        let mut g = meganeura_core::Graph::new();
        let x = g.input("x", &[64, 64]);
        let y = g.causal_attention(x, x, x, 4, 4, 16);
        g.set_outputs(vec![y]);
        let mut device = CpuDevice::new(2);
        let plan = meganeura_core::plan::compile_for(&g, &device).expect("a plan");
        let planned = plan.memory_forecast().planned as u64;
        let workspace = device.workspace_bytes(&plan).expect("kernels");
        assert!(workspace > 0);
        device.capabilities.memory_bytes = Some(planned + workspace);
        assert!(device.compile(&plan).is_ok());
        device.capabilities.memory_bytes = Some(planned + workspace - 1);
        match device.compile(&plan) {
            Err(Error::OutOfMemory { requested, remedy, .. }) => {
                assert_eq!(requested as u64, planned + workspace);
                assert!(remedy.contains("workspace"), "{remedy}");
            }
            other => panic!("{:?}", other.map(|_| "compiled")),
        }
    }

    #[test]
    fn devices_share_a_pool_while_one_is_open() {
        // No other test of this process uses this number of threads.
        let (first, second) = (CpuDevice::new(5), CpuDevice::new(5));
        assert!(Arc::ptr_eq(&first.pool, &second.pool));
        assert!(!Arc::ptr_eq(&first.pool, &CpuDevice::new(6).pool));
        let pool = Arc::downgrade(&first.pool);
        drop((first, second));
        assert!(pool.upgrade().is_none(), "its threads end with the last device");
        assert_eq!(CpuDevice::new(5).threads(), 5);
    }
}
