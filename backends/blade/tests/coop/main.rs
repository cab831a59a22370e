//! Tests of matmuls on cooperative matrices, on devices that support them: with every tile size, odd sizes, transposed,
//! batched, with prologues and epilogues.
// This is a separate binary, because `.ci/long` copies it to a system with a newer driver.

mod attention;
#[path = "../common/case.rs"]
mod case;
#[path = "../common/mod.rs"]
mod common;
mod f16_storage;
mod packed;
#[path = "../common/packed.rs"]
mod packed_product;
mod training;
mod tuning;

use std::sync::Arc;

use case::Case;
use meganeura_blade::BladeBackend;
use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::Conv2dOptions;
use meganeura_core::plan::{compile_at, compile_for};
use meganeura_core::precision::Precision;
use meganeura_core::{DType, NodeId, Session};

/// Environment variable. If it is 1, these tests fail without cooperative matrices.
const REQUIRE: &str = "MEGANEURA_REQUIRE_COOP";

/// Returns the first usable device, opened once for each tile size that it supports.
fn devices() -> Vec<Arc<dyn Device>> {
    devices_from(None)
}

/// Returns [`devices`] that use cooperative matrices from a minimum number of workgroups on.
fn devices_from(min_workgroups: Option<u32>) -> Vec<Arc<dyn Device>> {
    devices_with(&min_workgroups.map_or_else(String::new, |n| format!("coop_min_workgroups = {n}")))
}

/// Returns [`devices`] with additional settings of the backend.
fn devices_with(settings: &str) -> Vec<Arc<dyn Device>> {
    let mut found = Vec::new();
    if common::device().is_some() {
        let index = BladeBackend.devices(&Config::default()).expect("a listing");
        let index = index.iter().find(|d| d.rejected.is_none()).expect("a device").index;
        for tile in [8, 16] {
            let config = format!("[backend.blade]\ncoop_tile = {tile}\n{settings}");
            let config: Config = toml::from_str(&config).expect("a configuration");
            let device = BladeBackend.open(index, &config).expect("it opens");
            if device.has_mixed_precision() {
                found.push(device);
            }
        }
    }
    if found.is_empty() {
        common::not_tested(
            REQUIRE,
            "COOP-NOT-TESTED",
            "device with cooperative matrices that pass their test",
        );
    }
    found
}

/// Runs a graph in mixed precision, and compares its outputs with the oracle's. `used` is the expected number of
/// dispatches that use cooperative matrices.
fn check<V: Into<Value> + Copy>(shapes: &[&[usize]], used: usize, build: impl Fn(&mut Graph, &[NodeId]) -> Vec<V>) {
    check_from(None, shapes, used, build);
}

/// Checks a graph like [`check`], with a minimum number of workgroups for the use of cooperative matrices.
fn check_from<V: Into<Value> + Copy>(
    min_workgroups: Option<u32>,
    shapes: &[&[usize]],
    used: usize,
    build: impl Fn(&mut Graph, &[NodeId]) -> Vec<V>,
) {
    let devices = devices_from(min_workgroups);
    if devices.is_empty() {
        return;
    }
    check_on(&devices, &Case::new(shapes, build), used);
}

/// Checks a case like [`check`], on the given devices.
fn check_on(devices: &[Arc<dyn Device>], case: &Case, used: usize) {
    for device in devices {
        let plan = compile_at(&case.graph, &**device, Precision::Mixed).expect("a plan");
        let found = plan.dispatches.iter().filter(|d| d.use_coop).count();
        assert_eq!(found, used, "{:?}", plan.dispatches);
        // Operands are rounded to 11 bits.
        case.check(Session::on(device.clone(), plan).expect("a session"), 2e-3);
    }
}

#[test]
fn products_of_whole_and_odd_sizes() {
    for [m, n, k] in [[384, 384, 64], [385, 390, 77], [512, 388, 36], [379, 391, 1]] {
        check(&[&[m, k], &[k, n]], 1, |g, x| vec![g.matmul(x[0], x[1])]);
    }
}

