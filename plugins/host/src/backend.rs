//! Backend that forwards all calls to a loaded plugin.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use meganeura_core::backend::{
    Backend, BackendInfo, Capabilities, CostModel, Device, DeviceInfo, DeviceKind, Executable, KernelDesc, StepArgs,
    StepStats, Support, Ticket,
};
use meganeura_core::config::Config;
use meganeura_core::plan::{BufferRef, ExecutionPlan};
use meganeura_core::{DType, Error, Result};
use meganeura_plugin_abi as abi;

use crate::encode;
use crate::library::{Failure, Plugin, array_text};

/// Maximum number of devices; a larger number is an error of the plugin.
const MAX_DEVICES: u32 = 256;

/// Calls a function of the plugin's table, whose pointers were checked when the plugin was loaded.
macro_rules! call {
    ($plugin:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $plugin.table().$function {
            // SAFETY: called as the interface specifies: with objects that the plugin returned and
            // that were not freed, and with memory that lives during the call.
            Some(function) => unsafe { function($($argument),*) },
            None => return Err($plugin.broken(concat!("it has no function ", stringify!($function)))),
        }
    };
}

/// Calls a function of the plugin's table that returns a status, and converts the status to a result.
macro_rules! checked {
    ($plugin:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let status = call!($plugin, $function($($argument),*));
        // SAFETY: the function returned it just now.
        unsafe { $plugin.take(status) }
    }};
}

fn lend(bytes: &[u8]) -> abi::Bytes {
    abi::Bytes {
        data: bytes.as_ptr(),
        len: bytes.len() as u64,
    }
}

/// The backend of a plugin.
#[derive(Clone, Debug)]
pub(crate) struct PluginBackend {
    pub(crate) plugin: Arc<Plugin>,
}

impl PluginBackend {
    /// Returns the number of devices.
    fn count(&self, settings: &str) -> Result<u32> {
        let plugin = &self.plugin;
        let mut count = 0;
        let outcome = checked!(plugin, device_count(lend(settings.as_bytes()), &mut count));
        outcome.map_err(|failure| failure.plain(plugin))?;
        if count > MAX_DEVICES {
            return Err(plugin.broken(format!(
                "it says to have {count} devices; at most {MAX_DEVICES} make sense"
            )));
        }
        Ok(count)
    }

    fn describe(&self, settings: &str, index: u32) -> Result<(DeviceInfo, Capabilities, String)> {
        let plugin = &self.plugin;
        // SAFETY: all zeros are a description, of numbers and characters.
        let mut info: abi::DeviceInfo = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<abi::DeviceInfo>() as u32;
        let outcome = checked!(plugin, device_info(lend(settings.as_bytes()), index, &mut info));
        outcome.map_err(|failure| failure.plain(plugin))?;
        read_info(index, &info, plugin.name()).map_err(|what| plugin.broken(format!("device {index} {what}")))
    }
}

