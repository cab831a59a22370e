// The plan on canvases: levels over time, and the memory map.

const KINDS = new Map();
/** A colour for a kernel: the same for the same one. */
function kernelColour(kernel) {
  const name = kernel.split("[")[0];
  if (!KINDS.has(name)) KINDS.set(name, PALETTE[KINDS.size % PALETTE.length]);
  return KINDS.get(name);
}

const micro = (ps) => ps * 1e-6;
function time(ps) {
  const us = micro(ps);
  // No line break before the unit.
  return us >= 1e3 ? `${(us / 1e3).toFixed(2)}\u00a0ms` : us >= 1 ? `${us.toFixed(1)}\u00a0µs` : `${(us * 1e3).toFixed(0)}\u00a0ns`;
}
function bytes(n) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (n >= size) return `${(n / size).toFixed(1)}\u00a0${unit}`;
  return `${n}\u00a0B`;
}

/** Dispatches with where they start: levels one after the other, the dispatches of one side by side. */
function timelineOf(plan) {
  const bars = [];
  let start = 0, lanes = 1;
  for (const segment of plan.segments) {
    const list = plan.dispatches.slice(segment.first, segment.first + segment.count);
    for (let i = 0; i < list.length;) {
      let j = i, longest = 0;
      for (; j < list.length && list[j].level === list[i].level; j++) {
        const ps = list[j].ps ?? 0;
        bars.push({ ...list[j], segment: segment.name, start, ps, lane: j - i, number: segment.first + j });
        longest = Math.max(longest, ps);
      }
      lanes = Math.max(lanes, j - i);
      start += longest;
      i = j;
    }
  }
  return { bars, end: start, lanes };
}

// Lines of the timeline; the last one takes all further dispatches of a level.
const LANES = 12;

class Timeline extends Board {
  constructor(canvas, plan) {
    super(canvas, (c, w, h) => this.drawBars(c, w, h));
    Object.assign(this, timelineOf(plan));
    this.axes.y = false;
    this.most = 1e6;
    canvas.style.height = `${34 + 26 * Math.max(2, this.shownLanes())}px`;
    this.hover = (x, y, e) => {
      const bar = this.at(x, y);
      bar ? showTip(e, describeDispatch(bar)) : hideTip();
    };
  }

  start() {
    this.scale = (this.canvas.clientWidth - 20) / Math.max(this.end, 1) * 1e6;
    this.least = this.scale;
    this.left = 10;
  }

  lane() { return Math.min(26, (this.canvas.clientHeight - 34) / this.shownLanes()); }
  shownLanes() { return Math.max(1, Math.min(this.lanes, LANES)); }
  x(ps) { return this.left + micro(ps) * this.scale; }

  at(px, py) {
    const lane = Math.floor((py - 24) / this.lane());
    return this.bars.find((b) => Math.min(b.lane, LANES - 1) === lane && px >= this.x(b.start) && px <= this.x(b.start + b.ps));
  }

  drawBars(c, w, h) {
    const lane = this.lane();
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    const step = niceStep(micro(this.end), Math.max(1, (w / 110) * (this.scale / this.least)));
    c.strokeStyle = css("--line");
    c.fillStyle = css("--faint");
    const shown = Math.max(0, Math.floor(-this.left / this.scale / step) * step);
    for (let us = shown; us <= micro(this.end); us += step) {
      const x = this.x(us * 1e6);
      if (x > w) break;
      c.beginPath();
      c.moveTo(x, 18);
      c.lineTo(x, h);
      c.stroke();
      const label = time(us * 1e6);
      if (x + 3 + c.measureText(label).width <= w) c.fillText(label, x + 3, 10);
    }
    for (const bar of this.bars) {
      const x = this.x(bar.start), width = Math.max(micro(bar.ps) * this.scale, 0.5);
      if (x > w || x + width < 0) continue;
      const y = 24 + Math.min(bar.lane, LANES - 1) * lane;
      c.fillStyle = kernelColour(bar.kernel);
      c.fillRect(x, y, Math.max(width - (width > 3 ? 1 : 0), 0.5), lane - 2);
      const from = Math.max(x, 0), room = Math.min(x + width, w) - from - 9;
      if (room > 24) {
        c.fillStyle = "#10131a";
        c.fillText(fitted(c, short(bar.kernel), room), from + 4, y + lane / 2 - 1);
      }
    }
  }
}

