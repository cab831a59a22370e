//! Tests of third-party kernels: when they are used, and the outcome if one is rejected or does not end.
// This is a separate binary, because its operators and kernels are registered for the whole process.

mod common;

use std::sync::{Arc, Once};

use meganeura_core::attrs::{AttrKind, Attrs};
use meganeura_core::backend::shader::{Shader, ShaderBuffer, ShaderDevice, ShaderKernel, register_shader_kernels};
use meganeura_core::backend::{Device, KernelDesc, StepArgs};
use meganeura_core::ops::sample::{Sample, SampleInput};
use meganeura_core::ops::{Composite, OpRef};
use meganeura_core::plan::{compile_for, try_compile};
use meganeura_core::{Error, Graph, Session, register_op, registry};

static TWICE: Composite = Composite::new("test.twice", 1, "2 x", |g, x, _| Ok(vec![g.add(x[0], x[0]).into()]));
register_op!(TWICE);

static COUNTED: Composite = Composite::new("test.counted", 1, "2 x", |g, x, _| Ok(vec![g.add(x[0], x[0]).into()]));
register_op!(COUNTED);

/// An operator that is one dispatch only with a custom kernel.
static BEST: Composite = Composite::new("test.best", 1, "the largest two of the softmax", |g, x, _| {
    let probabilities = g.softmax(x[0], -1);
    let best = g.top_k(probabilities, -1, 2);
    Ok(vec![best.into()])
})
.with_attributes(&[], |sizes| {
    let rows = sizes.dim(9);
    vec![Sample::new("rows", vec![SampleInput::f32(&[rows, 5])], Attrs::new())]
});
register_op!(BEST);

static VAST: Composite = Composite::new("test.vast", 1, "the sum of many copies", |g, x, attrs| {
    let copies = attrs.int("copies")? as usize;
    let many = g.expand(x[0], &[copies, 1 << 20]);
    Ok(vec![g.sum(many, &[0, 1], false).into()])
})
.with_attributes(&[("copies", AttrKind::Int)], |_| {
    let sample = |copies: i64| {
        let attrs = Attrs::new().with("copies", copies);
        Sample::new("copies", vec![SampleInput::f32(&[1])], attrs)
    };
    vec![sample(1 << 10), sample(1 << 8)]
});
register_op!(VAST);

/// The driver rejects the kernel of [`TWICE`] or [`BEST`] for these numbers of elements.
const REFUSED: [usize; 3] = [5_003, 5_009, 5_010];
/// The kernel of [`COUNTED`] reports an endless loop for this number of elements.
const ENDLESS: usize = 1_009;

/// A custom kernel in which one thread computes all elements.
struct Kernel {
    op: OpRef,
    body: fn(usize) -> String,
    reports: bool,
}

impl ShaderKernel for Kernel {
    fn op(&self) -> OpRef {
        self.op
    }

    fn origin(&self) -> String {
        format!("the plugin of {}", self.op.get().name())
    }

    fn content(&self) -> String {
        self.op.name().to_owned()
    }

    fn shader(&self, kernel: &KernelDesc, _: &ShaderDevice) -> Result<Shader, String> {
        let elements = kernel.inputs[0].numel();
        let report = if self.reports {
            "var<storage, read_write> fault: array<atomic<u32>>;\nvar<uniform> reporter: u32;\n"
        } else {
            ""
        };
        let body = if REFUSED.contains(&elements) {
            "what is this?".to_owned()
        } else {
            (self.body)(elements)
        };
        Ok(Shader {
            source: format!(
                "var<storage> buffer_a: array<f32>;\nvar<storage, read_write> buffer_b: array<f32>;\n{report}\
                 @compute @workgroup_size(1)\nfn main() {{\n{body}\n}}\n"
            ),
            buffers: vec![ShaderBuffer::Operand(0), ShaderBuffer::Result(0)],
            reports: self.reports,
            groups: [1, 1, 1],
        })
    }
}

