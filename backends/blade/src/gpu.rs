//! A blade-graphics context that is protected from panics of blade-graphics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blade_graphics::Context;
use meganeura_core::{Error, Result};

/// Name of the backend in selectors and messages.
pub(crate) const NAME: &str = "blade";

/// A context of blade-graphics. It is marked as lost after a panic.
pub(crate) struct Gpu {
    context: Arc<Context>,
    lost: AtomicBool,
}

impl Gpu {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Gpu {
            context,
            lost: AtomicBool::new(false),
        }
    }

    /// Returns `true` if the context is unusable.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Marks the context as lost, and returns the error.
    pub(crate) fn lose(&self, why: &str) -> Error {
        self.lost.store(true, Ordering::Release);
        Error::backend(
            NAME,
            format!("{why}; the device is lost to this session, build a new one"),
        )
    }

    /// Runs work that panics if the device is lost or out of memory. After a panic, blade's locks are poisoned, so the
    /// context is not used again.
    ///
    /// # Errors
    /// A lost device.
    pub(crate) fn guard<T>(&self, doing: &str, work: impl FnOnce(&Context) -> T) -> Result<T> {
        if self.is_lost() {
            return Err(self.lose("it failed in an earlier call"));
        }
        catch_unwind(AssertUnwindSafe(|| work(&self.context)))
            .map_err(|panic| self.lose(&format!("{doing}: {}", message(&*panic))))
    }

    /// Runs work whose panic is harmless.
    ///
    /// # Errors
    /// The panic's message.
    pub(crate) fn attempt<T>(&self, work: impl FnOnce(&Context) -> T) -> Result<T, String> {
        catch_unwind(AssertUnwindSafe(|| work(&self.context))).map_err(|panic| message(&*panic))
    }

    /// Runs work that frees a resource. Does nothing if the context is lost, because then all of its resources are
    /// freed.
    pub(crate) fn free(&self, work: impl FnOnce(&Context)) {
        if !self.is_lost() && self.attempt(work).is_err() {
            self.lost.store(true, Ordering::Release);
        }
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the driver's layer panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_loses_the_device_and_says_why() {
        // SAFETY: the function is unsafe only because it loads a driver. blade states no other requirement.
        let Ok(context) = (unsafe { Context::init(blade_graphics::ContextDesc::default()) }) else {
            // The integration tests report that there is no device.
            return;
        };
        let gpu = Gpu::new(Arc::new(context));
        assert_eq!(gpu.guard("counting", |_| 3).ok(), Some(3));
        assert_eq!(gpu.attempt(|_| panic!("refused")).err(), Some("refused".to_owned()));
        assert!(!gpu.is_lost(), "a refusal harms nothing");
        let error = gpu
            .guard("submitting", |_| panic!("GPU has crashed"))
            .expect_err("lost");
        assert!(error.to_string().contains("submitting: GPU has crashed"), "{error}");
        let error = gpu.guard("counting", |_| 3).expect_err("still lost");
        assert!(error.to_string().contains("build a new one"), "{error}");
    }
}
