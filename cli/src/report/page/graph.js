// A graph on a canvas: what is drawn where, and what the pointer does.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (op) => op.slice(op.indexOf(".") + 1);

// Colours that stay apart for the most common forms of colour blindness (after Okabe and Ito, 2008).
const PALETTE = ["#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b9a800", "#8c6bb1"];

/** A text cut with an ellipsis where it is wider than there is room; of names the end stays, which tells layers apart. */
function fitted(c, text, room, isName = false) {
  if (c.measureText(text).width <= room) return text;
  const cut = (count) => (isName ? `…${text.slice(-count).replace(/^\./, "")}` : `${text.slice(0, count)}…`);
  let least = 0, most = text.length - 1;
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (c.measureText(cut(middle)).width <= room) least = middle; else most = middle - 1;
  }
  return least > 0 ? cut(least) : "";
}

/** Nodes with their texts, from the packed form in which the page carries them. */
function unpack(data) {
  const text = (i) => data.texts[i];
  const roots = new Set(data.roots);
  const nodes = data.nodes.map(([name, op, type, details, place, mark, x, y, inputs], id) => ({
    id, name: text(name), op: text(op), type: text(type), details: text(details), place: text(place), mark: text(mark),
    x, y, inputs, readers: [], root: roots.has(id),
  }));
  for (const node of nodes) for (const input of new Set(node.inputs)) nodes[input].readers.push(node.id);
  return nodes;
}

/** A canvas that can be moved and zoomed; `draw(context, width, height)` paints it. */
class Board {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.draw = draw;
    this.scale = 1;
    this.left = 0;
    this.top = 0;
    this.waits = false;
    this.axes = { x: true, y: true };
    this.pointers = new Map();
    new ResizeObserver(() => this.resize()).observe(canvas);
    canvas.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    canvas.addEventListener("pointerdown", (e) => this.grab(e));
    canvas.addEventListener("pointermove", (e) => this.move(e));
    canvas.addEventListener("pointerup", (e) => this.release(e));
    canvas.addEventListener("pointercancel", (e) => this.pointers.delete(e.pointerId));
    canvas.addEventListener("pointerleave", () => hideTip());
    canvas.addEventListener("dblclick", () => this.fit());
    const step = (factor) => () => this.zoom(this.canvas.clientWidth / 2, this.canvas.clientHeight / 2, factor);
    this.tool("−", "Zoom out", step(1 / 1.5));
    this.tool("+", "Zoom in", step(1.5));
    this.tool("All", "See all", () => this.fit());
  }

  /** A button above the canvas. */
  tool(text, title, act) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text, title, onclick: act });
    button.setAttribute("aria-label", title);
    document.querySelector(`[data-tools="${this.canvas.id}"]`)?.append(button);
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    if (!this.placed && this.canvas.width > 0) { this.placed = true; this.start(); }
    this.paint();
  }

  paint() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      const ratio = window.devicePixelRatio || 1;
      const context = this.canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
      this.draw(context, this.canvas.clientWidth, this.canvas.clientHeight);
    });
  }

  point(e) {
    const box = this.canvas.getBoundingClientRect();
    return [(e.clientX - box.left), (e.clientY - box.top)];
  }

  // Without a key the wheel scrolls the page. A touchpad's pinch comes with ctrlKey.
  wheel(e) {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    this.zoom(...this.point(e), Math.exp(-e.deltaY * 0.0015));
  }

  /** Zooms around a point of the canvas. */
  zoom(px, py, factor) {
    const scale = Math.min(Math.max(this.scale * factor, this.least || 0.005), this.most || 4);
    const change = scale / this.scale;
    this.left = px - (px - this.left) * change;
    if (this.axes.y) this.top = py - (py - this.top) * change;
    this.scale = scale;
    this.paint();
  }

  grab(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.moved = this.pointers.size > 0;
    this.pointers.set(e.pointerId, this.point(e));
    this.from = this.point(e);
  }

  /** The middle of the pointers that are down, and how far apart two are. */
  held() {
    const [a, b = a] = [...this.pointers.values()];
    return { x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2, apart: Math.hypot(a[0] - b[0], a[1] - b[1]) };
  }

  move(e) {
    if (!this.pointers.has(e.pointerId)) { this.hover?.(...this.point(e), e); return; }
    const [x, y] = this.point(e);
    if (Math.abs(x - this.from[0]) + Math.abs(y - this.from[1]) > 3) this.moved = true;
    const before = this.held();
    this.pointers.set(e.pointerId, [x, y]);
    const after = this.held();
    this.left += after.x - before.x;
    if (this.axes.y) this.top += after.y - before.y;
    if (before.apart > 0 && after.apart > 0) this.zoom(after.x, after.y, after.apart / before.apart);
    hideTip();
    this.paint();
  }

  release(e) {
    if (this.pointers.delete(e.pointerId) && !this.moved) this.click?.(...this.point(e));
  }

  fit() { this.start(); this.paint(); }
}

