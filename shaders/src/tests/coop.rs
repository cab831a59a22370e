//! Tests of kernels for cooperative matrices. They are valid, can be translated to the languages of other devices,
//! and fit into the shared memory of a workgroup.

use std::cell::RefCell;

use meganeura_core::Value;
use meganeura_core::precision::Precision;

use super::super::Schedule;
use super::super::coop::MIN_COOP_WORKGROUPS;
use super::super::schedule::{Class, ScheduleChooser};
use super::*;

/// Configurations of cooperative matrices.
pub(super) const KINDS: [CoopConfig; 5] = [
    kind(16, true, 32),
    kind(8, true, 8),
    kind(8, false, 32),
    kind(16, true, 64),
    kind(16, true, 16),
];

/// Creates a configuration from the tile size, true for `f16` operands (false for `f32`), and the subgroup size.
const fn kind(tile_size: u32, use_f16_input: bool, subgroup_size: u32) -> CoopConfig {
    CoopConfig {
        tile_size,
        use_f16_input,
        subgroup_size,
        min_workgroups: MIN_COOP_WORKGROUPS,
        max_resident_workgroups: 0,
        wide_rows: false,
    }
}

/// Returns the launches of large contractions on cooperative matrices of every kind.
fn coop_launches() -> Vec<(String, Launch)> {
    let mut all = Vec::new();
    each_on_units(&[DType::F32, DType::F16], &mut |label, cx| {
        let made = compile(cx).unwrap_or_else(|e| panic!("{label}: {e}"));
        assert!(made.launches[0].coop, "{label}");
        all.push((label, made.launches[0].clone()));
    });
    all
}

/// Calls `each` with the label and the input of every compilation, for operands of these dtypes.
fn each_on_units(floats: &[DType], each: &mut dyn FnMut(String, &CompileCx)) {
    let transposed = |a: bool, b: bool| Attrs::new().with("transpose_a", a).with("transpose_b", b);
    let window = |attrs: Attrs| {
        let pair = |v: i64| vec![v, v];
        attrs
            .with("stride", pair(1))
            .with("padding", pair(1))
            .with("dilation", pair(1))
            .with("groups", 1i64)
    };
    let calls = [
        (
            "core.matmul",
            transposed(false, false),
            vec![vec![768, 96], vec![96, 512]],
        ),
        (
            "core.matmul",
            transposed(true, false),
            vec![vec![96, 770], vec![96, 510]],
        ),
        (
            "core.matmul",
            transposed(false, true),
            vec![vec![6, 390, 77], vec![6, 250, 77]],
        ),
        (
            "core.matmul_add",
            transposed(false, false),
            vec![vec![512, 3000], vec![3000, 512], vec![512]],
        ),
        // These have fewer steps than the block prefetches: a single step, and a short last part.
        (
            "core.matmul",
            transposed(false, false),
            vec![vec![640, 64], vec![64, 640]],
        ),
        (
            "core.matmul",
            transposed(false, false),
            vec![vec![16, 10_496], vec![10_496, 256]],
        ),
        // These use small blocks: few rows, and too few columns for large blocks.
        (
            "core.matmul",
            transposed(false, true),
            vec![vec![3, 5, 1100], vec![130, 1100]],
        ),
        (
            "core.matmul_add",
            transposed(false, false),
            vec![vec![16, 576], vec![576, 576], vec![576]],
        ),
        (
            "core.matmul_add",
            transposed(false, true),
            vec![vec![100, 577], vec![130, 577], vec![130]],
        ),
        (
            "core.conv2d",
            window(Attrs::new()),
            vec![vec![4, 24, 40, 40], vec![70, 24, 3, 3]],
        ),
    ];
    for (name, attrs, shapes) in calls {
        // The result of a matmul with an addend has the dtype of its operands, and must be `f32` here.
        let alone = |float: &&DType| **float == DType::F32 || name != "core.matmul_add";
        for &float in floats.iter().filter(alone) {
            let mut graph = Graph::new();
            let inputs: Vec<Value> = (0..)
                .zip(&shapes)
                .map(|(i, s): (usize, _)| graph.input_typed(&format!("x{i}"), s, float).into())
                .collect();
            let types: Vec<TensorType> = inputs.iter().filter_map(|&x| graph.ty(x).cloned()).collect();
            let outputs: Vec<TensorType> = {
                let op = registry::op(name).expect("an operator");
                let call = graph.call(op, attrs.clone(), inputs);
                let outputs = graph.nodes()[call.index()].outputs.clone();
                let wide = |ty: TensorType| TensorType::f32(ty.shape);
                outputs.into_iter().map(wide).collect()
            };
            let kinds = KINDS
                .into_iter()
                .flat_map(|kind| [0, 3].map(|max_resident_workgroups| (kind, max_resident_workgroups)));
            for (kind, max_resident_workgroups) in kinds {
                let cx = CompileCx {
                    coop: Some(CoopConfig {
                        max_resident_workgroups,
                        wide_rows: max_resident_workgroups > 0,
                        ..kind
                    }),
                    ..CompileCx::standalone(KernelDesc {
                        name,
                        version: 1,
                        attrs: &attrs,
                        inputs: &types,
                        outputs: &outputs,
                    })
                };
                let CoopConfig {
                    tile_size,
                    use_f16_input,
                    subgroup_size,
                    ..
                } = kind;
                let label = format!(
                    "{name} {shapes:?} {float} {tile_size} {use_f16_input} {subgroup_size} {max_resident_workgroups}"
                );
                each(label, &cx);
            }
        }
    }
}

