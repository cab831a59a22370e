//! Polynomial coefficients, lowest power first.
//!
//! Written by `scripts/fit_vmath.py` (weighted Remez exchange); do not edit by hand.
//! Errors are relative to the whole function, with rounded coefficients.

// Fitted values may be close to well-known constants without being equal to them.
#![allow(clippy::approx_constant)]

/// `(e^r - 1 - r) / r^2` for `|r| <= ln(2)/2`.
/// Error of the fit: 2^-28.0.
pub(super) const EXP: [f32; 5] = [0.49999994, 0.16666521, 0.04166839, 0.00836871, 0.0013814614];

/// `2^r` for `|r| <= 1/2`.
/// Error of the fit: 2^-25.9.
pub(super) const EXP2: [f32; 7] = [
    1.0,
    0.6931472,
    0.24022646,
    0.055503286,
    0.009618489,
    0.0013399931,
    0.00015345817,
];

/// `(ln(1 + f) - f + f^2/2) / f^3` for `1 + f` in `[sqrt(1/2), sqrt(2)]`.
/// Error of the fit: 2^-28.2.
pub(super) const LOG: [f32; 9] = [
    0.33333313,
    -0.2500001,
    0.20002119,
    -0.16667996,
    0.14219552,
    -0.124055885,
    0.11888159,
    -0.11675654,
    0.0674665,
];

/// `(atanh(s)/s - 1) / s^2` in `s^2`, for `s` in `[0, 1/3]`.
/// Error of the fit: 2^-30.4.
pub(super) const ATANH: [f32; 5] = [0.33333337, 0.19999439, 0.14308442, 0.10713829, 0.12150467];

/// `(sin(r)/r - 1) / r^2` in `r^2`, for `|r| <= pi/2`.
/// Error of the fit: 2^-26.6.
pub(super) const SIN: [f32; 4] = [-0.1666666, 0.0083330665, -0.00019809602, 2.6057805e-06];

/// `erf(x)/x - 1` in `x^2`, for `|x| <= 1`.
/// Error of the fit: 2^-28.6.
pub(super) const ERF_SMALL: [f32; 7] = [
    0.12837917,
    -0.37612626,
    0.112835854,
    -0.026853813,
    0.0051883277,
    -0.0008010194,
    7.8538644e-05,
];

/// `ln(1 - erf(x))` for `x` in `[1, 4]`.
/// Error of the fit: 2^-26.3.
pub(super) const ERF_LARGE: [f32; 8] = [
    0.00018846804,
    -1.1295803,
    -0.6332164,
    -0.1084221,
    0.02521034,
    -0.0042052846,
    0.0004414726,
    -2.1697608e-05,
];

/// `(1 + a) e^(a^2/2) erfc(a/sqrt(2)) / 2` in `t = (a - 4)/(a + 4)`, for `a` in `[0, 20]`.
/// Error of the fit: 2^-25.7.
pub(super) const HALF_ERFCX: [f32; 11] = [
    0.4720532,
    -0.09670346,
    0.013999623,
    0.028599935,
    -0.03219771,
    0.017940158,
    -0.005002186,
    -0.0003017136,
    0.00069007394,
    -6.5412525e-05,
    -7.3505544e-05,
];

/// `log2(m)/s` in `s^2` with `s = (m - 1)/(m + 1)`, for `m` in `[sqrt(1/2), sqrt(2)]`.
/// Error of the fit: 2^-37.8.
pub(super) const LOG2_WIDE: [f64; 5] = [
    2.88539008179008,
    0.9617966733501238,
    0.5770835832638495,
    0.411672827022486,
    0.34072800824239047,
];

/// `2^r` for `|r| <= 1/2`.
/// Error of the fit: 2^-34.5.
pub(super) const EXP2_WIDE: [f64; 8] = [
    0.9999999999616818,
    0.6931471807284411,
    0.240226511981593,
    0.05550410353462211,
    0.009618027253479584,
    0.001333392255180918,
    0.00015469291196017673,
    1.5201924425937644e-05,
];