#[test]
fn transposed_and_batched_products() {
    check(&[&[68, 384], &[68, 388]], 1, |g, x| vec![g.matmul_at(x[0], x[1])]);
    check(&[&[383, 61], &[390, 61]], 1, |g, x| vec![g.matmul_bt(x[0], x[1])]);
    check(&[&[9, 1, 130, 52], &[3, 52, 132]], 1, |g, x| vec![g.matmul(x[0], x[1])]);
}

#[test]
fn long_sums_are_cut_into_parts() {
    check(&[&[200, 2060], &[2060, 200]], 1, |g, x| vec![g.matmul(x[0], x[1])]);
    // The last part is shorter than the loads that are pipelined.
    check(&[&[16, 10_496], &[10_496, 56]], 1, |g, x| vec![g.matmul(x[0], x[1])]);
    check(&[&[203, 2061], &[2061, 199]], 1, |g, x| {
        let product = g.matmul(x[0], x[1]);
        vec![g.neg(product)]
    });
}

/// Matmuls are correct if blocks after the last full wave are divided: for several lengths, with an epilogue, in
/// batches, and with blocks that extend past the end of the result.
#[test]
fn blocks_behind_the_last_wave_are_cut() {
    for max_resident_workgroups in [70, 100, 41] {
        let devices = devices_with(&format!("coop_max_resident_workgroups = {max_resident_workgroups}"));
        for [m, n, k] in [[384, 384, 2048], [385, 390, 2061], [512, 388, 2052]] {
            let case = Case::new(&[&[m, k], &[k, n], &[n]], |g, x| {
                let product = g.matmul(x[0], x[1]);
                let sum = g.add(product, x[2]);
                vec![product, g.relu(sum)]
            });
            check_on(&devices, &case, 1);
        }
        let batch = Case::new(&[&[3, 200, 2100], &[3, 230, 2100]], |g, x| {
            vec![g.matmul_bt(x[0], x[1])]
        });
        check_on(&devices, &batch, 1);
    }
}

/// Matmuls of few rows are correct for one or several rounds of steps, for a whole tile of rows or fewer rows, and
/// for both layouts of the matrix.
#[test]
fn products_of_few_rows() {
    check(&[&[11, 203], &[203, 404]], 1, |g, x| vec![g.matmul(x[0], x[1])]);
    for [m, n, k] in [[16, 520, 200], [5, 131, 640], [13, 1100, 64]] {
        check(&[&[m, k], &[n, k], &[n]], 1, |g, x| {
            let product = g.matmul_bt(x[0], x[1]);
            let sum = g.add(product, x[2]);
            vec![g.relu(sum)]
        });
    }
    check(&[&[3, 7, 160], &[3, 200, 160]], 1, |g, x| vec![g.matmul_bt(x[0], x[1])]);
    // A batch with one matrix is equivalent to a matmul with more rows.
    check(&[&[2, 3, 2, 260], &[260, 260]], 1, |g, x| vec![g.matmul(x[0], x[1])]);
    for [n, k] in [[50, 64], [1200, 60]] {
        check(&[&[16, k], &[n, k]], 0, |g, x| vec![g.matmul_bt(x[0], x[1])]);
    }
    for [m, n, k] in [[1, 1, 1], [8, 8, 16], [3, 17, 9]] {
        check_from(Some(0), &[&[m, k], &[n, k]], 1, |g, x| vec![g.matmul_bt(x[0], x[1])]);
    }
}

/// Matmuls of few rows are correct if the matrix is in `f16`, like stored weights.
#[test]
fn products_of_few_rows_with_halves() {
    check(&[&[6, 320], &[230, 320]], 1, |g, x| {
        let halves = g.cast(x[1], DType::F16);
        let halves = g.cast(halves, DType::F32);
        vec![g.matmul_bt(x[0], halves)]
    });
}