const UNITS: Capabilities = Capabilities::COOPERATIVE_MATRIX.union(Capabilities::SHADER_FLOAT16);

#[test]
fn kernels_for_matrix_units_are_valid_and_translate() {
    for (label, launch) in coop_launches() {
        translate(&label, &launch, UNITS);
        check_shared(&label, &launch);
    }
}

/// Checks the size of the shared memory. Metal devices have 32 KiB and tiles of 8. Other devices with cooperative
/// matrices have at least 48 KiB.
fn check_shared(label: &str, launch: &Launch) {
    let most = if launch.source.contains("coop_mat16x16") {
        40 << 10
    } else {
        32 << 10
    };
    let bytes = shared_bytes(launch);
    assert!(bytes <= most, "{label}: {bytes} bytes");
}

/// A chooser that records the variants of a contraction and selects one of them.
#[derive(Default)]
struct Variants {
    offered: RefCell<Vec<Schedule>>,
    used: Option<Schedule>,
}

impl ScheduleChooser for Variants {
    fn precision(&self) -> Precision {
        Precision::Mixed
    }

    fn choose(&self, _: &Class, offered: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        *self.offered.borrow_mut() = offered();
        self.used.clone()
    }

    fn missing(&self, class: &Class, schedule: &Schedule) {
        panic!("{class} has no schedule '{schedule}'");
    }
}

/// Variants that only tuning selects also have valid kernels. Other tests run them on few devices.
#[test]
fn every_way_on_matrix_units_is_valid() {
    let mut seen = HashSet::new();
    let mut variants = HashSet::new();
    each_on_units(&[DType::F32], &mut |label, cx| {
        let with = |choices: &Variants| {
            let made = compile(&CompileCx {
                choices: Some(choices),
                ..cx.part(cx.kernel, cx.inputs.clone(), cx.outputs.clone(), 0)
            });
            made.unwrap_or_else(|e| panic!("{label}, {:?}: {e}", choices.used))
        };
        let asked = Variants::default();
        with(&asked);
        let offered = asked.offered.take();
        let is_coop = |schedule: &Schedule| schedule.kernel().starts_with("matmul_coop");
        let units: Vec<Schedule> = offered.into_iter().filter(is_coop).collect();
        assert!(units.len() > 1, "{label}: {units:?}");
        let mut blocks = HashSet::new();
        for variant in units {
            let text = variant.to_string();
            let block = text.split(" split_k").next().unwrap_or_default().to_owned();
            // Variants that differ only in the number of parts differ only in their stores. The default variants test
            // the stores.
            if !blocks.insert(block.clone()) {
                continue;
            }
            let launch = with(&Variants {
                used: Some(variant.clone()),
                ..Variants::default()
            })
            .launches[0]
                .clone();
            assert!(launch.coop && launch.chosen.is_some(), "{label}, {variant}");
            // Most variants differ only in sizes, so equal sources are validated once.
            if seen.insert(launch.source.clone()) {
                let label = format!("{label}, {variant}");
                validated(&label, &launch, UNITS);
                check_shared(&label, &launch);
            }
            variants.insert(block);
        }
    });
    let block = |size: &str| {
        variants
            .iter()
            .any(|variant| variant.contains(&format!("block={size}x")))
    };
    for size in ["128x128", "64x128", "128x64", "64x64", "32x32", "16x16", "8x8"] {
        assert!(block(size), "{size}: {variants:?}");
    }
}

