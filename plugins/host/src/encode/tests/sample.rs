//! A plan for tests in which every field has a unique value, and the expected result of decoding it.

use std::sync::Arc;

use meganeura_core::DType;
use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::ops::OpRef;
use meganeura_core::plan::{
    BufferRef, Dispatch, ExecutionPlan, KernelRef, MemoryLayout, Operand, Segment, StateBuffer,
};
use meganeura_core::precision::Precision;
use meganeura_core::program::{Program, Slot, Step};
use meganeura_core::registry;
use meganeura_core::shape::{Shape, TensorType};
use meganeura_plugin_abi as abi;
use meganeura_plugin_abi::view::{
    self, BufferView, DispatchView, OperandView, PlanView, ProgramView, SegmentView, SlotView, StepView, Value,
};

pub(super) fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).expect("small"))
}

fn op(name: &str) -> OpRef {
    registry::op(name).expect("it exists")
}

/// Returns a program of four calls; the third has two results, of which the second is used.
fn program() -> Program {
    let step = |name: &str, attrs: Attrs, inputs: &[Slot]| Step {
        op: op(name),
        attrs,
        inputs: inputs.to_vec(),
    };
    let steps = vec![
        step("core.add", Attrs::new(), &[Slot::Operand(1), Slot::Operand(2)]),
        step("core.cast", Attrs::new().with("to", DType::F16), &[Slot::Step(0)]),
        step(
            "core.top_k",
            Attrs::new().with("k", 3i64).with("axis", 5i64),
            &[Slot::Operand(0)],
        ),
        step(
            "core.mul",
            Attrs::new(),
            &[Slot::Step(2), Slot::Port { step: 2, port: 1 }],
        ),
    ];
    let results = vec![Slot::Port { step: 2, port: 1 }, Slot::Step(3), Slot::Step(1)];
    Program::new(3, steps, results).expect("a program")
}

fn operand(buffer: u32, dtype: DType, dims: &[usize]) -> Operand {
    Operand {
        buffer: BufferRef(buffer),
        ty: ty(dtype, dims),
    }
}

fn dispatch(
    name: &str,
    version: u32,
    level: u32,
    attrs: Attrs,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
) -> Dispatch {
    Dispatch {
        kernel: KernelRef {
            name: name.into(),
            version,
        },
        attrs,
        inputs,
        outputs,
        level,
        label: format!("label {version} of ‘{name}’"),
        source: None,
        use_coop: false,
        variant: None,
    }
}

/// Returns an attribute of each kind.
pub(super) fn attributes() -> Attrs {
    Attrs::new()
        .with("int", -7i64)
        .with("ints", Attr::Ints(vec![8, -9, i64::MIN]))
        .with("float", -0.125)
        .with("flag", true)
        .with("other flag", false)
        .with("text", Attr::Str("wörd".into()))
        .with("dtype", DType::BF16)
        .with("program", Attr::Program(Arc::new(program())))
        .with("no ints", Attr::Ints(vec![]))
}

pub(super) fn sample() -> ExecutionPlan {
    let types = vec![
        ty(DType::F32, &[2, 3]),
        ty(DType::U32, &[5]),
        ty(DType::F32, &[7]),
        ty(DType::F32, &[2]),
        ty(DType::BF16, &[]),
        ty(DType::F32, &[5, 3]),
        ty(DType::F32, &[3, 2]),
        ty(DType::I32, &[3]),
        ty(DType::F16, &[1, 6, 1]),
        ty(DType::F32, &[1]),
    ];
    let name = |name: &str, buffer: u32| (name.to_owned(), BufferRef(buffer));
    let gather = Attrs::new().with("axis", 0i64);
    ExecutionPlan {
        precision: Precision::Mixed,
        buffers: types.iter().map(TensorType::bytes).collect(),
        buffer_types: types,
        param_buffers: vec![name("wéight", 0)],
        input_buffers: vec![name("ids", 1)],
        constant_buffers: vec![(BufferRef(3), vec![1.5, -2.5])],
        raw_constant_buffers: vec![(BufferRef(7), (0..12).collect())],
        state_buffers: vec![StateBuffer {
            name: "moment".into(),
            buffer: BufferRef(2),
            fill: 0.25,
            optimizer: true,
            packed: None,
        }],
        scalar_buffers: vec![name("rate", 4)],
        output_buffers: vec![BufferRef(5), BufferRef(6)],
        gradient_buffers: vec![name("wéight", 6)],
        memory: MemoryLayout {
            bytes: 6000,
            slab: None,
            // The last one ends with the arena.
            offsets: vec![512, 1024, 256, 2048, 768, 3072, 4096, 5120, 5632, 5996],
            borrowed: Vec::new(),
        },
        dispatches: vec![
            dispatch(
                "core.assign",
                11,
                2,
                Attrs::new(),
                vec![operand(2, DType::F32, &[7]), operand(5, DType::F32, &[7])],
                vec![operand(2, DType::F32, &[7])],
            ),
            dispatch(
                "core.gather",
                12,
                3,
                gather,
                vec![operand(1, DType::U32, &[5]), operand(0, DType::F32, &[2, 3])],
                vec![operand(5, DType::F32, &[5, 3])],
            ),
            dispatch(
                "core.fused",
                13,
                1,
                attributes(),
                vec![operand(8, DType::F16, &[6]), operand(7, DType::I32, &[1, 3])],
                vec![operand(0, DType::F32, &[6]), operand(4, DType::BF16, &[1])],
            ),
        ],
        segments: vec![
            Segment {
                name: "first".into(),
                first: 0,
                count: 2,
                skip_if: None,
                once: false,
            },
            Segment {
                name: "second".into(),
                first: 2,
                count: 1,
                skip_if: Some(BufferRef(9)),
                once: false,
            },
        ],
        ..ExecutionPlan::default()
    }
}