fn twice(elements: usize) -> String {
    format!("for (var i = 0u; i < {elements}u; i += 1u) {{ buffer_b[i] = 2.0 * buffer_a[i]; }}")
}

/// Returns the code of a softmax over rows of five elements that writes only the largest two.
fn best(elements: usize) -> String {
    format!(
        "for (var row = 0u; row < {elements}u; row += 5u) {{\n\
         var sum = 0.0;\nvar first = row;\nvar second = row;\n\
         for (var i = row; i < row + 5u; i += 1u) {{\n\
         sum += exp(buffer_a[i]);\nif (buffer_a[i] > buffer_a[first]) {{ first = i; }}\n}}\n\
         if (first == row) {{ second = row + 1u; }}\n\
         for (var i = row; i < row + 5u; i += 1u) {{\n\
         if (i != first && buffer_a[i] > buffer_a[second]) {{ second = i; }}\n}}\n\
         buffer_b[row / 5u * 2u] = exp(buffer_a[first]) / sum;\n\
         buffer_b[row / 5u * 2u + 1u] = exp(buffer_a[second]) / sum;\n}}"
    )
}

/// Returns the code of `twice`. For [`ENDLESS`] elements, it also reports that a loop was ended.
fn counted(elements: usize) -> String {
    let report = match elements {
        ENDLESS => "atomicStore(&fault[0], 1u);\natomicStore(&fault[1u + 2u * reporter], 2u);\n",
        _ => "if (reporter == 4294967295u) { atomicStore(&fault[0], 1u); }\n",
    };
    format!("{report}{}", twice(elements))
}

/// Returns the first usable device. The custom kernels are registered before it is opened.
fn device() -> Option<Arc<dyn Device>> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let kernel = |op: &'static Composite, body, reports| {
            let kernel = Kernel {
                op: OpRef::new(op),
                body,
                reports,
            };
            Arc::new(kernel) as Arc<dyn ShaderKernel>
        };
        let kernels = [
            kernel(&TWICE, twice, false),
            kernel(&BEST, best, false),
            kernel(&VAST, twice, false),
            kernel(&COUNTED, counted, true),
        ];
        register_shader_kernels(&kernels).expect("they are the only ones");
    });
    common::device()
}

fn problems(op: &str) -> Vec<String> {
    let own = |text: &String| text.contains(&format!("the plugin of {op}'"));
    registry::problems()
        .iter()
        .map(ToString::to_string)
        .filter(own)
        .collect()
}

fn graph(op: &'static Composite, shape: &[usize]) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", shape);
    let y = g.call(OpRef::new(op), Attrs::new(), vec![x.into()]);
    g.set_outputs(vec![y]);
    g
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7919 % 1013) as f32 * 1e-3).collect()
}

/// Returns `true` if a plan on the device uses a custom kernel.
fn uses_custom_kernel(device: &dyn Device, plan: &meganeura_core::ExecutionPlan) -> bool {
    let sources = device.kernel_sources(plan).expect("kernels");
    sources.iter().any(|s| s.text.contains("buffer_b"))
}

#[test]
fn a_kernel_that_the_driver_refuses_for_some_sizes_is_decomposed_there() {
    let Some(device) = device() else { return };
    for (elements, custom) in [(700, true), (REFUSED[0], false), (701, true)] {
        let plan = compile_for(&graph(&TWICE, &[elements]), &*device).expect("a plan");
        assert_eq!(uses_custom_kernel(&*device, &plan), custom, "{elements}");
        let mut session = Session::on(device.clone(), plan).expect("a session");
        let x = numbers(elements);
        session.set_input("x", &x);
        session.step();
        let twice: Vec<f32> = x.iter().map(|v| 2.0 * v).collect();
        assert_eq!(session.read_output(elements), twice, "{elements}");
    }
    let problems = problems("test.twice");
    let told = problems
        .iter()
        .any(|p| p.contains("'test.twice' is not used") && p.contains("the driver rejects"));
    assert!(told, "{problems:?}");
}

