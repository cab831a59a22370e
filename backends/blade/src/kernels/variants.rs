//! Ways to compute a product: which there are, which is commonly the best, and names for them that outlive the program.
//!
//! Commonly a product is computed in the way that hand-written limits choose ([`Tiles::usual`]). Whoever measures can ask
//! for another ([`Choices`]): a product belongs to a [`Class`], and each way has a name. A name begins with a family and
//! its version, which is raised when its kernels change such that measurements hold no more.

use std::fmt;

use meganeura_core::precision::Precision;

use super::body::{Body, Id};
use super::coop::Blocks;
use super::module::CompileCx;
use super::tiled::{Products, Sizes, Tiling};
use super::vectors::{self, Vectors};

/// Families of ways, with their versions: how each name begins.
const FAMILIES: [&str; 5] = ["direct.v1", "tiles.v1", "lanes.v1", "wide.v1", "units.v1"];
/// Products up to which a thread for each result is as good, and simpler.
const FEW_PRODUCTS: usize = 1 << 16;
/// Longest sum of such a thread.
const SHORT_SUM: usize = 256;
/// Products up to which it is tried.
const MOST_DIRECT: usize = 1 << 22;
/// Rows, and batches, up to which each number is a class of its own.
const EXACT_ROWS: usize = 16;

/// Whether a name is that of a way of this version.
pub(crate) fn is_known(name: &str) -> bool {
    name.split(' ').next().is_some_and(|family| FAMILIES.contains(&family))
}

/// Products for which one way is chosen: what is multiplied, how operands lie in memory, sizes, whether anything is
/// computed along with the product, and the precision of the plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class {
    /// All of it, as one text.
    pub(crate) name: String,
    /// Sizes of the product at hand: batch, rows, columns, terms. Numbers of rows and batches are but part of a range in the
    /// name, unless there are few.
    pub(crate) sizes: [usize; 4],
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Class {
    fn of(body: &Body, id: Id, cx: &CompileCx, products: &dyn Products, reduces: bool, precision: Precision) -> Self {
        let Sizes { batch, m, n, k } = products.sizes();
        let operand = |operand: usize| {
            let dtype = products.stored(operand).map(|i| cx.kernel.inputs[i].dtype.to_string());
            let dtype = dtype.unwrap_or_else(|| "computed".into());
            let along = match (products.is_along_k(operand), operand) {
                (true, _) => 'k',
                (false, 0) => 'm',
                (false, _) => 'n',
            };
            format!("{dtype}.{along}")
        };
        let around = match (reduces, body.results == [id]) {
            (true, _) => "after reductions",
            (false, true) => "alone",
            (false, false) => "with more",
        };
        Class {
            name: format!(
                "{} {}*{} {}x{}x{n}x{k} {around} {precision}",
                products.kind(),
                operand(0),
                operand(1),
                range(batch),
                range(m)
            ),
            sizes: [batch, m, n, k],
        }
    }
}

/// The range of sizes that are one class: a power of two, and what is above the next smaller one.
fn range(size: usize) -> String {
    match size {
        ..=EXACT_ROWS => size.to_string(),
        _ => {
            let last = size.checked_next_power_of_two().unwrap_or(usize::MAX);
            format!("{}..{last}", last / 2 + 1)
        }
    }
}

/// Chooses ways for the products of a plan.
pub(crate) trait Choices {
    /// Precision of the plan.
    fn precision(&self) -> Precision;

    /// The name of the way for a class, if it is not the usual one. `offered` gives the names of all that there are, the
    /// usual one first.
    fn choose(&self, class: &Class, offered: &dyn Fn() -> Vec<String>) -> Option<String>;

    /// There is no such way for a product, or no kernel can be made of it; the usual one is used.
    fn missing(&self, class: &Class, name: &str) {
        let _ = (class, name);
    }
}

