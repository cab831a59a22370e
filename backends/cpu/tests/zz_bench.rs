//! Temporary.
mod common;
use std::time::Instant;
use common::{case, op, sample, session};
use meganeura_core::attrs::Attrs;
use meganeura_core::ops::sample::{Fill, SampleInput};
use meganeura_core::DType;
#[test]
fn bench() {
    let pool = |k: usize, s: usize, p: usize| Attrs::new().with("kernel", [k; 2]).with("stride", [s; 2]).with("padding", [p; 2]);
    let f = SampleInput::f32;
    let mut cases = Vec::new();
    for (shape, k, s, p) in [([32usize, 32, 28, 28], 2, 2, 0), ([8, 64, 112, 112], 3, 2, 1), ([8, 64, 56, 56], 3, 1, 1)] {
        cases.push(("core.max_pool2d", sample(vec![f(&shape)], pool(k, s, p))));
        cases.push(("core.avg_pool2d", sample(vec![f(&shape)], pool(k, s, p))));
    }
    let conv = |s: usize, p: usize, g: usize| Attrs::new().with("stride", [s; 2]).with("padding", [p; 2]).with("dilation", [1usize; 2]).with("groups", g as i64);
    for (hw, k, s, p) in [(56usize, 3usize, 1usize, 1usize), (56, 3, 2, 1), (28, 5, 1, 2), (14, 3, 1, 1)] {
        let c = 64;
        let o = (hw + 2 * p - k) / s + 1;
        let (x, w, y) = (f(&[4, c, hw, hw]), f(&[c, 1, k, k]), f(&[4, c, o, o]));
        cases.push(("core.conv2d", sample(vec![x.clone(), w.clone()], conv(s, p, c))));
        cases.push(("core.conv2d_input_grad", sample(vec![y.clone(), w], conv(s, p, c).with("input_size", [hw; 2]))));
        cases.push(("core.conv2d_weight_grad", sample(vec![x, y], conv(s, p, c).with("kernel_size", [k; 2]))));
    }
    for shape in [vec![32usize, 64, 28, 28], vec![256, 1024], vec![64, 256, 4, 4]] {
        let c = [shape[1]];
        let st = || SampleInput::range(&c, 0.2, 2.0).state();
        cases.push(("core.batch_norm", sample(vec![f(&shape), f(&c), f(&c), st(), st()], Attrs::new().with("eps", 1e-3).with("momentum", 0.1))));
        let n = || SampleInput::range(&c, 0.2, 2.0);
        cases.push(("core.batch_norm_inference", sample(vec![f(&shape), n(), n(), n(), n()], Attrs::new().with("eps", 1e-3))));
    }
    cases.push(("core.layer_norm", sample(vec![f(&[512, 768]), f(&[768]), f(&[768])], Attrs::new().with("eps", 1e-5))));
    for n in [200_000usize, 4_000_000] {
        let p = || SampleInput::range(&[n], 0.1, 1.0);
        let s = || SampleInput::range(&[], 0.1, 0.9);
        let st = || p().state();
        cases.push(("optim.sgd", sample(vec![st(), p(), s(), s()], Attrs::new())));
        cases.push(("optim.momentum", sample(vec![st(), p(), st(), s(), s(), s()], Attrs::new().with("nesterov", false))));
        cases.push(("optim.adam", sample(vec![st(), p(), st(), st(), s(), s(), s(), s(), s(), s(), s()], Attrs::new().with("decoupled", false))));
    }
    let one = SampleInput::filled(DType::F32, &[], Fill::Range(0.0, 1.0));
    for n in [1_048_576usize, 1_048_573] {
        cases.push(("core.expand", sample(vec![one.clone()], Attrs::new().with("shape", &[n][..]))));
    }
    for (name, sample) in &cases {
        let case = case(op(name), sample, 1);
        let mut session = session(&case, 1);
        session.step();
        let mut best = f64::MAX;
        for _ in 0..25 {
            let start = Instant::now();
            session.step();
            best = best.min(start.elapsed().as_secs_f64());
        }
        let bytes: usize = sample.inputs.iter().map(|i| 4 * i.shape.iter().product::<usize>()).sum();
        let dims = &sample.inputs[0].shape;
        println!("{:9.1} us {:6.2} GB/s {name} {dims:?} {}", best * 1e6, bytes as f64 / best / 1e9, sample.attrs);
    }
}
