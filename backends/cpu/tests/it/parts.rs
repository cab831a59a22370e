//! Tests of tensors that are parts of a larger buffer. They use the executable's own access functions and the default
//! ones.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_core::backend::{Device, Executable, StepArgs, StepStats, Ticket};
use meganeura_core::plan::{BufferRef, Part};
use meganeura_core::{Graph, Result, Shape, TensorType};
use meganeura_cpu::CpuDevice;

/// An executable that uses the default access functions for parts.
struct ExecutableWithoutParts(Box<dyn Executable>);

impl Executable for ExecutableWithoutParts {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read(buffer, offset, bytes)
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        self.0.run(args)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        self.0.wait(ticket)
    }
}

/// Returns two executables of a plan, with and without its own access functions, and the buffer and type of its
/// parameter, which has this shape.
fn pair(shape: &[usize]) -> ([Box<dyn Executable>; 2], BufferRef, TensorType) {
    let mut graph = Graph::new();
    let p = graph.parameter("p", shape);
    let y = graph.neg(p);
    graph.set_outputs(vec![y]);
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let plan = Builder::on(device.clone()).inference().plan(&graph);
    let (plan, _) = plan.expect("a plan");
    let buffer = plan.param_buffers[0].1;
    let own = device.compile(&plan).expect("compiles");
    let plain = ExecutableWithoutParts(device.compile(&plan).expect("compiles"));
    let ty = TensorType::f32(Shape::new(shape).expect("small"));
    ([own, Box::new(plain)], buffer, ty)
}

fn contents(executable: &mut dyn Executable, buffer: BufferRef, ty: &TensorType) -> Vec<u8> {
    let mut bytes = vec![0; ty.bytes()];
    executable.read(buffer, 0, &mut bytes).expect("reads");
    bytes
}

#[test]
fn parts_are_where_the_general_way_has_them() {
    // The last parts are large enough for several tasks.
    for (shape, axis, start, size) in [
        (vec![7], 0, 2, 3),
        (vec![5, 9], 1, 2, 4),
        (vec![5, 9], 1, 0, 9),
        (vec![5, 9], 1, 3, 0),
        (vec![3, 4, 5], 1, 1, 2),
        (vec![701, 1003], 1, 900, 103),
        (vec![3, 601, 509], 1, 1, 599),
    ] {
        let (mut both, buffer, ty) = pair(&shape);
        let part = Part::of(&ty, axis, start, size).expect("it lies there");
        let before: Vec<u8> = (0..ty.bytes()).map(|i| (i % 249) as u8).collect();
        let tensor: Vec<u8> = (0..part.runs * part.run).map(|i| (i % 251) as u8 ^ 0x55).collect();
        let found = both.each_mut().map(|executable| {
            executable.write(buffer, 0, &before).expect("writes");
            executable.write_part(buffer, &part, &tensor).expect("writes");
            let mut read = vec![0; tensor.len()];
            executable.read_part(buffer, &part, &mut read).expect("reads");
            assert_eq!(read, tensor, "{shape:?} {axis}");
            contents(&mut **executable, buffer, &ty)
        });
        assert!(found[0] == found[1], "{shape:?} {axis} {start} {size}");
        assert!(size == 0 || found[0] != before, "{shape:?} {axis}: nothing was written");
    }
}

#[test]
fn parts_that_are_not_there_are_refused() {
    let ([mut own, _], buffer, ty) = pair(&[4, 6]);
    let part = Part::of(&ty, 1, 2, 3).expect("it lies there");
    let before = contents(&mut *own, buffer, &ty);
    let mut outside = part;
    outside.offset += 64;
    let mut tensor = vec![1; part.runs * part.run];
    for error in [
        own.write_part(buffer, &outside, &tensor),
        own.write_part(buffer, &part, &tensor[1..]),
        own.read_part(buffer, &outside, &mut tensor),
        own.read_part(buffer, &part, &mut tensor[1..]),
    ] {
        let message = error.expect_err("it is wrong").to_string();
        assert!(message.contains("bytes"), "{message}");
    }
    assert_eq!(contents(&mut *own, buffer, &ty), before);
}