// Sizes of the drawing. Texts are small at the smallest scale at which a graph may begin, and good to read at the other.
const COLUMN = 132, ROW = 62, WIDE = 118, HIGH = 36, MARGIN = 16, SMALLEST = 0.52, READABLE = 0.75;

/** One of the two graphs. */
class GraphView extends Board {
  constructor(canvas, nodes, colours) {
    super(canvas, (c, w, h) => this.drawGraph(c, w, h));
    this.nodes = nodes;
    this.colours = colours;
    this.hits = new Set();
    this.near = new Set();
    this.selected = null;
    this.hidden = new Set();
    this.rows = [];
    for (const node of nodes) (this.rows[node.y] ||= []).push(node);
    this.width = nodes.reduce((most, n) => Math.max(most, n.x), 0) * COLUMN + WIDE;
    this.height = (this.rows.length - 1) * ROW + HIGH;
    this.tool("Start", "Back to the start", () => { this.start(); this.paint(); });
    this.hover = (x, y, e) => { const node = this.at(x, y); node ? showTip(e, describe(node)) : hideTip(); };
    this.click = (x, y) => this.onselect?.(this.at(x, y));
  }

  /** The scale at which all can be seen. */
  whole() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    return Math.min((w - 2 * MARGIN) / this.width, (h - 2 * MARGIN) / this.height, 1);
  }

  fit() {
    this.scale = this.whole();
    this.left = (this.canvas.clientWidth - this.width * this.scale) / 2;
    this.top = MARGIN;
    this.paint();
  }

  // At first the beginning at a readable size: the rows that can be seen fill the width.
  start() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    this.least = Math.min(this.whole(), 0.02);
    let from = 0, to = this.width;
    const fits = (scale) => {
      const seen = this.rows.slice(0, Math.ceil((h - MARGIN) / scale / ROW)).flat().map((n) => n.x * COLUMN);
      [from, to] = [Math.min(...seen), Math.max(...seen) + WIDE];
      return (to - from) * scale <= w - 2 * MARGIN;
    };
    this.scale = [1, 0.9, 0.8, 0.7, 0.6, SMALLEST].find(fits) ?? READABLE;
    fits(this.scale);
    const first = this.rows[0] || [];
    const middle = first.reduce((sum, n) => sum + n.x, 0) / Math.max(first.length, 1) * COLUMN + WIDE / 2;
    const [most, least] = [MARGIN - from * this.scale, w - MARGIN - to * this.scale];
    // What is wider than the canvas has its first row in the middle, but nothing is left empty beside it.
    this.left = most <= least ? (most + least) / 2 : Math.min(most, Math.max(least, w / 2 - middle * this.scale));
    this.top = MARGIN;
  }

  at(px, py) {
    const x = (px - this.left) / this.scale, y = (py - this.top) / this.scale;
    const row = this.rows[Math.floor(y / ROW)] || [];
    return row.find((n) => x >= n.x * COLUMN && x <= n.x * COLUMN + WIDE && y <= n.y * ROW + HIGH) || null;
  }

  show(node) {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    this.scale = Math.max(this.scale, 0.7);
    this.left = w / 2 - (node.x * COLUMN + WIDE / 2) * this.scale;
    this.top = h / 2 - (node.y * ROW + HIGH / 2) * this.scale;
    this.paint();
  }

  select(node) {
    this.selected = node;
    this.near = new Set(node ? [...node.inputs, ...node.readers] : []);
    this.paint();
  }

  colour(node) {
    if (node.mark) return this.colours.get(node.mark) || css("--far");
    if (node.op === "input") return css("--input");
    return node.op.includes(".") ? css("--op") : css("--leaf");
  }

  drawGraph(c, w, h) {
    const { scale } = this;
    const first = Math.floor(-this.top / scale / ROW) - 1, last = Math.ceil((h - this.top) / scale / ROW) + 1;
    const shown = (n) => n.y >= first && n.y <= last;
    const px = (n) => this.left + n.x * COLUMN * scale, py = (n) => this.top + n.y * ROW * scale;
    const [ink, faint, edge, far, accent, hit] = ["--ink", "--faint", "--edge", "--far", "--accent", "--hit"].map(css);
    for (const node of this.nodes) {
      for (const input of node.inputs) {
        const from = this.nodes[input];
        if (Math.max(node.y, from.y) < first || Math.min(node.y, from.y) > last) continue;
        const mine = this.selected && (node === this.selected || from === this.selected);
        const long = node.y - from.y > 6;
        if (long && !mine && scale < 0.3) continue;
        c.strokeStyle = mine ? accent : long ? far : edge;
        c.lineWidth = mine ? 2 : Math.min(1, scale * 1.5);
        const x0 = px(from) + (WIDE / 2) * scale, y0 = py(from) + HIGH * scale;
        const x1 = px(node) + (WIDE / 2) * scale, y1 = py(node);
        const bend = Math.min((y1 - y0) / 2, 60 * scale);
        c.beginPath();
        c.moveTo(x0, y0);
        c.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
        c.stroke();
      }
    }
    c.textBaseline = "middle";
    for (const node of this.nodes) {
      if (!shown(node)) continue;
      const x = px(node), y = py(node), bw = WIDE * scale, bh = HIGH * scale;
      if (x > w || x + bw < 0) continue;
      c.globalAlpha = node.mark && this.hidden.has(node.mark) ? 0.15 : 1;
      c.fillStyle = this.colour(node);
      c.strokeStyle = node === this.selected ? accent : this.hits.has(node.id) || this.near.has(node.id) ? hit : far;
      c.lineWidth = node === this.selected || this.hits.has(node.id) || this.near.has(node.id) ? 2.5 : node.root ? 2 : 1;
      c.beginPath();
      c.roundRect(x, y, bw, Math.max(bh, 2), node.op.includes(".") ? 4 * scale : 14 * scale);
      c.fill();
      c.stroke();
      if (scale > 0.32) {
        const room = bw - 10 * scale;
        c.fillStyle = node.mark ? "#10131a" : ink;
        c.font = `600 ${12 * scale}px system-ui, sans-serif`;
        const call = node.op.includes(".");
        const title = call ? short(node.op) : node.name || node.op;
        c.fillText(fitted(c, title, room, !call), x + 6 * scale, y + 12 * scale);
        if (scale > 0.5) {
          c.fillStyle = node.mark ? "#10131acc" : faint;
          c.font = `${10 * scale}px system-ui, sans-serif`;
          const named = call && node.name !== "";
          c.fillText(fitted(c, named ? node.name : node.type, room, named), x + 6 * scale, y + 26 * scale);
        }
      }
      c.globalAlpha = 1;
    }
    this.drawRest(c, w, h);
  }

  /** What lies beyond the edges. */
  drawRest(c, w, h) {
    const { scale } = this;
    const above = this.rows.filter((_, y) => this.top + (y * ROW + HIGH) * scale < 0).length;
    const below = this.rows.filter((_, y) => this.top + y * ROW * scale > h).length;
    const rows = (n) => `${n} more row${n === 1 ? "" : "s"}`;
    const seen = this.rows.slice(above, this.rows.length - below).flat();
    const left = seen.some((n) => this.left + (n.x * COLUMN + WIDE) * scale < 0);
    const right = seen.some((n) => this.left + n.x * COLUMN * scale > w);
    c.font = "11px system-ui, sans-serif";
    const note = (text, x, y) => {
      const wide = c.measureText(text).width + 12;
      const at = Math.min(Math.max(x - wide / 2, 4), w - wide - 4);
      c.fillStyle = css("--card");
      c.strokeStyle = css("--line");
      c.lineWidth = 1;
      c.beginPath();
      c.roundRect(at, y, wide, 18, 6);
      c.fill();
      c.stroke();
      c.fillStyle = css("--faint");
      c.fillText(text, at + 6, y + 9.5);
    };
    if (above) note(`↑ ${rows(above)}`, w / 2, 4);
    if (below) note(`↓ ${rows(below)}`, w / 2, h - 22);
    if (left) note("← more", 0, h / 2);
    if (right) note("more →", w, h / 2);
  }
}

const facts = (rows) => `<dl>${rows.filter(([, v]) => v !== "" && v != null)
  .map(([k, v]) => `<dt>${k}</dt><dd>${escapeHtml(String(v))}</dd>`).join("")}</dl>`;
/** Escaped, with places where a long name may break. */
const soft = (s) => escapeHtml(s).replace(/([._/,[(])(?=\S)/g, "$1<wbr>");
const escapeHtml = (s) => s.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function describe(node) {
  return `<b>${escapeHtml(node.op)}</b> %${node.id}` + facts([
    ["name", node.name], ["result", node.type], ["attributes", node.details], ["made by", node.mark],
    ["source", node.place], ["readers", node.root ? `${node.readers.length}, and it is a result` : node.readers.length],
  ]);
}

function showTip(e, html) {
  const tip = document.getElementById("tip");
  tip.innerHTML = html;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(e.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${e.clientY + 18 + box.height > innerHeight ? e.clientY - box.height - 12 : e.clientY + 18}px`;
}

function hideTip() { document.getElementById("tip").style.display = "none"; }
