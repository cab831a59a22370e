#!/usr/bin/env python3
"""Fits the polynomial coefficients in src/coeffs.rs (needs only mpmath).

Each fit is a weighted minimax (Remez exchange) of `target(x)` by
`sum(c[k] * x**k)` on an interval. `weight` turns the error of the fitted
factor into the error that matters: the relative error of the function built
from it. The printed figure is that error with the coefficients already rounded
to the storage format.

    python3 scripts/fit.py > src/coeffs.rs && rustfmt --edition 2024 src/coeffs.rs
"""
import struct
from mpmath import mp, mpf, matrix, lu_solve, exp, log, sin, erf, erfc, sqrt, pi, atanh, cos, log1p

mp.dps = 40


def to_f32(v):
    return struct.unpack("<f", struct.pack("<f", float(v)))[0]


def f32_literal(v):
    v = to_f32(v)
    for digits in range(1, 18):
        text = f"{v:.{digits}g}"
        if to_f32(float(text)) == v:
            return text
    raise ValueError(v)


def remez(target, weight, lo, hi, degree, rounds=12, grid=1200):
    """Weighted minimax polynomial of the given degree on [lo, hi]."""
    n = degree + 2
    lo, hi = mpf(lo), mpf(hi)
    points = [(lo + hi) / 2 - (hi - lo) / 2 * cos(pi * i / grid) for i in range(grid + 1)]
    # An interval end of exactly zero makes quotients like sin(x)/x undefined.
    points = [p if p != 0 else (hi - lo) * mpf(10) ** -9 for p in points]
    values = [(p, target(p), weight(p)) for p in points]
    nodes = [round(i * grid / (n - 1)) for i in range(n)]
    coeffs = None
    for _ in range(rounds):
        a, b = matrix(n, n), matrix(n, 1)
        for row, node in enumerate(nodes):
            x, t, w = values[node]
            for k in range(degree + 1):
                a[row, k] = x ** k
            a[row, n - 1] = (-1) ** row / w
            b[row] = t
        solution = lu_solve(a, b)
        coeffs = [solution[k] for k in range(degree + 1)]
        errors = [w * (horner(coeffs, x) - t) for x, t, w in values]
        new_nodes = alternating_peaks(errors, n)
        if new_nodes is None or new_nodes == nodes:
            break
        nodes = new_nodes
    return coeffs, values


def alternating_peaks(errors, n):
    """Index of the largest error in each run of one sign, best n in a row."""
    peaks = []
    for i, e in enumerate(errors):
        if peaks and (errors[peaks[-1]] > 0) == (e > 0):
            if abs(e) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > n:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    return peaks if len(peaks) == n else None


def horner(coeffs, x):
    total = mpf(0)
    for c in reversed(coeffs):
        total = total * x + c
    return total


def emit(name, doc, target, weight, lo, hi, degree, wide=False):
    coeffs, values = remez(target, weight, lo, hi, degree)
    if wide:
        stored = [float(c) for c in coeffs]
        literals = [repr(c) for c in stored]
    else:
        stored = [to_f32(c) for c in coeffs]
        literals = [f32_literal(c) for c in stored]
    worst = max(abs(w * (horner([mpf(c) for c in stored], x) - t)) for x, t, w in values)
    literals = [t if "." in t or "e" in t else t + ".0" for t in literals]
    kind = "f64" if wide else "f32"
    print(f"\n/// {doc}\n/// Error of the fit: 2^{float(log(worst, 2)):.1f}.")
    print(f"pub(super) const {name}: [{kind}; {degree + 1}] = [")
    for t in literals:
        print(f"    {t},")
    print("];")


HALF_LN2 = log(2) / 2
LOG_LO, LOG_HI = sqrt(mpf(1) / 2) - 1, sqrt(mpf(2)) - 1
ATANH_MAX = (sqrt(mpf(2)) - 1) / (sqrt(mpf(2)) + 1)


def half_erfcx(t):
    """exp(a^2/2) * (1 + a) * erfc(a/sqrt 2) / 2 with a = 4 (1 + t) / (1 - t)."""
    a = 4 * (1 + t) / (1 - t)
    return exp(a * a / 2) * (1 + a) * erfc(a / sqrt(mpf(2))) / 2


print("//! Polynomial coefficients, lowest power first.")
print("//!")
print("//! Written by `scripts/fit.py` (weighted Remez exchange); do not edit by hand.")
print("//! Errors are relative to the whole function, with rounded coefficients.")
print("\n// Fitted values may come close to well-known constants without being them.")
print("#![allow(clippy::approx_constant)]")

emit("EXP", "`(e^r - 1 - r) / r^2` for `|r| <= ln(2)/2`.",
     lambda r: (exp(r) - 1 - r) / r ** 2, lambda r: r ** 2 / exp(r), -HALF_LN2, HALF_LN2, 4)
emit("EXP2", "`2^r` for `|r| <= 1/2`.",
     lambda r: exp(r * log(2)), lambda r: exp(-r * log(2)), mpf(-1) / 2, mpf(1) / 2, 6)
emit("LOG", "`(ln(1 + f) - f + f^2/2) / f^3` for `1 + f` in `[sqrt(1/2), sqrt(2)]`.",
     lambda f: (log1p(f) - f + f * f / 2) / f ** 3, lambda f: f ** 3 / log1p(f), LOG_LO, LOG_HI, 8)
emit("ATANH", "`(atanh(s)/s - 1) / s^2` in `s^2`, for `s` in `[0, 1/3]`.",
     lambda z: (atanh(sqrt(z)) / sqrt(z) - 1) / z, lambda z: z, 0, mpf(1) / 9, 4)
emit("SIN", "`(sin(r)/r - 1) / r^2` in `r^2`, for `|r| <= pi/2`.",
     lambda z: (sin(sqrt(z)) / sqrt(z) - 1) / z, lambda z: z * sqrt(z) / sin(sqrt(z)), 0, pi * pi / 4, 3)
emit("ERF_SMALL", "`erf(x)/x - 1` in `x^2`, for `|x| <= 1`.",
     lambda z: erf(sqrt(z)) / sqrt(z) - 1, lambda z: sqrt(z) / erf(sqrt(z)), 0, 1, 6)
emit("ERF_LARGE", "`ln(1 - erf(x))` for `x` in `[1, 4]`.",
     lambda x: log(erfc(x)), lambda x: erfc(x) / erf(x), 1, 4, 7)
emit("HALF_ERFCX", "`(1 + a) e^(a^2/2) erfc(a/sqrt(2)) / 2` in `t = (a - 4)/(a + 4)`, for `a` in `[0, 20]`.",
     half_erfcx, lambda t: 1 / half_erfcx(t), -1, mpf(16) / 24, 10)
emit("LOG2_WIDE", "`log2(m)/s` in `s^2` with `s = (m - 1)/(m + 1)`, for `m` in `[sqrt(1/2), sqrt(2)]`.",
     lambda z: 2 * atanh(sqrt(z)) / sqrt(z) / log(2), lambda z: sqrt(z) / atanh(sqrt(z)) * log(2) / 2,
     0, ATANH_MAX ** 2, 4, wide=True)
emit("EXP2_WIDE", "`2^r` for `|r| <= 1/2`.",
     lambda r: exp(r * log(2)), lambda r: exp(-r * log(2)), mpf(-1) / 2, mpf(1) / 2, 7, wide=True)
