//! Tests of projections whose epilogues read several sums of their workgroup.

use super::*;

/// Returns the attributes of a rotation of heads.
fn rotation(head_dim: i64) -> Attrs {
    Attrs::new()
        .with("theta", 1e4f32)
        .with("offset", 0i64)
        .with("head_dim", head_dim)
        .with("inverse", false)
}

/// Compiles the matmul of a row of 64 elements and `[width, 64]`, with the calls that follow it.
fn projected(width: usize, after: &[(&str, Attrs, &[Slot])]) -> Result<Vec<Launch>, String> {
    let product = Attrs::new().with("transpose_a", false).with("transpose_b", true);
    let mut calls = vec![("core.matmul", product, &[Slot::Operand(0), Slot::Operand(1)][..])];
    calls.extend(after.iter().cloned());
    let inputs = [tensor(DType::F32, &[1, 64]), tensor(DType::F32, &[width, 64])];
    compile_program(&program(2, &calls), &inputs, tensor(DType::F32, &[1, width]))
}

#[test]
fn samples_are_written_by_the_kernel_that_multiplies() {
    let op = registry::op("core.fused_cache_write").expect("an operator");
    let mut counts = [0; 2];
    for sample in op.samples(&mut Sizes::new(0)) {
        let (inputs, outputs) = types(op, &sample, DType::F32).expect("its types");
        let made = compile(&CompileCx::standalone(KernelDesc {
            name: op.name(),
            version: op.version(),
            attrs: &sample.attrs,
            inputs: &inputs,
            outputs: &outputs,
        }));
        match made {
            Ok(made) => {
                // The cache is not written in place here, so the first launch copies it.
                let [_, launch] = &made.launches[..] else {
                    panic!("{}: {} launches", sample.label, made.launches.len());
                };
                assert!(
                    launch.kernel.starts_with("matmul_rows"),
                    "{}: {}",
                    sample.label,
                    launch.kernel
                );
                counts[usize::from(sample.label.contains("f16"))] += 1;
            }
            // There are three reasons: the call has more than four rows, small heads do not fill the columns of a
            // workgroup, or several rows have a separate norm.
            Err(what) => {
                let other = what.starts_with("the epilogue reads other elements of a product");
                assert!(
                    other || sample.label.starts_with("after a norm"),
                    "{}: {what}",
                    sample.label
                );
            }
        }
    }
    assert!(counts.iter().all(|&count| count >= 5), "{counts:?}");
}

#[test]
fn heads_are_rotated_in_the_epilogue_where_a_workgroup_has_their_pairs() {
    let rotated = |width, head_dim| projected(width, &[("core.rope", rotation(head_dim), &[Slot::Step(0)])]);
    for (width, head_dim) in [(64, 64), (192, 64), (256, 128), (96, 32), (16, 8)] {
        let launches = rotated(width, head_dim).expect("a kernel");
        assert_eq!(launches.len(), 1, "heads of {head_dim}");
        assert!(launches[0].source.contains("product_at"), "{}", launches[0].source);
        validated("rotated", &launches[0], Capabilities::empty());
    }
    // A workgroup has at least eight columns.
    assert!(rotated(12, 6).is_err());
}

#[test]
fn what_reads_further_elements_is_not_mistaken_for_a_rotation() {
    let first = ("core.rope", rotation(16), &[Slot::Step(0)][..]);
    let in_one = |after: &[(&str, Attrs, &[Slot])]| projected(64, after).is_ok_and(|launches| launches.len() == 1);
    assert!(in_one(std::slice::from_ref(&first)));
    assert!(in_one(&[first.clone(), ("core.relu", Attrs::new(), &[Slot::Step(1)])]));
    let other = ("core.rope", rotation(32), &[Slot::Step(1)][..]);
    assert!(!in_one(&[first.clone(), other]), "heads of two sizes");
    let flip = ("core.flip", Attrs::new().with("axes", vec![1i64]), &[Slot::Step(1)][..]);
    assert!(!in_one(&[first, flip]), "elements of other heads");
}
