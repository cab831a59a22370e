//! Input data for measured sessions.

use meganeura::plan::BufferRef;
use meganeura::{DType, Result, Session, TensorType};

/// Fills parameters and inputs of a session: parameters by their initializers, quantized ones with arbitrary words, inputs with
/// [`noise`] or, in half precision, like parameters, and ids with numbers below `classes`, except the inputs in `fixed`, which
/// get one value each. Unwritten memory would be read faster than other memory.
///
/// # Errors
/// Errors of the session.
pub fn feed(session: &mut Session, classes: u32, fixed: &[(&str, u32)]) -> Result<()> {
    session.try_initialize_parameters(0)?;
    let parameters = session.plan().parameters();
    for view in parameters.into_iter().filter(|view| view.ty.dtype != DType::F32) {
        session.try_set_parameter_bytes(&view.name, &packed(&view.ty))?;
    }
    let plan = session.plan();
    let of = |(name, buffer): &(String, BufferRef)| (name.clone(), plan.buffer_types[buffer.index()].clone());
    let inputs: Vec<(String, TensorType)> = plan.input_buffers.iter().map(of).collect();
    for (name, ty) in inputs {
        let len = ty.numel();
        let ids = || match fixed.iter().find(|(input, _)| *input == name) {
            Some((_, value)) => vec![*value; len],
            None => (0..len as u32)
                .map(|i| i.wrapping_mul(2_654_435_761) % classes.max(1))
                .collect(),
        };
        match ty.dtype {
            DType::U32 => session.try_set_input_u32(&name, &ids())?,
            dtype if dtype.is_half() => session.try_set_input_bytes(&name, &packed(&ty))?,
            _ => session.try_set_input(&name, &noise(len))?,
        }
    }
    Ok(())
}

/// Returns pseudo-random numbers between -1 and 1, the same each time.
pub fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state as f32 / (1u32 << 31) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Returns data of a tensor that is not `f32`: `f16` numbers near 0.01, or arbitrary words for other types.
fn packed(ty: &TensorType) -> Vec<u8> {
    match ty.dtype {
        dtype if dtype.is_half() => (0..ty.numel())
            .flat_map(|i| (0x2000 + (i % 512) as u16).to_le_bytes())
            .collect(),
        _ => (0..ty.bytes()).map(|i| (i * 131 % 251) as u8).collect(),
    }
}
