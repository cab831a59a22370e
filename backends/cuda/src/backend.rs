//! The CUDA backend, which lists and opens the GPUs that NVIDIA's driver finds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use meganeura_core::backend::{Backend, BackendInfo, Device, DeviceInfo, Fact};
use meganeura_core::config::Config;
use meganeura_core::{Error, Result};

use crate::cublaslt::CublasLt;
use crate::cudnn::Cudnn;
use crate::device::CudaDevice;
use crate::driver::{Driver, devices};
use crate::gpu::NAME;
use crate::handle::Handle;
use crate::nvrtc::Nvrtc;
use crate::settings::Settings;

/// A backend for NVIDIA's GPUs, through the CUDA driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaBackend;

impl Backend for CudaBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            name: NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            origin: format!("crate {}", env!("CARGO_PKG_NAME")),
        }
    }

    fn devices(&self, _: &Config) -> Result<Vec<DeviceInfo>> {
        // A missing driver is not an error. It is the reason why there are no devices.
        let (Ok(driver), Ok(found)) = (Driver::get(), devices()) else {
            return Ok(Vec::new());
        };
        let mut all: Vec<DeviceInfo> = found.iter().enumerate().map(|(i, p)| p.describe(i, driver)).collect();
        if !all.is_empty()
            && let Err(why) = Nvrtc::open()
        {
            for info in all.iter_mut().filter(|info| info.rejected.is_none()) {
                info.rejected = Some(why.clone());
            }
        }
        Ok(all)
    }

    /// Returns a higher preference than other interfaces to the same card, because this backend supports features that
    /// they lack: several kernels in one submission without the host, and larger tensor-core matrices.
    fn preference(&self) -> u32 {
        1
    }

    fn self_test(&self, index: usize, config: &Config) -> Result<()> {
        self.open_device(index, config)?.self_test()
    }

    fn unavailable_reason(&self) -> Option<String> {
        match devices() {
            Ok(found) if found.is_empty() => Some("the driver lists none".into()),
            Ok(_) => None,
            Err(why) => Some(why),
        }
    }

    fn environment(&self) -> Vec<Fact> {
        let driver = Driver::get().map_or_else(|why| why, |driver| format!("CUDA {}", driver.version_text()));
        let nvrtc = Nvrtc::open().map_or_else(
            |why| why,
            |nvrtc| {
                let (major, minor) = nvrtc.version();
                format!("version {major}.{minor}")
            },
        );
        let library =
            CublasLt::open(None).map_or_else(|why| why, |library| format!("version {}", library.version_text()));
        vec![
            Fact::new("driver", driver),
            Fact::new("NVRTC", nvrtc),
            Fact::new("cuBLASLt", library),
            Fact::new(
                "cuDNN",
                Cudnn::available_version().map_or_else(|why| why, |version| format!("version {version}")),
            ),
            Fact::new(
                "NCCL",
                crate::nccl::version().map_or_else(|why| why, |version| format!("version {version}")),
            ),
        ]
    }

    fn problems(&self) -> Vec<Error> {
        meganeura_shaders::host::problems(NAME)
    }

    fn open(&self, index: usize, config: &Config) -> Result<Arc<dyn Device>> {
        Ok(self.open_device(index, config)?)
    }
}

impl CudaBackend {
    /// Opens a device like [`Backend::open`], but returns the concrete type with its additional methods. Concurrent
    /// callers share the device.
    ///
    /// # Errors
    /// As [`Backend::open`].
    pub fn open_device(&self, index: usize, config: &Config) -> Result<Arc<CudaDevice>> {
        /// Key of an open device: its index and its settings.
        type DeviceKey = (usize, Settings);
        static OPEN: Mutex<BTreeMap<DeviceKey, Weak<CudaDevice>>> = Mutex::new(BTreeMap::new());
        let failed = |why| Error::backend(NAME, why);
        let driver = Driver::get().map_err(failed)?;
        let mut found = devices().map_err(failed)?;
        let settings = Settings::of(config)?;
        if index >= found.len() {
            return Err(failed(format!(
                "there are {} devices, so no index {index}",
                found.len()
            )));
        }
        let properties = found.swap_remove(index);
        if let Some(reason) = properties.describe(index, driver).rejected {
            return Err(failed(format!("device {index} was rejected: {reason}")));
        }
        // A panic cannot leave the map half changed.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = (index, settings);
        if let Some(device) = open.get(&opened).and_then(Weak::upgrade)
            && !device.is_lost()
        {
            return Ok(device);
        }
        let handle = Handle::open(format!("{NAME}:{index}"), properties, driver, &opened.1)?;
        let device = Arc::new(CudaDevice::new(handle, opened.1.wanted));
        open.insert(opened, Arc::downgrade(&device));
        Ok(device)
    }
}
