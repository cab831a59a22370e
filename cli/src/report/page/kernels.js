// The kernels of a dispatch: the page carries equal texts once, and dispatches name them by number.

/** The kernels of a dispatch as HTML: what is known of each, and its text behind a line that opens it. */
function describeKernels(d, texts) {
  const several = d.kernels.length > 1;
  return d.kernels.map((kernel, i) => {
    const title = (several ? `Kernel ${i + 1} of ${d.kernels.length}` : "Kernel") + `, ${kernel.language}`;
    const known = facts([["variant", kernel.variant], ["why", kernel.why]]);
    return `<details${several ? "" : " open"}><summary>${escapeHtml(title)}</summary>${known}<pre>${escapeHtml(texts[kernel.text])}</pre></details>`;
  }).join("");
}

/** The name of a dispatch's kernel; it links to the text where there is one. */
function kernelLink(d) {
  const name = soft(d.kernel);
  return d.kernels.length ? `<a href="#kernel" data-dispatch="${d.number}">${name}</a>` : name;
}

/** Shows the kernels of the dispatch that is clicked, in the timeline or in the table. */
class KernelCard {
  constructor(timeline, texts) {
    this.bars = new Map(timeline.bars.map((bar) => [bar.number, bar]));
    this.texts = texts;
    timeline.click = (x, y) => { const bar = timeline.at(x, y); if (bar) this.show(bar.number); };
    byId("dispatches").addEventListener("click", (e) => {
      const link = e.target.closest("a[data-dispatch]");
      if (link) this.show(Number(link.dataset.dispatch));
    });
  }

  show(number) {
    const bar = this.bars.get(number);
    const none = '<div class="hint">The device has no kernel source code for it.</div>';
    byId("kernel").innerHTML = describeDispatch(bar) + (describeKernels(bar, this.texts) || none);
  }
}
