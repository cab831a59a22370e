//! Transfers in pieces.

use meganeura_core::backend::{Backend, Executable as _};
use meganeura_core::config::Config;
use meganeura_core::plan::compile_for;
use meganeura_core::{ExecutionPlan, Graph};

use super::BladeExecutable;
use crate::backend::BladeBackend;
use crate::brought::Brought;
use crate::device::BladeDevice;
use crate::program::With;

/// Bytes of the input of the plan.
const BYTES: usize = 4 * 2_501;

/// An executable that stages little at once; none where there is no device, which the integration tests say.
fn executable(staged: usize) -> Option<(ExecutionPlan, BladeExecutable)> {
    let devices = BladeBackend.devices(&Config::default()).ok()?;
    let usable = devices.into_iter().find(|d| d.rejected.is_none())?;
    // SAFETY: blade asks for `unsafe` because a driver is loaded; no other requirement is stated.
    let context = unsafe {
        blade_graphics::Context::init(blade_graphics::ContextDesc {
            device_id: usable.numeric_id.map(|id| id as u32),
            ..blade_graphics::ContextDesc::default()
        })
    };
    let device = BladeDevice::from_context(std::sync::Arc::new(context.ok()?));
    let mut g = Graph::new();
    let x = g.input("x", &[BYTES / 4]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let plan = compile_for(&g, &device).expect("a plan");
    let with = With {
        coop: None,
        brought: &Brought::new(),
        choices: None,
    };
    let mut executable = BladeExecutable::new(&device, &plan, &with).expect("an executable");
    executable.staged = staged;
    Some((plan, executable))
}

#[test]
fn large_transfers_go_in_pieces() {
    for staged in [4096, 1000, 36] {
        let Some((plan, mut executable)) = executable(staged) else {
            return;
        };
        let buffer = plan.input_buffers[0].1;
        let data: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 251) as u8).collect();
        executable.write(buffer, 0, &data).expect("written");
        // Over the end of a piece, before and after what is there has been submitted.
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
        for frame in &executable.frames {
            let most = frame.upload.capacity().max(frame.download.capacity());
            assert!(most <= 4096, "{most} bytes are staged");
        }
    }
}