/// Matmuls are correct if both operands are in `f16`. They are read as vectors of eight, or of fewer elements for
/// other row lengths.
#[test]
fn products_of_halves() {
    for [m, n, k] in [[72, 136, 40], [33, 41, 77]] {
        let halves = |g: &mut Graph, x: NodeId| {
            let halves = g.cast(x, DType::F16);
            g.cast(halves, DType::F32)
        };
        check_from(Some(0), &[&[m, k], &[k, n]], 1, |g, x| {
            let [a, b] = [x[0], x[1]].map(|x| halves(g, x));
            vec![g.matmul(a, b)]
        });
        check_from(Some(0), &[&[k, m], &[n, k]], 1, |g, x| {
            let [a, b] = [x[0], x[1]].map(|x| halves(g, x));
            let a = g.transpose(a);
            let product = g.matmul_bt(a, b);
            vec![g.neg(product)]
        });
    }
}

#[test]
fn what_follows_a_product_is_done_with_it() {
    check(&[&[380, 100], &[100, 390], &[390]], 1, |g, x| {
        let product = g.matmul(x[0], x[1]);
        let sum = g.add(product, x[2]);
        vec![g.relu(sum)]
    });
}

#[test]
fn convolutions() {
    let options = Conv2dOptions {
        padding: [1, 1],
        ..Conv2dOptions::default()
    };
    check(&[&[3, 20, 33, 31], &[66, 20, 3, 3]], 1, |g, x| {
        vec![g.conv2d(x[0], x[1], options)]
    });
}

#[test]
fn small_products_and_full_precision_use_no_matrix_units() {
    check(&[&[30, 40], &[40, 50]], 0, |g, x| vec![g.matmul(x[0], x[1])]);
    for device in devices() {
        let mut g = Graph::new();
        let (a, b) = (g.input("a", &[512, 512]), g.input("b", &[512, 512]));
        let product = g.matmul(a, b);
        g.set_outputs(vec![product]);
        let plan = compile_for(&g, &*device).expect("a plan");
        assert!(plan.dispatches.iter().all(|d| !d.use_coop));
    }
}

/// Matmuls that are smaller than a tile, or slightly larger, use cooperative matrices if the settings request this.
#[test]
fn small_products_on_request() {
    for [m, n, k] in [[1, 1, 1], [3, 5, 2], [8, 8, 8], [17, 1, 40], [1, 33, 9], [16, 24, 100]] {
        check_from(Some(0), &[&[m, k], &[k, n]], 1, |g, x| {
            let product = g.matmul(x[0], x[1]);
            vec![g.neg(product)]
        });
    }
    check_from(Some(0), &[&[2, 3, 5, 5], &[4, 3, 3, 3]], 1, |g, x| {
        vec![g.conv2d(x[0], x[1], Conv2dOptions::default())]
    });
}

#[test]
fn settings_of_matrix_units_are_checked() {
    for (setting, expected) in [
        ("coop_tile = 7", "use 8 or 16"),
        ("coop_min_workgroups = -1", "non-negative"),
        ("coop_min_workgroups = 4294967296", "at most 4294967295"),
        ("coop_intermediates = \"half\"", "use 'f16' or 'f32'"),
    ] {
        let config: Config = toml::from_str(&format!("[backend.blade]\n{setting}")).expect("a configuration");
        let Some(device) = BladeBackend.devices(&config).expect("a listing").into_iter().next() else {
            return;
        };
        let error = BladeBackend.open(device.index, &config).err().expect("an error");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Products beyond 65,504, the largest `f16`, are infinite rather than wrong.
#[test]
fn what_no_half_holds_becomes_infinite() {
    for device in devices() {
        let mut g = Graph::new();
        let (a, b) = (g.input("a", &[384, 32]), g.input("b", &[32, 384]));
        let product = g.matmul(a, b);
        g.set_outputs(vec![product]);
        let plan = compile_at(&g, &*device, Precision::Mixed).expect("a plan");
        let mut session = Session::on(device, plan).expect("a session");
        session.set_input("a", &vec![1e6; 384 * 32]);
        session.set_input("b", &vec![1.0; 384 * 32]);
        session.step();
        let mut found = vec![0.0; 384 * 384];
        session.read_output_by_index(0, &mut found);
        assert!(found.iter().all(|v| *v == f32::INFINITY), "{}", found[0]);
    }
}
