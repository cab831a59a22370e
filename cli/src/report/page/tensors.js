// What is in the tensors of a step: a table with a histogram in every row.

/** A number in few characters. */
function brief(x) {
  const size = Math.abs(x);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? x.toExponential(2) : String(Number(x.toPrecision(4)));
}

/** Bars from the smallest to the largest element, and a line at 0 where it lies between. */
function histogramOf({ min, max, counts }) {
  // Equal numbers are one thin bar.
  const high = Math.max(...counts), alone = counts.length === 1, width = alone ? 6 : 160 / counts.length;
  const bars = counts.map((n, i) => {
    // What is there can be seen, however little it is.
    const tall = n ? Math.max(1, 34 * n / high) : 0;
    return `<rect x="${(alone ? 77 : i * width).toFixed(1)}" y="${(36 - tall).toFixed(1)}" width="${Math.max(width - 0.6, 1).toFixed(1)}" height="${tall.toFixed(1)}"/>`;
  });
  const zero = min < 0 && max > 0 ? (160 * -min / (max - min)).toFixed(1) : null;
  const line = zero === null ? "" : `<line x1="${zero}" x2="${zero}" y1="0" y2="36"/>`;
  return `<svg class="histogram" viewBox="0 0 160 36" width="160" height="36" role="img" aria-label="histogram">${bars.join("")}${line}</svg>`;
}

class TensorTable {
  constructor(tensors) {
    this.most = 60;
    // What is wrong comes first.
    const bad = (t) => t.nan + t.infinite > 0;
    this.tensors = [...tensors.filter(bad), ...tensors.filter((t) => !bad(t))];
    const kinds = [...new Set(tensors.map((t) => t.kind))];
    byId("tensor-kind").innerHTML = ["all", ...kinds].map((kind) => `<option>${escapeHtml(kind)}</option>`).join("");
    for (const id of ["tensor-kind", "tensor-search"]) byId(id).addEventListener("input", () => this.show());
    this.show();
  }

  show() {
    const kind = byId("tensor-kind").value, wanted = byId("tensor-search").value.trim().toLowerCase();
    const own = this.tensors.filter((t) => (kind === "all" || t.kind === kind) && t.name.toLowerCase().includes(wanted));
    byId("tensor-count").textContent = own.length > this.most ? `${this.most} of ${own.length} are shown` : `${own.length} tensors`;
    table("tensor-rows", [["kind", "short"], ["name", false], ["histogram", false], ["min", true], ["max", true],
      ["mean", true], ["deviation", true], ["zeros", true], ["NaN", true], ["infinite", true]],
      own.slice(0, this.most).map((t) => {
        const f = t.finite, count = (n) => (n ? `<b class="bad">${n}</b>` : "");
        const numbers = f ? [f.min, f.max, f.mean, f.deviation].map(brief) : ["", "", "", ""];
        const zeros = t.zeros ? percent(t.zeros / t.len) : "";
        return [escapeHtml(t.kind), `${soft(t.name)}<br><span class="hint">${soft(t.details)}</span>`,
          f ? histogramOf(f) : "", ...numbers, zeros, count(t.nan), count(t.infinite)];
      }));
  }
}