/// A plan that was compiled without a device runs decomposed if the driver rejects its kernel.
#[test]
fn a_plan_with_a_kernel_that_is_refused_runs_decomposed_or_names_the_plugin() {
    let Some(device) = device() else { return };
    let elements = REFUSED[1];
    let plan = try_compile(&graph(&TWICE, &[elements])).expect("a plan");
    assert!(plan.dispatches.iter().any(|d| d.kernel.name == "test.twice"));
    let mut executable = device.compile(&plan).expect("it can be decomposed");
    let x = numbers(elements);
    let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    executable.write(plan.input_buffers[0].1, 0, &bytes).expect("written");
    let step = StepArgs {
        segments: &[0],
        scalars: &[],
    };
    let ticket = executable.run(&step).expect("submitted");
    executable.wait(ticket).expect("done");
    let mut found = vec![0; 4 * elements];
    executable.read(plan.output_buffers[0], 0, &mut found).expect("read");
    let twice: Vec<u8> = x.iter().flat_map(|v| (2.0 * v).to_le_bytes()).collect();
    assert!(found == twice);

    // In an existing plan, this operator cannot be decomposed, so compiling the plan is an error. A plan that is
    // compiled for the device decomposes it.
    let graph = graph(&BEST, &[REFUSED[2] / 5, 5]);
    let plan = try_compile(&graph).expect("a plan");
    match device.compile(&plan).err() {
        Some(Error::Plugin {
            plugin,
            message,
            remedy,
        }) => {
            assert_eq!(plugin, "the plugin of test.best");
            assert!(
                message.contains("'test.best' cannot be used") && remedy.contains("build the plan again"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    let plan = compile_for(&graph, &*device).expect("a plan");
    assert!(!uses_custom_kernel(&*device, &plan));
    Session::on(device, plan).expect("a session");
}

#[test]
fn a_kernel_whose_definition_is_too_large_to_be_evaluated_is_not_used() {
    let Some(device) = device() else { return };
    let kernels = device.kernels();
    assert!(
        kernels.contains("test.vast false") && kernels.contains("test.twice true"),
        "{kernels}"
    );
    let problems = problems("test.vast");
    let told = problems
        .iter()
        .any(|p| p.contains("'test.vast' is not used") && p.contains("no shapes were found"));
    assert!(told && problems[0].contains("elements and"), "{problems:?}");
}

#[test]
fn a_kernel_that_had_to_be_ended_is_an_error_of_the_step() {
    let Some(device) = device() else { return };
    let build = |elements: usize| {
        let mut g = Graph::new();
        let x = g.input("x", &[elements]);
        let seen = g.state("seen", &[elements]);
        let new = g.add(seen, x);
        g.assign(seen, new);
        let y = g.call(OpRef::new(&COUNTED), Attrs::new(), vec![x.into()]);
        let after = g.state("after", &[elements]);
        g.assign(after, y);
        g.set_outputs(vec![y]);
        let plan = compile_for(&g, &*device).expect("a plan");
        assert!(uses_custom_kernel(&*device, &plan));
        let mut session = Session::on(device.clone(), plan).expect("a session");
        session.set_input("x", &vec![1.0; elements]);
        session
    };
    let mut fine = build(ENDLESS - 1);
    fine.step();
    assert_eq!(fine.read_state("after"), vec![2.0; ENDLESS - 1]);

    let mut session = build(ENDLESS);
    for _ in 0..3 {
        match session.try_step().and_then(|()| session.try_wait().map(|_| ())) {
            Err(Error::Plugin { plugin, message, .. }) => {
                assert_eq!(plugin, "the plugin of test.counted");
                assert!(message.contains("did not end within its limit"), "{message}");
            }
            other => panic!("{other:?}"),
        }
        for state in ["seen", "after"] {
            assert_eq!(session.read_state(state), vec![0.0; ENDLESS], "{state}");
        }
    }
}
