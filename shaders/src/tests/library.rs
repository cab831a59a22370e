//! Tests of matmuls that a library computes, and of packed matrices that are expanded before a matmul.

use super::*;
use crate::kernel::{LibraryEpilogue, LibraryMatmul, MatmulLibrary};

/// A library that computes every matmul.
struct Everything;

impl MatmulLibrary for Everything {
    fn takes(&self, _: &LibraryMatmul, _: usize, _: bool) -> bool {
        true
    }

    fn workspace_bytes(&self) -> usize {
        256
    }
}

/// Compiles a program whose last result has the type `output`, with the library or with cooperative matrices that round.
fn compiled(attrs: &Attrs, inputs: &[TensorType], output: &TensorType, library: bool) -> Compiled {
    let outputs = [output.clone()];
    let cx = CompileCx {
        library: library.then_some(&Everything as &dyn MatmulLibrary),
        coop: Some(coop::KINDS[0]),
        ..CompileCx::standalone(KernelDesc {
            name: "core.fused",
            version: 1,
            attrs,
            inputs,
            outputs: &outputs,
        })
    };
    compile(&cx).expect("launches")
}

#[test]
fn the_library_adds_and_scales() {
    let operands = [Slot::Operand(0), Slot::Operand(1)];
    let (left, right) = ([Slot::Step(0), Slot::Operand(2)], [Slot::Operand(2), Slot::Step(0)]);
    let whole: &[usize] = &[64, 72];
    type Case<'a> = (&'a str, &'a [Slot], &'a [usize], Option<LibraryEpilogue>);
    let cases: [Case; 6] = [
        ("core.add", &left, whole, Some(LibraryEpilogue::Add)),
        ("core.add", &right, whole, Some(LibraryEpilogue::Add)),
        ("core.mul", &right, &[], Some(LibraryEpilogue::Scale)),
        // The library does not apply a bias, a multiplication by elements, or a difference. Another launch computes
        // them from the stored result.
        ("core.add", &left, &[72], None),
        ("core.mul", &left, whole, None),
        ("core.sub", &left, whole, None),
    ];
    for (op, inputs, shape, expected) in cases {
        let attrs = program(3, &[("core.matmul", matmul(), &operands), (op, Attrs::new(), inputs)]);
        let types = [&[64, 96], &[96, 72], shape].map(|shape: &[usize]| tensor(DType::F32, shape));
        let made = compiled(&attrs, &types, &tensor(DType::F32, whole), true);
        let at = made.launches.iter().position(|launch| launch.library.is_some());
        let at = at.expect("the library's launch");
        let launch = &made.launches[at];
        let is_last = at + 1 == made.launches.len();
        let epilogue = launch.library.expect("a matmul").epilogue;
        let operands = 4 + usize::from(expected.is_some());
        let expected = (expected.unwrap_or(LibraryEpilogue::Plain), operands, expected.is_some());
        assert_eq!((epilogue, launch.bindings.len(), is_last), expected, "{op} {shape:?}");
    }
}

#[test]
fn packed_matrices_are_expanded_once_for_many_rows() {
    let calls: [(&str, Attrs, &[Slot]); 2] = [
        ("core.dequantize", Attrs::new(), &[Slot::Operand(1), Slot::Operand(2)]),
        ("core.matmul", matmul(), &[Slot::Operand(0), Slot::Step(0)]),
    ];
    let attrs = program(3, &calls);
    for (rows, library, launches) in [(512, false, 2), (64, false, 1), (512, true, 3)] {
        // The rows of the matrix consist of Q4_0 blocks.
        let inputs = [
            tensor(DType::F32, &[rows, 128]),
            tensor(DType::U32, &[128, 8 * 4]),
            tensor(DType::F16, &[128, 8]),
        ];
        let made = compiled(&attrs, &inputs, &tensor(DType::F32, &[rows, 256]), library);
        let kernels: Vec<&str> = made.launches.iter().map(|launch| launch.kernel).collect();
        // With the library, a launch also rounds the rows.
        assert_eq!(kernels.len(), launches, "{rows} rows: {kernels:?}");
        let is_expanded = made.scratch.contains(&(2 * 128 * 256));
        assert_eq!(is_expanded, rows == 512, "{:?}", made.scratch);
        assert!(!made.rounded.contains(&1), "the words stay as they are");
    }
}
