//! Schedules of kernels as values that can be printed and parsed.

use std::fmt;
use std::str::FromStr;

use meganeura_core::precision::Precision;

/// Kernels that have several schedules, each with its version and the names of its settings. The version is increased
/// if a change of the kernel invalidates earlier measurements. Schedules with other versions cannot be parsed.
const KERNELS: &[(&str, &[&str])] = &[
    ("matmul_direct.v2", &[]),
    // Number of rows and columns of a thread; number of parts of the summed dimension.
    ("matmul_tiled.v2", &["each", "split_k"]),
    // Number of threads that share the sum of a column.
    ("matmul_rows.v2", &["lanes", "split_k"]),
    // Number of columns of a thread.
    ("matmul_rows_wide.v2", &["columns", "split_k"]),
    // Number of columns of a thread, and of tiles of a workgroup.
    ("matmul_rows_staged.v1", &["columns", "tiles", "split_k"]),
    // Rows, columns and terms of a workgroup's step; rows and columns of a subgroup; subgroups that share the terms
    // of a step; prefetched steps; parts of the summed dimension; blocks after the last full wave, and the parts of
    // each.
    (
        "matmul_coop.v3",
        &["block", "subgroup", "sliced_k", "prefetch", "split_k", "tail"],
    ),
    // Number of threads of a row, of parts of a row, and of columns of a thread whose loop is unrolled.
    ("reduce.v2", &["lanes", "split", "unroll"]),
    // Number of parts of a row.
    ("arg_reduce.v1", &["split"]),
    ("attention_decomposed.v2", &[]),
    // Number of rows of a tile; for a gradient, number of rows of the tiles of queries and of keys.
    ("attention_tiled.v2", &["rows", "queries", "keys"]),
    ("attention_coop.v2", &["queries", "keys"]),
    // Number of keys of a tile, of threads that share a key, and of workgroups that share the keys of a query.
    ("attention_cached.v2", &["keys", "sharing", "workgroups"]),
    // Number of query heads of a workgroup, and of workgroups that share their keys.
    ("attention_cached_grouped.v1", &["heads", "workgroups"]),
    ("attention_cached_elements.v2", &[]),
];

/// Schedule of a call: the kernel with its version, and the settings. It is printed as `matmul_tiled.v2 each=4
/// split_k=2`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Schedule {
    kernel: &'static str,
    /// Settings in the order of the kernel's list.
    settings: Vec<(&'static str, Vec<usize>)>,
}

impl Schedule {
    /// Creates the schedule of a kernel without settings.
    pub(crate) fn of(kernel: &str) -> Self {
        let named = |(known, _): &&(&'static str, &[&str])| known.split('.').next() == Some(kernel);
        let kernel = KERNELS.iter().find(named).map(|(kernel, _)| *kernel);
        debug_assert!(kernel.is_some(), "a kernel of the list");
        Schedule {
            kernel: kernel.unwrap_or_default(),
            settings: Vec::new(),
        }
    }

    /// Adds a setting. Its value is a number, or several numbers such as rows and columns.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Vec<usize>>) -> Self {
        debug_assert!(self.names().contains(&name), "a setting of {}", self.kernel);
        self.settings.push((name, value.into()));
        self
    }

    /// Returns the name of the kernel with its version.
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// Returns the numbers of a setting, if the schedule has this setting.
    pub fn get(&self, name: &str) -> Option<&[usize]> {
        let found = self.settings.iter().find(|(known, _)| *known == name)?;
        Some(&found.1)
    }

