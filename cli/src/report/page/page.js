// The page: tiles, tables, the legend, the search, and what connects the two graphs.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function colours(nodes) {
  const counts = new Map();
  for (const { mark } of nodes) if (mark) counts.set(mark, (counts.get(mark) || 0) + 1);
  const ranked = [...counts].sort((a, b) => b[1] - a[1]);
  return { ranked, colours: new Map(ranked.map(([mark], i) => [mark, PALETTE[i] || "#a5acb8"])) };
}

const before = unpack(data.before), after = unpack(data.after);
const marks = colours(after);
const views = [new GraphView(byId("before"), before, new Map()), new GraphView(byId("after"), after, marks.colours)];
byId("before-count").textContent = `${before.length} nodes`;
byId("after-count").textContent = `${after.length} nodes`;

// ---- legend ------------------------------------------------------------------------------------------

for (const [mark, count] of marks.ranked) {
  const button = document.createElement("button");
  button.innerHTML = `<i style="background:${marks.colours.get(mark)}"></i>${soft(mark)} ×${count}`;
  button.title = "Click to fade";
  button.onclick = () => {
    const hidden = views[1].hidden;
    hidden.has(mark) ? hidden.delete(mark) : hidden.add(mark);
    button.classList.toggle("off");
    views[1].paint();
  };
  byId("legend").append(button);
}

// ---- selection ---------------------------------------------------------------------------------------

views.forEach((view, side) => {
  view.onselect = (node) => {
    const other = views[1 - side];
    view.select(node);
    other.select(null);
    other.hits = new Set();
    if (node) {
      const same = other.nodes.filter((n) => (node.name ? n.name === node.name : n.place && n.place === node.place));
      other.hits = new Set(same.map((n) => n.id));
      if (same.length) other.show(same[0]);
      const count = `${same.length || "no"} node${same.length === 1 ? "" : "s"} of its name or source line in the other graph`;
      byId("selected").innerHTML = describe(node) + `<div class="hint">${count}</div>`;
    } else {
      byId("selected").textContent = "No node is selected.";
    }
    other.paint();
  };
});

let hit = -1;
function search(forward) {
  const wanted = byId("search").value.trim().toLowerCase();
  const matches = (n) => [n.name, n.op, n.place, n.mark].some((t) => t.toLowerCase().includes(wanted));
  const lists = views.map((v) => (wanted ? v.nodes.filter(matches) : []));
  views.forEach((v, i) => { v.hits = new Set(lists[i].map((n) => n.id)); v.paint(); });
  hit = forward ? hit + 1 : 0;
  views.forEach((v, i) => { if (lists[i].length) v.show(lists[i][hit % lists[i].length]); });
  byId("found").textContent = wanted ? `${lists[0].length} before, ${lists[1].length} after` : "";
}
byId("search").addEventListener("input", () => search(false));
byId("search").addEventListener("keydown", (e) => { if (e.key === "Enter") search(true); });

// ---- tables ------------------------------------------------------------------------------------------

/** Fills a table: heads as [text, whether it holds numbers, or "short" for short texts], cells as HTML. Cells know their
    heads: narrow pages show them there. */
function table(id, heads, rows) {
  const kind = (i) => (heads[i][1] ? ` class="${heads[i][1] === "short" ? "short" : "number"}"` : "");
  const label = (i) => (heads[i][0] ? ` data-label="${heads[i][0]}"` : "");
  const head = heads.map(([text], i) => `<th${kind(i)}>${text}</th>`).join("");
  const body = rows.map((r) => `<tr>${r.map((text, i) => `<td${kind(i)}${label(i)}>${text}</td>`).join("")}</tr>`).join("");
  const empty = rows.length ? "" : `<tr><td colspan="${heads.length}">none</td></tr>`;
  byId(id).innerHTML = `${heads.some(([text]) => text) ? `<thead><tr>${head}</tr></thead>` : ""}<tbody>${body}${empty}</tbody>`;
}
const percent = (part) => `${(100 * part).toFixed(1)}\u00a0%`;
const share = (part) => `${percent(part)}<span class="share" style="--share:${Math.min(1, part).toFixed(3)}"></span>`;

const timeline = new Timeline(byId("timeline"), data.plan);
// Segments that run once, when parameters were written, are no part of a step.
const once = data.plan.segments.filter((s) => s.once);
const isOnce = (i) => once.some((s) => i >= s.first && i < s.first + s.count);
const sum = (list) => list.reduce((total, d) => total + (d.ps || 0), 0);
const whole = sum(data.plan.dispatches.filter((_, i) => !isOnce(i))) || 1;
const onceTime = sum(data.plan.dispatches.filter((_, i) => isOnce(i)));
byId("time-source").textContent = "estimated by the device's cost model";
const cost = data.cost, last = cost.clustered || cost.rewritten;
// Plans with recomputation or an optimizer have dispatches that rewriting did not count.
const isWhole = Math.abs(whole - last) <= 0.005 * whole;
const difference = data.plan.is_recomputed ? "without recomputation" : "of the rewritten graph, before it was planned";
byId("time-sum").textContent = `All dispatches of a step together take ${time(whole)}`
  + (isWhole ? ", the estimated step" : `; the estimate ${difference} is ${time(last)}`)
  + (onceTime ? `; those that run once, when parameters were written, take ${time(onceTime)}` : "")
  + (timeline.end < 0.999 * (whole + onceTime)
    ? `; the timeline ends at ${time(timeline.end)}, because the dispatches of a level are drawn as if they ran at the same time.` : ".")
  + (timeline.lanes > LANES ? ` Dispatches after the first ${LANES - 1} of a level share the last line.` : "");
