//! Epilogues that read several elements of their contraction. Rotary embeddings rotate pairs of elements.

use meganeura_core::backend::KernelDesc;
use meganeura_core::ops::FusionRole;
use meganeura_core::program::Slot;

use super::roles::is_rotation;

/// Returns the distance in columns between the two elements of a pair that a program rotates after its contraction.
/// Returns `None` if there is no rotation.
///
/// # Errors
/// Other calls also depend on several elements of the contraction, or the heads of the rotations have different
/// sizes.
pub(super) fn rotated_half(kernel: &KernelDesc) -> Result<Option<usize>, String> {
    let Ok(program) = kernel.attrs.program("program") else {
        return Ok(None);
    };
    let types = program.infer(kernel.inputs)?;
    // Number of elements of each step that is computed from the contraction.
    let mut elements: Vec<Option<usize>> = Vec::with_capacity(types.len());
    let (mut half, mut others) = (None, false);
    for (step, types) in program.steps().iter().zip(&types) {
        let of_product = |slot: &Slot| match *slot {
            Slot::Operand(_) => None,
            Slot::Step(at) | Slot::Port { step: at, .. } => elements[at as usize],
        };
        let kind = step.op.fusing();
        let Some(count) = step.inputs.iter().find_map(of_product) else {
            elements.push((kind == FusionRole::Contraction).then(|| types[0].numel()));
            continue;
        };
        if is_rotation(step.op.name()) {
            let found = step.attrs.size("head_dim")? / 2;
            // The angle must depend only on the position, not on the contraction.
            others |= half.replace(found).is_some_and(|other| other != found);
            others |= step.inputs[1..].iter().any(|slot| of_product(slot).is_some());
        } else {
            let by_element = kind == FusionRole::Pointwise || step.op.alias().is_some();
            others |= !by_element || types[0].numel() != count;
        }
        elements.push(Some(count));
    }
    match (half, others) {
        (Some(_), true) => Err("a rotation of its product stands beside other calls than elementwise ones".into()),
        (half, _) => Ok(half),
    }
}
