//! Tests of transfers in pieces, and of steps in parts.

use meganeura_core::backend::{Backend, Executable as _, SharedBuffers, StepArgs};
use meganeura_core::config::Config;
use meganeura_core::plan::compile_for;
use meganeura_core::{ExecutionPlan, Graph};

use super::BladeExecutable;
use crate::backend::BladeBackend;
use crate::device::BladeDevice;
use crate::gpu::NAME;
use meganeura_shaders::host::{CustomKernels, F16Storage, KernelOptions, LaunchPlan};

/// Number of bytes of the input of the test plan.
const BYTES: usize = 4 * 2_501;

/// Creates an executable. Returns `None` without a device. The integration tests report a missing device.
fn executable(graph: &Graph) -> Option<(ExecutionPlan, BladeExecutable)> {
    let devices = BladeBackend.devices(&Config::default()).ok()?;
    let usable = devices.into_iter().find(|d| d.rejected.is_none())?;
    // SAFETY: the function is unsafe only because it loads a driver. blade states no other requirement.
    let context = unsafe {
        blade_graphics::Context::init(blade_graphics::ContextDesc {
            device_id: usable.numeric_id.map(|id| id as u32),
            ..blade_graphics::ContextDesc::default()
        })
    };
    let device = BladeDevice::from_context(std::sync::Arc::new(context.ok()?));
    let plan = compile_for(graph, &device).expect("a plan");
    let with = KernelOptions {
        backend: NAME,
        library: None,
        coop: None,
        features: device.handle().features(),
        custom: &CustomKernels::new(),
        choices: None,
        f16_storage: F16Storage::No,
    };
    let draft = LaunchPlan::of(&plan, &with).expect("kernels");
    let executable = super::open(device.handle(), &plan, draft, &SharedBuffers::new()).expect("an executable");
    Some((plan, executable))
}

#[test]
fn large_transfers_go_in_pieces() {
    let mut g = Graph::new();
    let x = g.input("x", &[BYTES / 4]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    for staged in [4096, 1000, 36] {
        let Some((plan, mut executable)) = executable(&g) else {
            return;
        };
        executable.driver_mut().staged = staged;
        let buffer = plan.input_buffers[0].1;
        let data: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 251) as u8).collect();
        executable.write(buffer, 0, &data).expect("written");
        // The write crosses the end of a piece. The reads come before and after its submission.
        executable.write(buffer, 34, &[255; 70]).expect("written");
        let mut found = vec![0; BYTES];
        executable.read(buffer, 0, &mut found).expect("read");
        let expected: Vec<u8> = (0..BYTES)
            .map(|i| if (34..104).contains(&i) { 255 } else { data[i] })
            .collect();
        assert!(found == expected, "in pieces of {staged}");
        let mut part = [0; 101];
        executable.read(buffer, 9_000, &mut part).expect("read");
        assert_eq!(part, expected[9_000..9_101]);
        for frame in &executable.driver().frames {
            let most = frame.upload.capacity().max(frame.download.capacity());
            assert!(most <= 4096, "{most} bytes are staged");
        }
    }
}

#[test]
fn a_step_in_parts_is_the_same_as_one_in_one_piece() {
    // Each call needs the result of the previous one, and cannot be fused with it.
    const CALLS: usize = 150;
    const SIDE: usize = 12;
    let mut g = Graph::new();
    let x = g.input("x", &[SIDE, SIDE]);
    let y = (0..CALLS).fold(x, |y, i| match i % 2 {
        0 => g.neg(y),
        _ => g.transpose(y),
    });
    g.set_outputs(vec![y]);
    let Some((plan, mut executable)) = executable(&g) else {
        return;
    };
    let parts = executable.driver().frames[0].parts();
    assert!(plan.dispatches.len() >= CALLS && parts > 2, "{parts} parts");
    let (input, output) = (plan.input_buffers[0].1, plan.output_buffers[0]);
    let step = StepArgs {
        segments: &[0],
        scalars: &[],
    };
    let read = |executable: &mut BladeExecutable| {
        let mut bytes = vec![0; 4 * SIDE * SIDE];
        executable.read(output, 0, &mut bytes).expect("read");
        bytes
    };
    let mut results = Vec::new();
    for seed in 0..3_u16 {
        let numbers = (0..(SIDE * SIDE) as u16).map(|i| f32::from((i * 7 + seed * 31) % 23) * 0.5);
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        executable.write(input, 0, &bytes).expect("written");
        executable.finish_all().expect("complete");
        assert!(executable.driver().is_idle().expect("a device"));
        executable.run(&step).expect("run in parts");
        let parted = read(&mut executable);
        // The second step runs after a step that is incomplete, or that was so fast that the second step is also in
        // parts.
        executable.run(&step).expect("run");
        executable.run(&step).expect("run behind another");
        assert!(read(&mut executable) == parted, "seed {seed}");
        results.push(parted);
    }
    assert!(results[0] != results[1] && results[1] != results[2]);
}
