//! Selection of a device's cooperative matrices. Listed ones must pass a multiplication test.
//!
//! Drivers that list cooperative matrices may still reject kernels that use them, or compute wrong results. Values
//! that blade does not report, such as the subgroup size, may be guessed wrongly. So a test first multiplies some
//! matrices with the selected configuration, and disables it if a result is wrong.

use std::collections::HashMap;

use meganeura_core::backend::SharedBuffers;
use meganeura_core::plan::try_compile;
use meganeura_core::random::SplitMix64;
use meganeura_core::{Error, Graph, Result};

use super::custom::CustomKernels;
use super::device::Host;
use super::dispatch::{F16Storage, KernelOptions};
use super::draft::LaunchPlan;
use super::once::{Word, run_once};
use crate::Features;
use crate::coop::{CoopConfig, MIN_COOP_WORKGROUPS};

/// Default subgroup size if the driver does not report it. It is the size of NVIDIA GPUs, and of other GPUs in one of
/// their modes.
const USUAL_SUBGROUP: u32 = 32;
/// Maximum number of resident workgroups with large blocks on a multiprocessor. Measured on an H200, where shared
/// memory and registers permit no more.
const MAX_RESIDENT: u32 = 2;

/// Cooperative matrices that a driver lists: number of rows and columns of their tiles, by operand type; 0 if
/// unsupported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tiles {
    /// Size of tiles of `f16` operands with sums in `f32`.
    pub f16: u32,
    /// Size of tiles of `f32` operands.
    pub f32: u32,
}

/// Settings for cooperative matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoopSettings {
    /// Tile size; 0 disables cooperative matrices.
    pub tile: Option<u32>,
    /// Value for [`CoopConfig::min_workgroups`].
    pub min_workgroups: Option<u32>,
    /// Value for [`CoopConfig::max_resident_workgroups`].
    pub max_resident_workgroups: Option<u32>,
    /// True if results that only cooperative matrices read are stored as `f32` instead of `f16`.
    pub wide_results: bool,
    /// Value for [`CoopConfig::wide_rows`].
    pub wide_rows: bool,
}

/// Selects the configuration for the listed tiles: `f16` if supported, otherwise `f32`, otherwise `None`.
pub fn select_coop_config(tiles: Tiles) -> Option<CoopConfig> {
    let config = |tile_size, use_f16_input| CoopConfig {
        tile_size,
        use_f16_input,
        subgroup_size: USUAL_SUBGROUP,
        min_workgroups: MIN_COOP_WORKGROUPS,
        max_resident_workgroups: 0,
        wide_rows: false,
    };
    match (tiles.f16, tiles.f32) {
        (0, 0) => None,
        (0, tile) => Some(config(tile, false)),
        (tile, _) => Some(config(tile, true)),
    }
}

/// Returns the configuration of a device: the default for its cooperative matrices, modified by the `wanted`
/// settings. Returns `None` if it fails the test `multiplies`. The two numbers are the subgroup size and the number
/// of multiprocessors, if the driver reports them.
pub fn choose(
    device: &str,
    tiles: Tiles,
    [subgroup_size, multiprocessors]: [Option<u32>; 2],
    wanted: CoopSettings,
    multiplies: impl Fn(&CoopConfig) -> Result<()>,
) -> Option<CoopConfig> {
    let mut config = select_coop_config(tiles)?;
    match wanted.tile {
        Some(0) => return None,
        Some(tile) => config.tile_size = tile,
        None => {}
    }
    config.subgroup_size = subgroup_size.unwrap_or(USUAL_SUBGROUP);
    let max_resident_workgroups = multiprocessors.map(|count| MAX_RESIDENT.saturating_mul(count));
    config.max_resident_workgroups = wanted.max_resident_workgroups.or(max_resident_workgroups).unwrap_or(0);
    config.wide_rows = wanted.wide_rows;
    config.min_workgroups = wanted.min_workgroups.unwrap_or(MIN_COOP_WORKGROUPS);
    match multiplies(&config) {
        Ok(()) => {
            log::info!("{device}: cooperative matrices pass their test: {config:?}");
            Some(config)
        }
        Err(error) => {
            log::warn!("{device}: cooperative matrices are not used, because their test fails ({config:?}): {error}");
            None
        }
    }
}

