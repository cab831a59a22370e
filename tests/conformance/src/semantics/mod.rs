//! Cases of the guarantees of a session beyond the values of operators.

mod caches;
mod exact;
mod kernel_limits;
mod limits;
mod order;
mod paged;
mod sessions;
mod shapes;
mod steps;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    [
        caches::cases(),
        kernel_limits::cases(),
        limits::cases(),
        order::cases(),
        paged::cases(),
        shapes::cases(),
        steps::cases(),
        sessions::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