    fn names(&self) -> &'static [&'static str] {
        let known = KERNELS.iter().find(|(kernel, _)| *kernel == self.kernel);
        known.map_or(&[], |(_, names)| names)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kernel)?;
        for (name, numbers) in &self.settings {
            write!(f, " {name}=")?;
            for (i, number) in numbers.iter().enumerate() {
                let times = if i == 0 { "" } else { "x" };
                write!(f, "{times}{number}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = String;

    /// Parses the output of [`Display`](fmt::Display).
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(' ');
        let kernel = words.next().unwrap_or_default();
        let known = KERNELS.iter().find(|(known, _)| *known == kernel);
        let (kernel, names) =
            known.ok_or_else(|| format!("'{kernel}' is not a kernel with schedules in this version"))?;
        let mut settings: Vec<(&'static str, Vec<usize>)> = Vec::new();
        for word in words {
            let wrong = || format!("'{word}' is no setting of {kernel}");
            let (name, numbers) = word.split_once('=').ok_or_else(wrong)?;
            let name = names.iter().find(|known| **known == name).ok_or_else(wrong)?;
            if settings.iter().any(|(known, _)| known == name) {
                return Err(format!("'{name}' is set twice"));
            }
            let numbers = numbers.split('x').map(str::parse).collect::<Result<_, _>>();
            settings.push((name, numbers.map_err(|_| wrong())?));
        }
        Ok(Schedule { kernel, settings })
    }
}

/// A class of calls for which one schedule is selected. It is determined by the kind of computation, the memory
/// layout of operands, sizes, and the precision of the plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// All properties as one text.
    pub name: String,
    /// Sizes of the current call, in the order of the name. For the numbers of rows and batches, the name contains
    /// only a range unless the number is small.
    pub sizes: Vec<usize>,
    /// Amount of work in multiplications. Classes with the most work are measured first.
    pub work: u128,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Chooser of schedules for the calls of a plan.
pub trait ScheduleChooser {
    /// Returns the precision of the plan.
    fn precision(&self) -> Precision;

    /// Returns the schedule for a class, or `None` for the default. `candidates` returns all schedules, the default
    /// one first.
    fn choose(&self, class: &Class, candidates: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule>;

    /// Reports that a call does not have a schedule, or that its kernel cannot be generated. The default schedule is
    /// then used.
    fn missing(&self, class: &Class, schedule: &Schedule) {
        let _ = (class, schedule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_parsed() {
        let schedule = Schedule::of("matmul_coop")
            .with("block", [128, 64, 32])
            .with("prefetch", [2])
            .with("tail", [24, 11]);
        let text = schedule.to_string();
        assert_eq!(text, "matmul_coop.v3 block=128x64x32 prefetch=2 tail=24x11");
        assert_eq!(text.parse(), Ok(schedule.clone()));
        assert_eq!(schedule.get("block"), Some(&[128, 64, 32][..]));
        assert_eq!((schedule.get("split_k"), schedule.kernel()), (None, "matmul_coop.v3"));
        assert_eq!(
            Schedule::of("matmul_direct").to_string().parse(),
            Ok(Schedule::of("matmul_direct"))
        );
    }

    #[test]
    fn every_kernel_is_in_the_table_of_schedules() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tuning.md");
        let page = std::fs::read_to_string(page).expect("the page");
        for (kernel, _) in KERNELS {
            assert!(
                page.contains(&format!("| `{kernel}")),
                "docs/tuning.md does not say what {kernel} is"
            );
        }
    }

    #[test]
    fn other_text_is_refused() {
        let refused = |text: &str| text.parse::<Schedule>().expect_err("no schedule");
        for (text, expected) in [
            ("", "'' is not a kernel"),
            (
                "matmul_tiled.v1 each=4",
                "'matmul_tiled.v1' is not a kernel with schedules in this version",
            ),
            ("matmul_tiled.v2 side=4", "'side=4' is no setting of matmul_tiled.v2"),
            ("matmul_tiled.v2 each", "'each' is no setting"),
            ("matmul_tiled.v2 each=4x", "'each=4x' is no setting"),
            ("matmul_tiled.v2 each=-4", "'each=-4' is no setting"),
            ("matmul_tiled.v2 each=4 each=8", "'each' is set twice"),
            ("matmul_tiled.v2  each=4", "'' is no setting"),
        ] {
            let error = refused(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