/// Converts a device description, or returns an error if it is invalid.
fn read_info(
    index: u32,
    info: &abi::DeviceInfo,
    backend: &str,
) -> std::result::Result<(DeviceInfo, Capabilities, String), String> {
    let text = |array: &[std::ffi::c_char], what: &str| {
        array_text(array).ok_or_else(|| format!("has a {what} without terminating zero"))
    };
    let some = |text: String| Some(text).filter(|t| !t.is_empty());
    let kind = match info.kind {
        abi::DEVICE_CPU => DeviceKind::Cpu,
        abi::DEVICE_DISCRETE_GPU => DeviceKind::DiscreteGpu,
        abi::DEVICE_INTEGRATED_GPU => DeviceKind::IntegratedGpu,
        abi::DEVICE_ACCELERATOR => DeviceKind::Accelerator,
        abi::DEVICE_SOFTWARE => DeviceKind::Software,
        other => return Err(format!("has the unknown class {other}")),
    };
    let name = text(&info.name, "name")?;
    if name.is_empty() {
        return Err("has no name".into());
    }
    for (what, rate) in [
        ("bytes_per_second", info.bytes_per_second),
        ("flops_per_second", info.flops_per_second),
        ("half_flops_per_second", info.half_flops_per_second),
    ] {
        if !(rate.is_finite() && rate > 0.0) {
            return Err(format!("reports {rate} as {what}; expected a finite number above 0"));
        }
    }
    let mut dtypes = Vec::new();
    for dtype in DType::ALL {
        let number = encode::dtype(dtype).map_err(|e| e.to_string())?;
        if info.dtypes & (1 << number) != 0 {
            dtypes.push(dtype);
        }
    }
    if !dtypes.contains(&DType::F32) {
        return Err("does not support f32, which is required".into());
    }
    let known = |bytes: u64| Some(bytes).filter(|&b| b > 0);
    let device = DeviceInfo {
        numeric_id: (info.flags & abi::DEVICE_HAS_ID != 0).then_some(info.numeric_id),
        memory_bytes: known(info.memory_bytes),
        driver: some(text(&info.driver, "driver")?),
        rejected: some(text(&info.rejected, "reason of its rejection")?),
        note: some(text(&info.note, "note")?),
        ..DeviceInfo::new(index as usize, name, kind)
    };
    let capabilities = Capabilities {
        name: format!("{backend}:{index}"),
        dtypes,
        max_buffer_bytes: known(info.max_buffer_bytes),
        memory_bytes: known(info.memory_bytes),
        unified_memory: info.flags & abi::DEVICE_UNIFIED != 0,
        cost: CostModel {
            launch: Duration::from_nanos(info.launch_nanos.min(1_000_000_000)),
            bytes_per_second: info.bytes_per_second,
            flops_per_second: info.flops_per_second,
            half_flops_per_second: info.half_flops_per_second,
            free_views: false,
        },
    };
    Ok((device, capabilities, text(&info.kernels, "name of its kernels")?))
}

/// Returns the section `[backend.NAME]` of the configuration as lines `key = value`.
fn settings(config: &Config, name: &str) -> Result<String> {
    let mut lines = String::new();
    for (key, value) in config.backend.get(name).into_iter().flatten() {
        let value = match value {
            toml::Value::String(text) if !text.contains('\n') => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            other => {
                return Err(Error::Config {
                    origin: config.origin(),
                    message: format!(
                        "backend.{name}.{key} is {other:?}, but settings of plugins are single lines, numbers and flags"
                    ),
                });
            }
        };
        lines += &format!("{key} = {value}\n");
    }
    Ok(lines)
}

impl Backend for PluginBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: self.plugin.name().to_owned(),
            version: self.plugin.manifest.version.clone(),
            origin: format!("plugin {}", self.plugin.path),
        }
    }

    fn devices(&self, config: &Config) -> Result<Vec<DeviceInfo>> {
        let settings = settings(config, self.plugin.name())?;
        (0..self.count(&settings)?)
            .map(|i| Ok(self.describe(&settings, i)?.0))
            .collect()
    }

    fn open(&self, index: usize, config: &Config) -> Result<Arc<dyn Device>> {
        let plugin = &self.plugin;
        let settings = settings(config, plugin.name())?;
        // Plugins need not check indices.
        let count = self.count(&settings)?;
        let number = u32::try_from(index).ok().filter(|&number| number < count);
        let number = number.ok_or_else(|| {
            let name = plugin.name();
            let there = match count {
                0 => "it has none".to_owned(),
                1 => format!("there is only {name}:0"),
                _ => format!("there are {name}:0 to {name}:{}", count - 1),
            };
            Error::backend(name, format!("it has no device {index}: {there}"))
        })?;
        let (_, capabilities, kernels) = self.describe(&settings, number)?;
        let mut device = ptr::null_mut();
        let outcome = checked!(plugin, device_open(lend(settings.as_bytes()), number, &mut device));
        outcome.map_err(|failure| failure.plain(plugin))?;
        if device.is_null() {
            return Err(plugin.broken(format!("it opened device {index}, but returned a null pointer")));
        }
        Ok(Arc::new(PluginDevice {
            open: Arc::new(OpenDevice {
                plugin: plugin.clone(),
                device,
            }),
            capabilities,
            kernels,
        }))
    }
}

/// Open device of a plugin. It is closed when the device and all its executables are dropped.
struct OpenDevice {
    plugin: Arc<Plugin>,
    device: *mut abi::Device,
}

