//! Options for finding faults of kernels, drivers and memory planning.
//!
//! The environment variable `MEGANEURA_DEBUG` sets them for every session of a program, as a list with commas:
//!
//! ```text
//! MEGANEURA_DEBUG=serial,no-aliasing,dump=kernels
//! ```
//!
//! They change a session's copy of its plan, never the plan itself, so cached or printed plans do not change. They work
//! on every backend. If `serial` makes results right, the cause may be a hazard between dispatches; if `no-aliasing`
//! does, buffers may share memory too early. [`Session::step_debug`](crate::Session::step_debug) finds the first NaN.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::Device;
use crate::cache::save_plan;
use crate::error::{Error, Result};
use crate::files::write_atomically;
use crate::graph::Graph;
use crate::plan::ExecutionPlan;
use crate::plan::memory::MemoryLayout;

/// Environment variable that sets the options, as a list with commas.
pub const DEBUG_VARIABLE: &str = "MEGANEURA_DEBUG";

/// Options that trade speed for diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugOptions {
    /// Every dispatch waits for the one before (`serial`).
    pub serial: bool,
    /// No buffer shares memory with another (`no-aliasing`).
    pub no_aliasing: bool,
    /// Folder for the sources of generated kernels (`dump=FOLDER`); created if absent. Each plan
    /// gets a subfolder `plan-N` with a file for each kernel, named after its dispatch, and the
    /// plan as text.
    pub dump: Option<PathBuf>,
}

impl DebugOptions {
    /// Returns the options that [`DEBUG_VARIABLE`] sets; none if it is not set, or empty.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown word.
    pub fn from_environment() -> Result<Self> {
        match std::env::var_os(DEBUG_VARIABLE) {
            Some(value) => DebugOptions::parse(&value.to_string_lossy()),
            None => Ok(DebugOptions::default()),
        }
    }

    /// Parses options in the syntax of the environment variable.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown word.
    pub fn parse(text: &str) -> Result<Self> {
        let mut options = DebugOptions::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match word.split_once('=') {
                None if word == "serial" => options.serial = true,
                None if word == "no-aliasing" => options.no_aliasing = true,
                Some(("dump", folder)) if !folder.is_empty() => options.dump = Some(folder.into()),
                _ => {
                    return Err(Error::Config {
                        origin: DEBUG_VARIABLE.into(),
                        message: format!("expected serial, no-aliasing or dump=FOLDER, found '{word}'"),
                    });
                }
            }
        }
        Ok(options)
    }

    /// Creates the folder for kernels, if requested, so that a folder that cannot be written is
    /// reported early.
    ///
    /// # Errors
    /// [`Error::File`] with the folder.
    pub fn make_folder(&self) -> Result<()> {
        match &self.dump {
            Some(folder) => make(folder),
            None => Ok(()),
        }
    }

    /// Returns the plan with these options applied.
    pub(crate) fn applied<'a>(&self, plan: &'a ExecutionPlan) -> Cow<'a, ExecutionPlan> {
        let mut plan = Cow::Borrowed(plan);
        if self.serial {
            let plan = plan.to_mut();
            for segment in &plan.segments {
                // Dispatches are sorted by level, so one level per dispatch preserves the order of
                // dependent ones.
                for (level, dispatch) in (0..).zip(&mut plan.dispatches[segment.range()]) {
                    dispatch.level = level;
                }
            }
        }
        if self.no_aliasing {
            let plan = plan.to_mut();
            let borrowed = std::mem::take(&mut plan.memory.borrowed);
            plan.memory = MemoryLayout {
                borrowed,
                ..MemoryLayout::default()
            };
        }
        plan
    }

    /// Writes the plan and its kernels, if requested.
    ///
    /// # Errors
    /// A kernel that cannot be generated; a folder that cannot be written.
    pub(crate) fn dump_kernels(&self, device: &dyn Device, plan: &ExecutionPlan) -> Result<()> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let Some(folder) = &self.dump else { return Ok(()) };
        let folder = folder.join(format!("plan-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        make(&folder)?;
        write(&folder.join("plan.txt"), &plan.to_string())?;
        // `meganeura diff` reads this file.
        save_plan(plan, &Graph::new(), folder.join("plan.ron"))?;
        for kernel in device.kernel_sources(plan)? {
            let name = plan
                .dispatches
                .get(kernel.dispatch)
                .map_or("", |d| d.kernel.name.as_str());
            let name: String = name
                .chars()
                .map(|c| if c.is_alphanumeric() { c } else { '_' })
                .collect();
            let file = format!("{:04}-{}-{name}.{}", kernel.dispatch, kernel.part, kernel.language);
            write(&folder.join(file), &kernel.text)?;
        }
        Ok(())
    }
}

fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| {
        Error::file(
            folder,
            format!("could not be created: {error}"),
            format!("set dump in {DEBUG_VARIABLE} to a writable folder"),
        )
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, |writer| writer.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_options() {
        assert_eq!(DebugOptions::parse(" , ").expect("nothing"), DebugOptions::default());
        let all = DebugOptions {
            serial: true,
            no_aliasing: true,
            dump: Some("a/b".into()),
        };
        assert_eq!(DebugOptions::parse("no-aliasing, dump=a/b,serial").expect("all"), all);
        for wrong in ["seriel", "dump", "dump=", "serial=1"] {
            let error = DebugOptions::parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains(wrong) && error.contains("dump=FOLDER"), "{error}");
        }
    }
}