/// A product cut into tiles of one kind or the other.
pub(super) enum Tiles<'a> {
    /// A thread for each result.
    Direct,
    Threads(Tiling<'a>),
    Units(Blocks<'a>),
    Vectors(Vectors<'a>),
}

/// A product as the ways to compute it see it.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) body: &'a Body,
    pub(super) id: Id,
    pub(super) cx: &'a CompileCx<'a>,
    pub(super) products: &'a dyn Products,
    /// Elements of the result.
    pub(super) total: usize,
    /// Whether reductions come before it, which only [`vectors`] can do.
    pub(super) reduces: bool,
}

impl<'a> Tiles<'a> {
    /// The way that limits choose, which were found by measuring some devices; `None` for many rows after reductions.
    pub(super) fn usual(product: &Product<'a>) -> Option<Self> {
        let Product {
            cx, products, total, ..
        } = *product;
        let sizes = products.sizes();
        if product.reduces {
            return Vectors::new(products, total, cx).map(Tiles::Vectors);
        }
        let units_always = cx.coop.is_some_and(|config| config.min_workgroups == 0 && sizes.k > 0);
        if total.saturating_mul(sizes.k) <= FEW_PRODUCTS && sizes.k <= SHORT_SUM && !units_always {
            return Some(Tiles::Direct);
        }
        let units = cx.coop.and_then(|config| Blocks::new(products, config, total));
        // Units compute whole tiles, however few rows there are: reading the matrix without them is faster then.
        let few = sizes.m <= vectors::FEW_ROWS;
        Some(match (units, Vectors::new(products, total, cx)) {
            (Some(blocks), vectors) if units_always || !few || vectors.is_none() => Tiles::Units(blocks),
            (_, Some(vectors)) => Tiles::Vectors(vectors),
            (_, None) => Tiles::Threads(Tiling::new(products, total)),
        })
    }

    /// All ways, the usual one first.
    fn all(product: &Product<'a>) -> Vec<Self> {
        let Product {
            cx, products, total, ..
        } = *product;
        let mut all: Vec<Self> = Tiles::usual(product).into_iter().collect();
        all.extend(Vectors::all(products, total, cx).into_iter().map(Tiles::Vectors));
        if !product.reduces {
            all.extend(Tiling::all(products, total).into_iter().map(Tiles::Threads));
            let units = cx.coop.map(|config| Blocks::all(products, config, total));
            all.extend(units.unwrap_or_default().into_iter().map(Tiles::Units));
            if total.saturating_mul(products.sizes().k) <= MOST_DIRECT {
                all.push(Tiles::Direct);
            }
        }
        let mut names = std::collections::HashSet::new();
        all.retain(|tiles| names.insert(tiles.name()));
        all
    }

    /// The way that choices ask for, and the class for which they do; `None` where the usual one is as good as they know.
    pub(super) fn chosen(product: &Product<'a>) -> Option<(Self, Class)> {
        let choices = product.cx.choices?;
        let Product {
            body,
            id,
            cx,
            products,
            reduces,
            ..
        } = *product;
        let class = Class::of(body, id, cx, products, reduces, choices.precision());
        let all = || Tiles::all(product);
        let name = choices.choose(&class, &|| all().iter().map(Tiles::name).collect())?;
        match all().into_iter().find(|tiles| tiles.name() == name) {
            Some(tiles) => Some((tiles, class)),
            None => {
                choices.missing(&class, &name);
                None
            }
        }
    }

    /// Its name.
    pub(super) fn name(&self) -> String {
        let [direct, tiles, lanes, wide, units] = FAMILIES;
        match self {
            Tiles::Direct => direct.to_owned(),
            Tiles::Threads(tiling) => format!("{tiles} side={} parts={}", tiling.tile, tiling.parts),
            Tiles::Vectors(vectors) => match vectors.wide() {
                Some(wide_one) => format!("{wide} columns={} parts={}", wide_one.columns(), wide_one.parts()),
                None => format!("{lanes} lanes={} parts={}", vectors.lanes(), vectors.parts()),
            },
            Tiles::Units(blocks) => {
                let b = blocks.block();
                let tail = blocks.tail().map(|t| format!(" tail={}x{}", t.blocks, t.parts()));
                format!(
                    "{units} block={}x{}x{} each={}x{} depths={} ahead={} parts={}{}",
                    b.rows,
                    b.columns,
                    b.step,
                    b.sub_rows,
                    b.sub_columns,
                    b.depths,
                    b.ahead,
                    blocks.parts(),
                    tail.unwrap_or_default()
                )
            }
        }
    }
}