/// Returns the number of bytes of shared memory of a workgroup.
fn shared_bytes(launch: &Launch) -> u32 {
    let module = naga::front::wgsl::parse_str(&launch.source).expect("it is valid");
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("sizes");
    let shared = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
    shared.map(|(_, v)| layouter[v.ty].size).sum()
}

/// Every operator that is a contraction, or whose decomposition contains one, has a kernel for cooperative matrices,
/// even if it is small.
#[test]
fn every_product_has_a_kernel_for_matrix_units() {
    let config = CoopConfig {
        tile_size: 8,
        use_f16_input: true,
        subgroup_size: 8,
        min_workgroups: 0,
        max_resident_workgroups: 0,
        wide_rows: false,
    };
    let launches = launches_with(Some(config));
    let units: Vec<&(String, Launch)> = launches.iter().filter(|(_, l)| l.coop).collect();
    for (label, launch) in &units {
        translate(label, launch, UNITS);
    }
    for name in [
        "core.matmul",
        "core.matmul_add",
        "core.conv2d",
        "core.conv2d_input_grad",
        "core.conv2d_weight_grad",
        "core.conv2d_nhwc",
        "core.conv2d_nhwc_input_grad",
        "core.conv2d_nhwc_weight_grad",
        "core.attention",
        "core.attention_grad",
    ] {
        let used = units.iter().any(|(label, _)| label.starts_with(&format!("{name} ")));
        assert!(used, "{name} uses no cooperative matrices");
    }
}

#[test]
fn attention_on_matrix_units_is_valid_and_translates() {
    for heads in [[9, 3, 64], [12, 12, 20], [16, 4, 128]] {
        for config in KINDS {
            let made = compile_attention(false, [500, 511], heads, Some(config));
            // In full precision, the largest heads do not fit into shared memory.
            let fits = config.use_f16_input || heads[2] < 128;
            assert_eq!(made.launches[0].coop, fits, "{heads:?} {config:?}");
            translate(&format!("attention of {heads:?} {config:?}"), &made.launches[0], UNITS);
            let made = compile_attention(true, [500, 511], heads, Some(config));
            let on_units: Vec<&Launch> = made.launches.iter().filter(|l| l.coop).collect();
            assert_eq!(
                on_units.len(),
                if fits { 2 } else { 0 },
                "gradient of {heads:?} {config:?}"
            );
            for launch in on_units {
                let label = format!("gradient of attention of {heads:?} {config:?}");
                translate(&label, launch, UNITS);
                check_shared(&label, launch);
            }
        }
    }
}

/// All tiles of queries, keys and steps that fit have valid kernels. Usually only one of them is used.
#[test]
fn every_way_of_attention_on_matrix_units_is_valid() {
    let mut names = HashSet::new();
    for (gradient, heads) in [
        (false, [4, 2, 64]),
        (false, [1, 1, 20]),
        (true, [4, 2, 64]),
        (true, [2, 2, 20]),
    ] {
        for config in KINDS {
            let label = format!("attention {gradient} of {heads:?} {config:?}");
            let with = |choices: &Variants| {
                try_attention(gradient, [50, 61], heads, Some(config), Some(choices))
                    .unwrap_or_else(|e| panic!("{label}, {:?}: {e}", choices.used))
            };
            let asked = Variants::default();
            with(&asked);
            for variant in asked.offered.take() {
                if !variant.kernel().starts_with("attention_coop") {
                    continue;
                }
                let made = with(&Variants {
                    used: Some(variant.clone()),
                    ..Variants::default()
                });
                for launch in made.launches.iter().filter(|launch| launch.coop) {
                    let label = format!("{label}, {variant}");
                    assert!(launch.chosen.is_some(), "{label}");
                    validated(&label, launch, UNITS);
                    check_shared(&label, launch);
                }
                names.insert((gradient, config.tile_size, variant));
            }
        }
    }
    for (gradient, tile_size, fewest) in [(false, 8, 2), (false, 16, 2), (true, 8, 4), (true, 16, 4)] {
        let found = names.iter().filter(|(g, t, _)| (*g, *t) == (gradient, tile_size));
        assert!(found.count() >= fewest, "{gradient} {tile_size}: {names:?}");
    }
}