/// A matmul of the test. `output` is the factor times `a` times `b`; both may be stored transposed.
struct Product {
    operands: [&'static str; 2],
    sizes: [usize; 3],
    transposed: [bool; 2],
    factor: f64,
}

/// Returns the matmuls of the test: whole blocks, whose tiles are stored directly; odd sizes, whose elements are
/// stored one by one; operands with and without transposition; small blocks of few rows and of more rows.
fn products(config: &CoopConfig) -> [Product; 5] {
    // These sizes have enough tiles for cooperative matrices and large blocks.
    let side = 32 * config.tile_size as usize;
    let product = |operands, sizes, transposed, factor| Product {
        operands,
        sizes,
        transposed,
        factor,
    };
    [
        product(["a", "b"], [side, side, 64], [false, false], 1.0),
        product(["c", "d"], [side - 6, side + 5, 75], [true, false], -1.0),
        product(["e", "f"], [side + 4, side - 8, 76], [false, true], -1.0),
        product(["g", "h"], [13, 130, 600], [false, true], 1.0),
        product(["i", "j"], [44, 164, 300], [false, false], -1.0),
    ]
}

fn test_graph(products: &[Product]) -> Graph {
    let mut g = Graph::new();
    let mut outputs = Vec::new();
    for product in products {
        let [m, n, k] = product.sizes;
        let shapes = [[m, k], [k, n]];
        let [a, b] = [0, 1].map(|i| {
            let mut shape = shapes[i];
            if product.transposed[i] {
                shape.reverse();
            }
            g.input(product.operands[i], &shape)
        });
        let result = match product.transposed {
            [true, _] => g.matmul_at(a, b),
            [_, true] => g.matmul_bt(a, b),
            _ => g.matmul(a, b),
        };
        outputs.push(if product.factor < 0.0 { g.neg(result) } else { result });
    }
    g.set_outputs(outputs);
    g
}

/// Multiplies matrices with a configuration, and compares the results with sums in `f64`.
///
/// # Errors
/// The driver rejects the kernels, or the error of a result exceeds the rounding error.
pub fn test_coop_matmul(device: &dyn Host, config: &CoopConfig) -> Result<()> {
    check_products(device.backend(), config, |graph, operands| {
        // Compiling a plan for the device would query the cooperative matrices that are being tested.
        let mut plan = try_compile(graph)?;
        plan.dispatches.iter_mut().for_each(|d| d.use_coop = true);
        let with = KernelOptions {
            backend: device.backend(),
            library: None,
            coop: Some(*config),
            features: Features::default(),
            custom: &CustomKernels::new(),
            choices: None,
            f16_storage: F16Storage::No,
        };
        let mut executable = device.executable(&plan, LaunchPlan::of(&plan, &with)?, &SharedBuffers::new())?;
        let words = |name: &str| operands[name].iter().map(|v| v.to_le_bytes()).collect();
        let found = run_once(&mut *executable, &plan, words)?;
        let numbers = |words: &Vec<Word>| words.iter().map(|&w| f32::from_le_bytes(w)).collect();
        Ok(found.iter().map(numbers).collect())
    })
}

/// Values of inputs by name.
type Operands = HashMap<String, Vec<f32>>;

/// Runs the comparison of [`test_coop_matmul`] on the results of `multiply`, which computes the outputs of a graph
/// from its inputs.
fn check_products(
    backend: &'static str,
    config: &CoopConfig,
    multiply: impl FnOnce(&Graph, &Operands) -> Result<Vec<Vec<f32>>>,
) -> Result<()> {
    /// Number of checked elements of a result, in addition to the corners.
    const LOOKED_AT: usize = 500;
    let products = products(config);
    let graph = test_graph(&products);
    let mut rng = SplitMix64::new(17);
    let mut operands = Operands::new();
    for id in graph.node_ids() {
        let node = &graph.nodes()[id.index()];
        if let (false, Some(name)) = (node.is_op(), &node.name) {
            let len = node.outputs[0].numel();
            let values = (0..len).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect();
            operands.insert(name.to_string(), values);
        }
    }
    let results = multiply(&graph, &operands)?;
    for (product, result) in products.iter().zip(&results) {
        let [m, n, k] = product.sizes;
        let [a, b] = product.operands.map(|name| &operands[name]);
        let corners = [(0, 0), (0, n - 1), (m - 1, 0), (m - 1, n - 1)];
        let inner: Vec<(usize, usize)> = (0..LOOKED_AT).map(|_| (rng.below(m), rng.below(n))).collect();
        for (row, column) in corners.into_iter().chain(inner) {
            let term = |i: usize| {
                let a = if product.transposed[0] {
                    a[i * m + row]
                } else {
                    a[row * k + i]
                };
                let b = if product.transposed[1] {
                    b[column * k + i]
                } else {
                    b[i * n + column]
                };
                f64::from(a) * f64::from(b)
            };
            let want = product.factor * (0..k).map(term).sum::<f64>();
            let got = f64::from(result[row * n + column]);
            // The relative error of each factor is at most 2^-11, and no product of two elements is above 1.
            let close = 2e-3 * (k as f64).sqrt();
            if (got - want).abs() > close || got.is_nan() {
                return Err(Error::backend(
                    backend,
                    format!("element [{row}, {column}] of a matmul of {m}x{k} and {k}x{n} is {got}, not {want}"),
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coop::prefers_coop;
    use meganeura_core::reference::evaluate;

    const TILES: Tiles = Tiles { f32: 0, f16: 8 };

    /// Returns the configuration that is selected if `change` modifies the correct results.
    fn choice(change: impl Fn(&mut Vec<Vec<f32>>)) -> Option<CoopConfig> {
        choose("a device", TILES, [Some(8), None], CoopSettings::default(), |config| {
            check_products("gpu", config, |graph, operands| {
                let feeds = operands.iter().map(|(name, values)| {
                    let values = values.iter().map(|&v| f64::from(v)).collect();
                    (name.clone(), values)
                });
                let evaluation = evaluate(graph, &feeds.collect())?;
                let mut results: Vec<Vec<f32>> = graph
                    .outputs()
                    .iter()
                    .filter_map(|&v| evaluation.get(v))
                    .map(|tensor| tensor.data.iter().map(|&v| v as f32).collect())
                    .collect();
                change(&mut results);
                Ok(results)
            })
        })
    }

    #[test]
    fn tiles_of_half_precision_come_first() {
        let tile = |f16, f32| {
            let config = select_coop_config(Tiles { f32, f16 })?;
            Some((config.tile_size, config.use_f16_input))
        };
        assert_eq!(tile(16, 8), Some((16, true)));
        assert_eq!(tile(0, 8), Some((8, false)));
        assert_eq!(tile(0, 0), None);
    }

    #[test]
    fn only_units_that_multiply_right_are_used() {
        let config = choice(|_| ()).expect("right results");
        assert_eq!((config.tile_size, config.subgroup_size), (8, 8));
        // First a misplaced tile, then a driver that computes nothing.
        assert_eq!(choice(|results| results[1].swap(0, 8)), None);
        assert_eq!(choice(|results| results[2].fill(0.0)), None);
        // A driver that ignores the offset and always loads the first tile of shared memory. All tiles of a block
        // then equal the first one.
        let first_tile = |results: &mut Vec<Vec<f32>>| {
            let (side, tile) = (32 * 8, 8);
            let right = results[0].clone();
            for (at, value) in results[0].iter_mut().enumerate() {
                let first = |place: usize| place / (4 * tile) * (4 * tile) + place % tile;
                *value = right[first(at / side) * side + first(at % side)];
            }
        };
        assert_eq!(choice(first_tile), None);
        assert_eq!(choice(|results| results[0].fill(f32::NAN)), None);
        let chosen = |tile, works: bool| {
            let wanted = CoopSettings {
                wide_results: false,
                wide_rows: false,
                tile,
                min_workgroups: Some(7),
                max_resident_workgroups: None,
            };
            choose("a device", TILES, [None, Some(3)], wanted, |_| {
                if works {
                    Ok(())
                } else {
                    Err(Error::backend("gpu", "refused"))
                }
            })
        };
        assert_eq!(chosen(None, false), None);
        assert_eq!(chosen(Some(0), true), None);
        let config = chosen(Some(16), true).expect("it works");
        assert_eq!(
            (config.tile_size, config.min_workgroups, config.max_resident_workgroups),
            (16, 7, 6)
        );
    }

    #[test]
    fn small_products_are_left_to_single_threads() {
        let config = select_coop_config(Tiles { f32: 0, f16: 16 });
        let config = config.expect("tiles");
        assert!(
            prefers_coop(&config, 1, 50, 2048, 64),
            "two times 64 workgroups are just enough"
        );
        assert!(!prefers_coop(&config, 1, 50, 2047 - 31, 64));
        assert!(prefers_coop(&config, 1, 32, 1024, 1024));
        assert!(!prefers_coop(&config, 1, 32, 1024, 1023));
        let always = CoopConfig {
            min_workgroups: 0,
            ..config
        };
        assert!(prefers_coop(&always, 1, 1, 1, 1));
    }
}
