//! Tests that the reader of the interface decodes the plans that this crate encodes.

mod damage;
mod sample;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::plan::MemoryLayout;
use meganeura_core::precision::Precision;
use meganeura_core::{DType, Error};
use meganeura_plugin_abi as abi;
use meganeura_plugin_abi::plain;
use meganeura_plugin_abi::view::{self, DispatchView, PlanView};

use super::{ALIGNMENT, call, plan};
use sample::{attributes, read_attributes, read_operand, read_whole, sample, ty};

fn encoded() -> Vec<u8> {
    plan(&sample()).expect("small").to_vec()
}

/// Returns an encoded call that equals the last dispatch of the sample plan.
fn encoded_call() -> Vec<u8> {
    let attrs = attributes();
    let (inputs, outputs) = ([ty(DType::F16, &[6])], [ty(DType::F32, &[2, 3]), ty(DType::I32, &[])]);
    let kernel = KernelDesc {
        name: "core.fused",
        version: 14,
        attrs: &attrs,
        inputs: &inputs,
        outputs: &outputs,
    };
    call(&kernel).expect("small").to_vec()
}

#[test]
fn every_field_is_read_as_it_was_meant() {
    let read = PlanView::read(&encoded()).expect("a plan");
    let wanted = read_whole();
    // Compare one by one, so that a difference is easy to see.
    for (i, (read, wanted)) in read.buffers.iter().zip(&wanted.buffers).enumerate() {
        assert_eq!(read, wanted, "buffer {i}");
    }
    for (read, wanted) in read.dispatches.iter().zip(&wanted.dispatches) {
        assert_eq!(read, wanted);
    }
    assert_eq!(read, wanted);

    let mut plain = sample();
    plain.precision = Precision::F32;
    plain.memory = MemoryLayout::default();
    let read = PlanView::read(&plan(&plain).expect("small")).expect("a plan");
    assert!(!read.mixed_precision);
    // Without sharing: ten buffers of at most 64 bytes.
    assert_eq!(read.arena_bytes, 640);
    assert_eq!(
        read.buffers.iter().map(|b| b.offset).collect::<Vec<_>>(),
        (0..640).step_by(64).collect::<Vec<_>>()
    );
}

#[test]
fn a_call_is_read_as_it_was_meant() {
    use view::DType::{F16, F32, I32};
    let bytes = encoded_call();
    let wanted = DispatchView {
        kernel: "core.fused".into(),
        version: 14,
        label: "core.fused".into(),
        level: 0,
        inputs: vec![read_operand(abi::NONE, F16, &[6])],
        outputs: vec![read_operand(abi::NONE, F32, &[2, 3]), read_operand(abi::NONE, I32, &[])],
        attributes: read_attributes(),
        index: None,
    };
    assert_eq!(PlanView::read_call(&bytes).expect("a call"), wanted);
    assert_eq!(PlanView::read(&bytes).expect("a plan").dispatches, [wanted]);
    // With an operand that holds indices.
    let attrs = Attrs::new().with("axis", 1i64);
    let inputs = [ty(DType::U32, &[4]), ty(DType::F32, &[2, 9])];
    let kernel = KernelDesc {
        name: "core.gather",
        version: 1,
        attrs: &attrs,
        inputs: &inputs,
        outputs: &[ty(DType::F32, &[2, 4])],
    };
    let call = PlanView::read_call(&call(&kernel).expect("small")).expect("a call");
    assert_eq!(call.index, Some((0, 9)));
}

#[test]
fn plans_and_what_is_in_them_begin_where_structures_may() {
    for _ in 0..20 {
        let block = plan(&sample()).expect("small");
        assert_eq!(block.as_ptr() as usize % ALIGNMENT, 0);
        let header: abi::Plan = plain::read(&block, 0).expect("it is there");
        assert_eq!(header.header_size as usize, size_of::<abi::Plan>());
        assert_eq!(header.total_bytes as usize, block.len());
        let buffer = |i: u64| -> abi::Buffer {
            let place = header.buffers.offset + i * u64::from(header.buffers.stride);
            plain::read(&block, place).expect("it is there")
        };
        for constant in [3, 7] {
            assert_eq!(buffer(constant).data_offset as usize % ALIGNMENT, 0);
        }
        assert_eq!(header.operands.offset as usize % ALIGNMENT, 0);
    }
}

#[test]
fn what_has_no_number_is_an_error() {
    for dtype in DType::ALL {
        let number = super::dtype(dtype).expect("it has one");
        assert_eq!(
            view::DType::from_number(number).map(view::DType::bytes),
            dtype.storage_bytes(1)
        );
    }
    assert!(matches!(super::number(usize::MAX), Err(Error::InvalidPlan { .. })));
    let sizes = [usize::MAX - 8, 64];
    assert!(matches!(super::side_by_side(&sizes), Err(Error::InvalidPlan { .. })));
}