// SAFETY: functions of plugins may be called from any thread.
unsafe impl Send for OpenDevice {}
// SAFETY: as above, also with one device at the same time.
unsafe impl Sync for OpenDevice {}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        if let Some(close) = self.plugin.table().device_close {
            // SAFETY: the plugin opened it, and it is closed once; executables hold on to it.
            unsafe { close(self.device) };
        }
    }
}

struct PluginDevice {
    open: Arc<OpenDevice>,
    capabilities: Capabilities,
    kernels: String,
}

impl PluginDevice {
    fn ask(&self, kernel: &KernelDesc) -> Result<std::result::Result<(), Failure>> {
        let call = encode::call(kernel)?;
        Ok(checked!(
            self.open.plugin,
            device_supports(self.open.device, lend(&call))
        ))
    }
}

impl Device for PluginDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        match self.ask(kernel) {
            Ok(Ok(())) => Support::Yes,
            Ok(Err(failure)) => Support::No(failure.message),
            Err(error) => Support::No(error.to_string()),
        }
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        let Some(launches) = self.open.plugin.table().device_launches else {
            return 1;
        };
        encode::call(kernel).map_or(1, |call| {
            // SAFETY: the device is open, and the bytes live during the call.
            unsafe { launches(self.open.device, lend(&call)) }.clamp(1, 1 << 16)
        })
    }

    fn kernels(&self) -> String {
        // Another build may compute differently, so cached plans are invalidated.
        format!(
            "{} {} {}",
            self.open.plugin.manifest.version, self.open.plugin.sha256, self.kernels
        )
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        let plugin = &self.open.plugin;
        let bytes = encode::plan(plan)?;
        let mut executable = ptr::null_mut();
        let outcome = checked!(plugin, device_compile(self.open.device, lend(&bytes), &mut executable));
        outcome.map_err(|failure| failure.about_plan(plugin, plan))?;
        if executable.is_null() {
            return Err(plugin.broken("it compiled a plan, but returned a null pointer"));
        }
        Ok(Box::new(PluginExecutable {
            open: self.open.clone(),
            executable,
            sizes: plan.buffers.clone(),
            segments: plan.segments.len(),
            labels: plan.dispatches.iter().map(|d| d.label.clone()).collect(),
            scalars: Vec::with_capacity(plan.scalar_buffers.len()),
            numbers: Vec::with_capacity(plan.segments.len()),
            unusable: None,
        }))
    }
}

struct PluginExecutable {
    open: Arc<OpenDevice>,
    executable: *mut abi::Executable,
    /// Size of each buffer in bytes. Accesses are checked against it, so that the plugin never gets one that is out of
    /// bounds.
    sizes: Vec<usize>,
    segments: usize,
    labels: Vec<String>,
    /// Memory for the arguments of a step, reused so that steps do not allocate.
    scalars: Vec<abi::Scalar>,
    numbers: Vec<u32>,
    /// Reason why the executable cannot be used any more; `None` if it can.
    unusable: Option<String>,
}

// SAFETY: functions of plugins may be called from any thread; calls with one executable do not
// overlap, as all take it mutably except the query of progress, which by the rules may overlap only
// with itself.
unsafe impl Send for PluginExecutable {}

impl Drop for PluginExecutable {
    fn drop(&mut self) {
        if let Some(free) = self.open.plugin.table().executable_free {
            // SAFETY: the plugin made it, and it is freed once.
            unsafe { free(self.executable) };
        }
    }
}

impl PluginExecutable {
    fn check(&self, buffer: BufferRef, offset: u64, len: usize) -> Result<()> {
        self.check_usable()?;
        let size = self.sizes.get(buffer.index()).map(|&s| s as u64);
        match offset.checked_add(len as u64) {
            Some(end) if size.is_some_and(|size| end <= size) => Ok(()),
            _ => {
                let message = format!("{len} bytes at {offset} are outside of buffer {buffer}");
                Err(Error::backend(self.open.plugin.name(), message))
            }
        }
    }

    fn check_usable(&self) -> Result<()> {
        match &self.unusable {
            None => Ok(()),
            Some(why) => Err(Error::Plugin {
                plugin: self.open.plugin.name().to_owned(),
                message: format!("this session cannot be used any more: {why}"),
                remedy: "build the session again".into(),
            }),
        }
    }

