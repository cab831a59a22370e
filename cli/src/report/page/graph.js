// A graph on a canvas: what is drawn where, and what the pointer does.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (op) => op.slice(op.indexOf(".") + 1);

// Colours that stay apart for the most common forms of colour blindness (after Okabe and Ito, 2008).
const PALETTE = ["#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b9a800", "#8c6bb1"];

/** The end of a long name, which tells nodes of one layer apart; the tip has all of it. */
const tail = (name) => (name.length > 18 && name.includes(".") ? `…${name.split(".").slice(-2).join(".")}` : name);

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
    new ResizeObserver(() => this.resize()).observe(canvas);
    canvas.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    canvas.addEventListener("pointerdown", (e) => this.grab(e));
    canvas.addEventListener("pointermove", (e) => this.move(e));
    canvas.addEventListener("pointerup", (e) => this.release(e));
    canvas.addEventListener("pointerleave", () => hideTip());
    canvas.addEventListener("dblclick", () => { this.fit(); });
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

  wheel(e) {
    e.preventDefault();
    const [px, py] = this.point(e);
    const factor = Math.exp(-e.deltaY * 0.0015);
    const scale = Math.min(Math.max(this.scale * factor, this.least || 0.005), this.most || 4);
    const change = scale / this.scale;
    this.left = px - (px - this.left) * change;
    if (this.axes.y) this.top = py - (py - this.top) * change;
    this.scale = scale;
    this.paint();
  }

  grab(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.from = [e.clientX, e.clientY, this.left, this.top];
    this.moved = false;
  }

  move(e) {
    if (!this.from) { this.hover?.(...this.point(e), e); return; }
    const [x, y, left, top] = this.from;
    if (Math.abs(e.clientX - x) + Math.abs(e.clientY - y) > 3) this.moved = true;
    this.left = left + e.clientX - x;
    if (this.axes.y) this.top = top + e.clientY - y;
    hideTip();
    this.paint();
  }

  release(e) {
    if (this.from && !this.moved) this.click?.(...this.point(e));
    this.from = null;
  }

  fit() { this.start(); this.paint(); }
}

const COLUMN = 132, ROW = 62, WIDE = 118, HIGH = 36;

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
    this.width = (nodes.reduce((most, n) => Math.max(most, n.x), 0) + 1) * COLUMN;
    this.height = this.rows.length * ROW;
    this.hover = (x, y, e) => { const node = this.at(x, y); node ? showTip(e, describe(node)) : hideTip(); };
    this.click = (x, y) => this.onselect?.(this.at(x, y));
  }

  // At first the beginning at a readable size; a double click shows all.
  start() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const all = Math.min(w / (this.width + 40), h / (this.height + 40));
    this.least = Math.min(all, 0.02);
    this.scale = this.shown ? all : Math.min(Math.max(all, 0.55), 1);
    this.shown = !this.shown;
    const first = this.rows[0]?.[0]?.x ?? 0;
    this.left = all >= this.scale ? (w - this.width * this.scale) / 2 : w / 2 - (first + 0.5) * COLUMN * this.scale;
    this.top = 20;
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
        c.save();
        c.beginPath();
        c.rect(x, y, bw, bh);
        c.clip();
        c.fillStyle = node.mark ? "#10131a" : ink;
        c.font = `600 ${12 * scale}px system-ui, sans-serif`;
        const title = node.op.includes(".") ? short(node.op) : tail(node.name) || node.op;
        c.fillText(title, x + 6 * scale, y + 12 * scale);
        if (scale > 0.5) {
          c.fillStyle = node.mark ? "#10131acc" : faint;
          c.font = `${10 * scale}px system-ui, sans-serif`;
          c.fillText(node.op.includes(".") && node.name ? tail(node.name) : node.type, x + 6 * scale, y + 26 * scale);
        }
        c.restore();
      }
      c.globalAlpha = 1;
    }
  }
}

const facts = (rows) => `<dl>${rows.filter(([, v]) => v !== "" && v != null)
  .map(([k, v]) => `<dt>${k}</dt><dd>${escapeHtml(String(v))}</dd>`).join("")}</dl>`;
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
  tip.style.left = `${Math.min(e.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${e.clientY + 18 + box.height > innerHeight ? e.clientY - box.height - 12 : e.clientY + 18}px`;
}

function hideTip() { document.getElementById("tip").style.display = "none"; }
