use meganeura_core::ops::sample::Sizes;
use meganeura_core::plan::compile_for;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::*;
use meganeura_cpu::CpuDevice;
use std::collections::HashMap;
use std::sync::Arc;

#[test]
fn samples() {
    let device: Arc<dyn meganeura_core::backend::Device> = Arc::new(CpuDevice::new(2));
    let mut bad = vec![];
    for op in registry::ops() {
        for seed in 0..3 {
            for sample in op.samples(&mut Sizes::new(seed)) {
                if sample
                    .inputs
                    .iter()
                    .any(|i| matches!(i.dtype, DType::F16 | DType::BF16))
                {
                    continue;
                }
                let mut g = Graph::new();
                let mut rng = SplitMix64::new(1);
                let mut feeds = HashMap::new();
                let mut ops = vec![];
                for (i, inp) in sample.inputs.iter().enumerate() {
                    let name = format!("operand{i}");
                    feeds.insert(name.clone(), inp.values(&mut rng));
                    ops.push(if inp.state {
                        g.state(&name, &inp.shape)
                    } else {
                        g.input_typed(&name, &inp.shape, inp.dtype)
                    });
                }
                let c = g.call(op, sample.attrs.clone(), ops.iter().map(|&o| o.into()).collect());
                let ports = g.nodes()[c.index()].outputs.len();
                g.set_outputs((0..ports as u32).map(|p| g.port(c, p)).collect());
                let e = evaluate(&g, &feeds).unwrap();
                let plan = match compile_for(&g, &*device) {
                    Ok(p) => p,
                    Err(e) => {
                        bad.push(format!("{} {e}", op.name()));
                        continue;
                    }
                };
                let mut s = Session::on(device.clone(), plan).unwrap();
                for (i, inp) in sample.inputs.iter().enumerate() {
                    let name = format!("operand{i}");
                    let v = &feeds[&name];
                    if inp.state {
                        s.try_set_state(&name, &v.iter().map(|&x| x as f32).collect::<Vec<_>>())
                            .unwrap();
                    } else {
                        let bytes: Vec<u8> = match inp.dtype {
                            DType::F32 => v.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
                            DType::U32 => v.iter().flat_map(|&x| (x as u32).to_le_bytes()).collect(),
                            _ => v.iter().flat_map(|&x| (x as i32).to_le_bytes()).collect(),
                        };
                        s.try_set_input_bytes(&name, &bytes).unwrap();
                    }
                }
                s.step();
                for p in 0..ports {
                    let want = e.get(g.port(c, p as u32)).unwrap();
                    let b = s.try_read_output_bytes(p).unwrap();
                    let got: Vec<f64> = match want.ty.dtype {
                        DType::F32 => b
                            .chunks(4)
                            .map(|c| f32::from_le_bytes(c.try_into().unwrap()) as f64)
                            .collect(),
                        DType::U32 => b
                            .chunks(4)
                            .map(|c| u32::from_le_bytes(c.try_into().unwrap()) as f64)
                            .collect(),
                        DType::I32 => b
                            .chunks(4)
                            .map(|c| i32::from_le_bytes(c.try_into().unwrap()) as f64)
                            .collect(),
                        _ => continue,
                    };
                    let scale = want.data.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
                    for (i, (w, x)) in want.data.iter().zip(&got).enumerate() {
                        if !((w - x).abs() <= sample.tolerance * scale) {
                            bad.push(format!(
                                "{} {} port {p} [{i}] want {w} got {x}",
                                op.name(),
                                sample.label
                            ));
                            break;
                        }
                    }
                }
            }
        }
    }
    for b in bad.iter().filter(|b| !b.contains("lacks")) {
        println!("{b}");
    }
    assert!(bad.is_empty(), "{}", bad.len());
}
