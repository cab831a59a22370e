//! Ways to compute a call: which one is chosen, and names for them that outlive the program.
//!
//! Commonly a call is computed in the way that hand-written limits choose, the *usual* one. Whoever measures can ask for
//! another ([`ScheduleChooser`]): a call belongs to a [`Class`], and each [`Way`] has a name. A name begins with a family and its
//! version, which is raised when its kernels change such that measurements hold no more. A kind of kernels that has several
//! ways lists its families in [`FAMILIES`], and has a file `ways.rs` that names and lists them.

use std::fmt;
use std::sync::Arc;

use meganeura_core::precision::Precision;

use super::kernel::{CompileCx, Compiled};
use super::{attention, rows, tiled};

/// Families of ways, with their versions: how each name begins.
const FAMILIES: [&[&str]; 3] = [&tiled::FAMILIES, &rows::FAMILIES, &attention::FAMILIES];
/// Rows, and batches, up to which each number is a class of its own.
const EXACT_ROWS: usize = 16;

/// Whether a name is that of a way of this version.
pub fn is_known(name: &str) -> bool {
    let known = |family: &str| FAMILIES.iter().any(|families| families.contains(&family));
    name.split(' ').next().is_some_and(known)
}

/// Calls for which one way is chosen: what is computed, how operands lie in memory, sizes, and the precision of the plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// All of it, as one text.
    pub name: String,
    /// Sizes of the call at hand, in the order in which the name has them. Numbers of rows and batches are but part of a
    /// range in the name, unless there are few.
    pub sizes: Vec<usize>,
    /// What there is to do, in multiplications: those with most to do are measured first.
    pub work: u128,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The range of sizes that are one class: a power of two, and what is above the next smaller one.
pub(super) fn range(size: usize) -> String {
    match size {
        ..=EXACT_ROWS => size.to_string(),
        _ => {
            let last = size.checked_next_power_of_two().unwrap_or(usize::MAX);
            format!("{}..{last}", last / 2 + 1)
        }
    }
}

/// Chooses ways for the calls of a plan.
pub trait ScheduleChooser {
    /// Precision of the plan.
    fn precision(&self) -> Precision;

    /// The name of the way for a class, if it is not the usual one. `offered` gives the names of all that there are, the
    /// usual one first.
    fn choose(&self, class: &Class, offered: &dyn Fn() -> Vec<String>) -> Option<String>;

    /// There is no such way for a call, or no kernel can be made of it; the usual one is used.
    fn missing(&self, class: &Class, name: &str) {
        let _ = (class, name);
    }
}

/// A way to compute a call.
pub(super) trait Way {
    /// Its name, which no other way of the call has: a family, and what tells it from others of the family.
    fn name(&self) -> String;
}

/// What choices ask to compile a call to; `None` where the usual way is as good as they know, or is all that can be made.
/// `all` lists the ways, the usual one first; those of a name that came before are left out.
pub(super) fn chosen<W: Way>(
    cx: &CompileCx,
    class: impl FnOnce(Precision) -> Class,
    all: impl Fn() -> Vec<W>,
    compile: impl FnOnce(&W) -> Result<Compiled, String>,
) -> Option<Compiled> {
    let choices = cx.choices?;
    let class = class(choices.precision());
    let offered = || {
        let mut names: Vec<String> = Vec::new();
        for name in all().iter().map(Way::name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    };
    let name = choices.choose(&class, &offered)?;
    let way = all().into_iter().find(|way| way.name() == name);
    let Some(mut compiled) = way.and_then(|way| compile(&way).ok()) else {
        choices.missing(&class, &name);
        return None;
    };
    let class = Arc::new(class);
    for launch in &mut compiled.launches {
        launch.chosen = Some(class.clone());
    }
    Some(compiled)
}