function niceStep(whole, parts) {
  const raw = whole / parts, power = 10 ** Math.floor(Math.log10(raw || 1));
  return [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw) || 1;
}

/** The node that a dispatch is from; its label names the kernel as well. */
const origin = (d) => (d.label.endsWith(` (${d.kernel})`) ? d.label.slice(0, -d.kernel.length - 3) : d.label);

function describeDispatch(d) {
  return `<b>${escapeHtml(d.kernel)}</b>` + facts([
    ["dispatch", d.number], ["from", origin(d)], ["segment", d.segment], ["level", d.level],
    ["time", `${time(d.ps)} (estimated), ${percent(d.ps / whole)} of the step`],
    ["reads", d.in.join(", ")], ["writes", d.out.join(", ")], ["traffic", bytes(d.bytes)],
    ["cooperative matrices", d.coop ? "yes" : ""],
  ]);
}

/** Buffers in the arena over their lives. */
class MemoryMap extends Board {
  constructor(canvas, memory) {
    super(canvas, (c, w, h) => this.drawMap(c, w, h));
    this.memory = memory;
    this.axes.y = false;
    this.most = 2000;
    this.levels = Math.max(1, memory.levels);
    this.kinds = new Map([...new Set(memory.slots.map((s) => s.kind))].sort().map((kind, i) => [kind, PALETTE[i % PALETTE.length]]));
    byId("map-legend").innerHTML = [...this.kinds].map(([kind, colour]) => `<span><i style="background:${colour}"></i>${escapeHtml(kind)}</span>`).join("");
    this.peak = this.busiest();
    this.hover = (x, y, e) => {
      const slot = this.at(x, y);
      slot ? showTip(e, `<b>${escapeHtml(slot.name)}</b>` + facts([
        ["kind", slot.kind], ["bytes", bytes(slot.bytes)], ["at", bytes(slot.offset)],
        ["alive", `levels ${slot.first} to ${slot.last}`]])) : hideTip();
    };
  }

  // The level at which most bytes are in use.
  busiest() {
    const change = new Float64Array(this.levels + 1);
    for (const s of this.memory.slots) { change[s.first] += s.bytes; change[s.last + 1] -= s.bytes; }
    let sum = 0, best = 0, level = 0;
    change.forEach((c, i) => { sum += c; if (sum > best) { best = sum; level = i; } });
    return { level, bytes: best };
  }

  start() {
    this.scale = (this.canvas.clientWidth - 20) / this.levels;
    this.least = this.scale;
    this.left = 10;
  }

  y(at) { return this.canvas.clientHeight - 8 - (at / this.memory.peak) * (this.canvas.clientHeight - 34); }

  at(px, py) {
    return this.memory.slots.find((s) => px >= this.left + s.first * this.scale && px <= this.left + (s.last + 1) * this.scale
      && py <= this.y(s.offset) && py >= this.y(s.offset + s.bytes));
  }

  drawMap(c, w) {
    for (const slot of this.memory.slots) {
      const x = this.left + slot.first * this.scale, width = (slot.last + 1 - slot.first) * this.scale;
      if (x > w || x + width < 0) continue;
      const top = this.y(slot.offset + slot.bytes), high = this.y(slot.offset) - top;
      c.fillStyle = this.kinds.get(slot.kind) || css("--far");
      c.globalAlpha = 0.75;
      c.fillRect(x, top, Math.max(width - 0.5, 0.5), Math.max(high - 0.5, 0.5));
      c.globalAlpha = 1;
    }
    c.fillStyle = css("--ink");
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    const peak = this.left + (this.peak.level + 0.5) * this.scale;
    c.strokeStyle = css("--ink");
    c.setLineDash([4, 3]);
    c.beginPath();
    c.moveTo(peak, 18);
    c.lineTo(peak, this.canvas.clientHeight);
    c.stroke();
    c.setLineDash([]);
    const note = `${bytes(this.peak.bytes)} in use at level ${this.peak.level}`;
    c.fillText(note, Math.min(Math.max(4, peak - 60), w - c.measureText(note).width - 4), 10);
  }
}