    /// Converts a failure to an error. Records a failure that makes the executable unusable.
    fn settle(&mut self, outcome: std::result::Result<(), Failure>) -> Result<()> {
        let Err(failure) = outcome else { return Ok(()) };
        if failure.unusable {
            self.unusable = Some(failure.message.clone());
        }
        if failure.code == abi::STATUS_INDEX_OUT_OF_RANGE {
            let [dispatch, index, rows] = failure.detail;
            let label = usize::try_from(dispatch).ok().and_then(|d| self.labels.get(d));
            return Err(Error::IndexOutOfRange {
                label: label.cloned().unwrap_or_else(|| self.open.plugin.name().to_owned()),
                index: u32::try_from(index).unwrap_or(u32::MAX),
                rows: usize::try_from(rows).unwrap_or(usize::MAX),
            });
        }
        Err(failure.plain(&self.open.plugin))
    }

    fn progress(&self) -> Option<abi::Progress> {
        // An unusable executable may only be freed.
        if self.unusable.is_some() {
            return None;
        }
        let progress = self.open.plugin.table().executable_progress?;
        let mut found = new_progress();
        // SAFETY: the executable is not freed yet, and `found` lives during the call.
        unsafe { progress(self.executable, &mut found) };
        Some(found)
    }
}

fn new_progress() -> abi::Progress {
    abi::Progress {
        struct_size: size_of::<abi::Progress>() as u32,
        reserved: 0,
        device_nanos: 0,
        unsettled: 0,
        given_up: 0,
    }
}

impl Executable for PluginExecutable {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(buffer, offset, bytes.len())?;
        let plugin = &self.open.plugin;
        let outcome = checked!(plugin, executable_write(self.executable, buffer.0, offset, lend(bytes)));
        self.settle(outcome)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(buffer, offset, bytes.len())?;
        let (plugin, len) = (&self.open.plugin, bytes.len() as u64);
        let outcome = checked!(
            plugin,
            executable_read(self.executable, buffer.0, offset, bytes.as_mut_ptr(), len)
        );
        self.settle(outcome)
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        self.check_usable()?;
        self.numbers.clear();
        if let Some(segment) = args.segments.iter().find(|&&s| s >= self.segments) {
            return Err(Error::misuse(
                format!("there is no segment {segment}"),
                format!("the plan has {}", self.segments),
            ));
        }
        self.numbers.extend(args.segments.iter().map(|&s| s as u32));
        self.scalars.clear();
        for (buffer, bytes) in args.scalars {
            let size = self.sizes.get(buffer.index()).copied().unwrap_or(0);
            // Fails for a buffer that does not exist.
            self.check(*buffer, 0, size.min(bytes.len()).max(1))?;
        }
        self.scalars
            .extend(args.scalars.iter().map(|(buffer, bytes)| abi::Scalar {
                buffer: buffer.0,
                bytes: *bytes,
            }));
        let step = abi::Step {
            struct_size: size_of::<abi::Step>() as u32,
            segment_count: self.numbers.len() as u32,
            segments: self.numbers.as_ptr(),
            scalars: self.scalars.as_ptr(),
            scalar_count: self.scalars.len() as u32,
            reserved: 0,
        };
        let mut ticket = 0;
        let plugin = &self.open.plugin;
        let outcome = checked!(plugin, executable_run(self.executable, &step, &mut ticket));
        self.settle(outcome)?;
        Ok(Ticket(ticket))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        self.check_usable()?;
        let mut found = new_progress();
        let plugin = &self.open.plugin;
        let outcome = checked!(plugin, executable_wait(self.executable, ticket.0, &mut found));
        self.settle(outcome)?;
        Ok(StepStats {
            device_time: Some(found.device_nanos).filter(|&n| n > 0).map(Duration::from_nanos),
        })
    }

    fn in_flight(&self) -> usize {
        self.progress().map_or(0, |p| usize::try_from(p.unsettled).unwrap_or(0))
    }

    fn rolled_back(&self) -> u64 {
        self.progress().map_or(0, |p| p.given_up)
    }
}
