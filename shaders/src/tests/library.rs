//! Tests of matmuls and convolutions that a library computes, and of packed matrices that are expanded before a matmul.

use super::*;
use crate::library_calls::{DeviceLibrary, LibraryCall, LibraryEpilogue};

/// A library that computes every call.
struct Everything;

impl DeviceLibrary for Everything {
    fn takes(&self, _: &LibraryCall, _: usize, _: bool) -> bool {
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
        library: library.then_some(&Everything as &dyn DeviceLibrary),
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

const ADDEND: LibraryEpilogue = sum(true, false, false);
const BIAS: LibraryEpilogue = sum(false, true, false);

const fn sum(addend: bool, bias: bool, relu: bool) -> LibraryEpilogue {
    LibraryEpilogue::Sum { addend, bias, relu }
}

/// Returns the library's launch, and whether it is the last one.
fn library_launch(made: &Compiled) -> (&Launch, bool) {
    let at = made.launches.iter().position(|launch| launch.library.is_some());
    let at = at.expect("the library's launch");
    (&made.launches[at], at + 1 == made.launches.len())
}

#[test]
fn the_library_adds_and_scales() {
    let operands = [Slot::Operand(0), Slot::Operand(1)];
    let (left, right) = ([Slot::Step(0), Slot::Operand(2)], [Slot::Operand(2), Slot::Step(0)]);
    let whole: &[usize] = &[64, 72];
    type Case<'a> = (&'a str, &'a [Slot], &'a [usize], Option<LibraryEpilogue>);
    let cases: [Case; 7] = [
        ("core.add", &left, whole, Some(ADDEND)),
        ("core.add", &right, whole, Some(ADDEND)),
        ("core.add", &right, &[72], Some(BIAS)),
        ("core.mul", &right, &[], Some(LibraryEpilogue::Scale)),
        // The library adds no column, multiplies by no matrix, and does not subtract. Another launch computes these from
        // the stored result.
        ("core.add", &left, &[64, 1], None),
        ("core.mul", &left, whole, None),
        ("core.sub", &left, whole, None),
    ];
    for (op, inputs, shape, expected) in cases {
        let attrs = program(3, &[("core.matmul", matmul(), &operands), (op, Attrs::new(), inputs)]);
        let types = [&[64, 96], &[96, 72], shape].map(|shape: &[usize]| tensor(DType::F32, shape));
        let made = compiled(&attrs, &types, &tensor(DType::F32, whole), true);
        let (launch, is_last) = library_launch(&made);
        let epilogue = launch.library.expect("a matmul").epilogue();
        let operands = 4 + usize::from(expected.is_some());
        let expected = (expected.unwrap_or(LibraryEpilogue::PLAIN), operands, expected.is_some());
        assert_eq!((epilogue, launch.bindings.len(), is_last), expected, "{op} {shape:?}");
        let added: &[usize] = if op == "core.add" && is_last { &[2] } else { &[] };
        assert_eq!(made.rounded_with_result, added, "{op} {shape:?}");
    }
}

/// Residual block of a network of images: a convolution with a bias, a residual and a ReLU.
#[test]
fn the_library_computes_whole_residual_blocks() {
    let conv = || {
        Attrs::new()
            .with("stride", [1_u32, 1])
            .with("padding", [1_u32, 1])
            .with("dilation", [1_u32, 1])
            .with("groups", 1_u32)
    };
    let calls: [(&str, Attrs, &[Slot]); 4] = [
        ("core.conv2d_nhwc", conv(), &[Slot::Operand(0), Slot::Operand(1)]),
        ("core.add", Attrs::new(), &[Slot::Step(0), Slot::Operand(2)]),
        ("core.add", Attrs::new(), &[Slot::Operand(3), Slot::Step(1)]),
        ("core.relu", Attrs::new(), &[Slot::Step(2)]),
    ];
    let image = tensor(DType::F32, &[2, 9, 10, 16]);
    let inputs = [
        image.clone(),
        tensor(DType::F32, &[3, 3, 16, 16]),
        tensor(DType::F32, &[1, 1, 1, 16]),
        image.clone(),
    ];
    let made = compiled(&program(4, &calls), &inputs, &image, true);
    let (launch, is_last) = library_launch(&made);
    let Some(LibraryCall::Convolution(convolution)) = launch.library else {
        panic!("{:?}", launch.library)
    };
    assert_eq!((convolution.epilogue, is_last), (sum(true, true, true), true));
    // The image is rounded, and the weights are rounded and permuted.
    assert_eq!((made.launches.len(), launch.bindings.len()), (3, 6));
    assert_eq!((made.rounded, made.rounded_with_result), (vec![0, 1], vec![3, 2]));
}

#[test]
fn the_library_computes_gradients_of_convolutions() {
    let options = |attrs: Attrs| {
        attrs
            .with("stride", [2_u32, 1])
            .with("padding", [1_u32, 1])
            .with("dilation", [1_u32, 1])
            .with("groups", 1_u32)
    };
    let (image, result) = (tensor(DType::F32, &[2, 9, 10, 8]), tensor(DType::F32, &[2, 5, 10, 16]));
    let weights = tensor(DType::F32, &[3, 3, 8, 16]);
    let of_image = options(Attrs::new()).with("input_size", [9_u32, 10]);
    let of_weights = options(Attrs::new()).with("kernel_size", [3_u32, 3]);
    // The last launch converts the gradient, and permutes that by the weights.
    for (op, attrs, inputs, output) in [
        ("core.conv2d_nhwc_input_grad", of_image, [&result, &weights], &image),
        ("core.conv2d_nhwc_weight_grad", of_weights, [&image, &result], &weights),
    ] {
        let attrs = program(2, &[(op, attrs, &[Slot::Operand(0), Slot::Operand(1)])]);
        let made = compiled(&attrs, &inputs.map(TensorType::clone), output, true);
        let (launch, last) = library_launch(&made);
        assert_eq!(
            (launch.bindings.len(), last, made.launches.len()),
            (4, false, 4),
            "{op}"
        );
        let Some(LibraryCall::Convolution(convolution)) = launch.library else {
            panic!("{:?}", launch.library)
        };
        assert_eq!((convolution.divisor, made.has_rounded_result), (256, false), "{op}");
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