table("dispatches", [["estimated", true], ["share", true], ["kernel", false], ["from", false], ["reads → writes", false], ["traffic", true]],
  [...timeline.bars].sort((a, b) => b.ps - a.ps).slice(0, 40).map((b) => [
    time(b.ps), share(b.ps / (whole + onceTime)), kernelLink(b), soft(origin(b)), escapeHtml(`${b.in.join(", ")} → ${b.out.join(", ")}`),
    bytes(b.bytes)]));

if (data.kernels.length) new KernelCard(timeline, data.kernels);
else for (const id of ["kernel", "kernel-hint"]) byId(id).remove();

if (data.timings) {
  const total = data.timings.reduce((sum, r) => sum + r.us, 0) || 1;
  byId("measured").innerHTML = `<h2>Measured dispatches</h2><p class="hint">Times of the profiled steps; dispatches that run in one go
    are one row. The other times of this page are estimates.</p><table id="passes" class="stack"></table>`;
  table("passes", [["total", true], ["share", true], ["runs", true], ["mean", true], ["dispatch", false]],
    data.timings.map((r) => [time(r.us * 1e6), share(r.us / total), r.count,
      time(r.us * 1e6 / r.count), soft(r.label)]));
}

const rules = new Map();
for (const f of data.fusions) {
  const entry = rules.get(f.rule) || { set: f.set, ps: 0, names: [] };
  entry.ps += f.ps;
  entry.names.push(f.name);
  rules.set(f.rule, entry);
}
table("fusions", [["saves a step", true], ["times", true], ["rule", false], ["set", "short"], ["at", false]],
  [...rules].sort((a, b) => b[1].ps - a[1].ps).map(([rule, r]) => [
    time(r.ps), r.names.length, soft(rule), escapeHtml(r.set),
    soft(r.names.slice(0, 4).join(", ")) + (r.names.length > 4 ? ` and ${r.names.length - 4} more` : "")]));
table("clusters", [["saves a step", true], ["calls", true], ["name", false], ["program", false]],
  [...data.clusters].sort((a, b) => b.ps - a.ps).slice(0, 40).map((c) => [
    time(c.ps), c.calls, soft(c.name), `<code>${escapeHtml(c.program)}</code>`]));
table("facts", [["", false], ["", false]], data.environment.map(([k, v]) => [escapeHtml(k), escapeHtml(v)]));

if (data.memory) {
  new MemoryMap(byId("map"), data.memory);
  const { peak, bound, unplanned } = data.memory;
  byId("memory-facts").textContent = `${bytes(peak)} planned; ${bytes(unplanned)} without sharing; minimum ${bytes(bound)}.`;
} else for (const id of ["memory", "memory-link"]) byId(id).remove();

if (data.tensors.length) new TensorTable(data.tensors);
else for (const id of ["tensors", "tensors-link"]) byId(id).remove();

// ---- tiles -------------------------------------------------------------------------------------------

const saved = (from, to) => (from > 0 ? ` (${to <= from ? "−" : "+"}${Math.abs(100 * (1 - to / from)).toFixed(1)}\u00a0%)` : "");
const tiles = [
  [`${before.length}\u00a0→ ${after.length}`, "nodes"],
  [`${time(cost.before)}\u00a0→ ${time(last)}`, `estimated step, the sum of its dispatches${isWhole ? "" : ` ${difference}`}${saved(cost.before, last)}`],
  [cost.greedy ? time(cost.greedy) : "–", "greedy rewriting, for comparison"],
  [cost.exact ? "exact" : "not exact", cost.budget ? `extraction; budget hit: ${cost.budget}` : "extraction; no budget hit"],
  [`${data.plan.step_dispatches} in ${data.plan.step_levels}`, "dispatches in levels"
    + (data.plan.prepared_dispatches ? `, and ${data.plan.prepared_dispatches} that run once, when parameters were written` : "")],
  data.memory
    ? [bytes(data.memory.peak), `memory; ${bytes(data.memory.unplanned)} without sharing`]
    : [bytes(data.plan.bytes), `in ${data.plan.buffers} buffers`],
  [`${(data.ms.saturation + data.ms.extraction + data.ms.clustering).toFixed(0)} ms`, "rewriting"],
];
byId("tiles").innerHTML = tiles.map(([value, what]) => `<div><b>${escapeHtml(value)}</b><span>${escapeHtml(what)}</span></div>`).join("");