fn buffer(offset: u64, bytes: usize, dtype: view::DType, dims: &[usize], flags: u32, name: &str) -> BufferView {
    BufferView {
        bytes,
        offset,
        dtype,
        dims: dims.to_vec(),
        flags,
        name: name.into(),
        fill: 0.0,
        data: Vec::new(),
    }
}

fn read_buffers() -> Vec<BufferView> {
    use view::DType::{BF16, F16, F32, I32, U32};
    let floats: Vec<u8> = [1.5f32, -2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    vec![
        buffer(512, 24, F32, &[2, 3], abi::BUFFER_PARAMETER, "wéight"),
        buffer(1024, 20, U32, &[5], abi::BUFFER_INPUT, "ids"),
        BufferView {
            fill: 0.25,
            ..buffer(256, 28, F32, &[7], abi::BUFFER_STATE | abi::BUFFER_EXPOSED, "moment")
        },
        BufferView {
            data: floats,
            ..buffer(2048, 8, F32, &[2], abi::BUFFER_CONSTANT, "")
        },
        buffer(768, 2, BF16, &[], abi::BUFFER_SCALAR, "rate"),
        buffer(3072, 60, F32, &[5, 3], abi::BUFFER_OUTPUT, ""),
        buffer(4096, 24, F32, &[3, 2], abi::BUFFER_OUTPUT | abi::BUFFER_GRADIENT, ""),
        BufferView {
            data: (0..12).collect(),
            ..buffer(5120, 12, I32, &[3], abi::BUFFER_CONSTANT, "")
        },
        buffer(5632, 12, F16, &[1, 6, 1], 0, ""),
        buffer(5996, 4, F32, &[1], 0, ""),
    ]
}

pub(super) fn read_operand(buffer: u32, dtype: view::DType, dims: &[usize]) -> OperandView {
    OperandView {
        buffer,
        dtype,
        dims: dims.to_vec(),
    }
}

fn read_program() -> ProgramView {
    let step = |kernel: &str, attributes: Vec<(String, Value)>, inputs: Vec<SlotView>| StepView {
        kernel: kernel.into(),
        version: op(kernel).version(),
        attributes,
        inputs,
    };
    let result = |step, port| SlotView::Result { step, port };
    let cast = vec![("to".into(), Value::DType(view::DType::F16))];
    let top = vec![("k".into(), Value::Int(3)), ("axis".into(), Value::Int(5))];
    ProgramView {
        operands: 3,
        steps: vec![
            step("core.add", vec![], vec![SlotView::Operand(1), SlotView::Operand(2)]),
            step("core.cast", cast, vec![result(0, 0)]),
            step("core.top_k", top, vec![SlotView::Operand(0)]),
            step("core.mul", vec![], vec![result(2, 0), result(2, 1)]),
        ],
        results: vec![result(2, 1), result(3, 0), result(1, 0)],
    }
}

pub(super) fn read_attributes() -> Vec<(String, Value)> {
    let values = [
        ("int", Value::Int(-7)),
        ("ints", Value::Ints(vec![8, -9, i64::MIN])),
        ("float", Value::Float(-0.125)),
        ("flag", Value::Bool(true)),
        ("other flag", Value::Bool(false)),
        ("text", Value::Text("wörd".into())),
        ("dtype", Value::DType(view::DType::BF16)),
        ("program", Value::Program(read_program())),
        ("no ints", Value::Ints(vec![])),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

fn read_dispatches() -> Vec<DispatchView> {
    use view::DType::{BF16, F16, F32, I32, U32};
    let all = DispatchView {
        kernel: "core.assign".into(),
        version: 11,
        label: "label 11 of ‘core.assign’".into(),
        level: 2,
        inputs: vec![read_operand(2, F32, &[7]), read_operand(5, F32, &[7])],
        outputs: vec![read_operand(2, F32, &[7])],
        attributes: vec![],
        index: None,
    };
    vec![
        all,
        DispatchView {
            kernel: "core.gather".into(),
            version: 12,
            label: "label 12 of ‘core.gather’".into(),
            level: 3,
            inputs: vec![read_operand(1, U32, &[5]), read_operand(0, F32, &[2, 3])],
            outputs: vec![read_operand(5, F32, &[5, 3])],
            attributes: vec![("axis".into(), Value::Int(0))],
            index: Some((0, 2)),
        },
        DispatchView {
            kernel: "core.fused".into(),
            version: 13,
            label: "label 13 of ‘core.fused’".into(),
            level: 1,
            inputs: vec![read_operand(8, F16, &[6]), read_operand(7, I32, &[1, 3])],
            outputs: vec![read_operand(0, F32, &[6]), read_operand(4, BF16, &[1])],
            attributes: read_attributes(),
            index: None,
        },
    ]
}

pub(super) fn read_whole() -> PlanView {
    let segment = |name: &str, dispatches, skip_if| SegmentView {
        name: name.into(),
        dispatches,
        skip_if,
    };
    PlanView {
        arena_bytes: 6000,
        mixed_precision: true,
        buffers: read_buffers(),
        dispatches: read_dispatches(),
        segments: vec![segment("first", 0..2, None), segment("second", 2..3, Some(9))],
    }
}
