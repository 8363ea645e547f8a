// The map: each pool's segments end to end, in rows of as many bytes as the zoom says; only what is in sight is drawn.

const ROW = 15, GAP = 3, HEAD = 26, VIEW = 458;

class HeapMap {
  constructor() {
    this.frame = element("map-window");
    this.canvas = element("map");
    this.rowBytes = 0; // of a row; 0: so that everything is in sight
    this.colourBy = "state";
    this.frame.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", (event) => { this.hit = null; showTip(event, ""); this.draw(); });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 2 : 0.5);
    }, { passive: false });
  }

  show(snapshot, device, pool) {
    this.snapshot = snapshot;
    this.blocks = device.blocks;
    this.strips = strips(device).filter((strip) => pool === null || strip.name === pool);
    this.hit = null;
    this.chooseColours();
    this.layOut();
  }

  // How a block is coloured: by a key of its own and the colour of each key. The largest ten have one each.
  chooseColours() {
    const { blocks, snapshot } = this;
    const keys = {
      state: null,
      size: (at) => sizeClass(blocks.bytes[at]),
      tag: (at) => blocks.tag[at],
      site: (at) => blocks.site[at],
      stream: (at) => blocks.stream[at],
    };
    this.key = keys[this.colourBy];
    const legend = [];
    if (this.key === null) {
      for (const strip of this.strips) legend.push(legendItem(strip.colour, "live in " + strip.name));
    } else {
      const sums = new Map();
      for (const strip of this.strips)
        for (const segment of strip.segments)
          for (let at = segment.first; at < segment.first + segment.blocks; ++at)
            if (blocks.state[at] === LIVE) sums.set(this.key(at), (sums.get(this.key(at)) || 0) + blocks.bytes[at]);
      const order = [...sums.entries()].sort((a, b) => b[1] - a[1]).map(([key]) => key);
      const kept = order.filter((key) => key !== -1).slice(0, COLOURS.length);
      this.colours = new Map(kept.map((key, place) => [key, COLOURS[place]]));
      const names = {
        size: (key) => `${bytes(key / 2)} to ${bytes(key)}`,
        tag: (key) => snapshot.tags[key],
        site: (key) => frameText(ownFrame(snapshot.sites[key])),
        stream: (key) => (key === 0 ? "default stream" : "stream " + hex(key)),
      };
      for (const key of kept) legend.push(legendItem(this.colours.get(key), names[this.colourBy](key), bytes(sums.get(key))));
      if (order.length > kept.length) legend.push(legendItem(OTHER, order.includes(-1) ? "none, or another" : "others"));
    }
    legend.push(legendItem(PENDING, "freed, waits for events"), legendItem("var(--hole)", "free"));
    element("map-legend").replaceChildren(...legend);
  }

  zoom(factor) {
    const before = this.shownRowBytes;
    this.rowBytes = Math.max(4096, Math.min(before * factor, 2 ** 44));
    const middle = this.frame.scrollTop + VIEW / 2;
    this.layOut();
    this.frame.scrollTop = (middle * before) / this.rowBytes - VIEW / 2;
  }

  whole() {
    this.rowBytes = 0;
    this.frame.scrollTop = 0;
    this.layOut();
  }

  // Where each pool's rows begin.
  layOut() {
    const total = this.strips.reduce((sum, strip) => sum + strip.bytes, 0);
    const rowsInSight = Math.max(1, Math.floor((VIEW - this.strips.length * (HEAD + ROW)) / (ROW + GAP)));
    this.shownRowBytes = this.rowBytes || Math.max(2 ** 21, Math.ceil(total / rowsInSight / 2 ** 21) * 2 ** 21);
    let top = 0;
    for (const strip of this.strips) {
      strip.top = top;
      strip.rows = Math.ceil(strip.bytes / this.shownRowBytes);
      top += HEAD + strip.rows * (ROW + GAP) + 6;
    }
    element("map-height").style.height = Math.max(VIEW, Math.min(top, 2 ** 24)) + "px"; // browsers know no more
    const blocks = this.strips.reduce((sum, strip) => sum + strip.segments.reduce((all, one) => all + one.blocks, 0), 0);
    element("map-note").textContent = `${count(blocks)} blocks and holes by address, ${bytes(this.shownRowBytes)} in a row; ctrl and wheel zoom`;
    this.draw();
  }

  colour(strip, at) {
    const state = this.blocks.state[at];
    if (state === FREE) return null;
    if (state !== LIVE) return PENDING;
    return this.key === null ? strip.colour : this.colours.get(this.key(at)) || OTHER;
  }

  draw() {
    const { drawing, width } = context(this.canvas, VIEW);
    this.width = width - 2;
    const scroll = this.frame.scrollTop;
    const text = style("--text"), soft = style("--soft"), hole = style("--hole"), edge = style("--edge");
    for (const strip of this.strips) {
      const top = strip.top - scroll;
      if (top > VIEW || top + HEAD + strip.rows * (ROW + GAP) < 0) continue;
      drawing.font = "600 12px system-ui, sans-serif";
      drawing.fillStyle = text;
      drawing.fillText(strip.name, 6, top + 18);
      const wide = drawing.measureText(strip.name).width;
      drawing.font = "12px system-ui, sans-serif";
      drawing.fillStyle = soft;
      drawing.fillText(`${bytes(strip.bytes)} in ${count(strip.segments.length)} segment${strip.segments.length > 1 ? "s" : ""}`, 14 + wide, top + 18);
      const first = Math.max(0, Math.floor((-top - HEAD) / (ROW + GAP)));
      const last = Math.min(strip.rows - 1, Math.floor((VIEW - top - HEAD) / (ROW + GAP)));
      for (let row = first; row <= last; ++row) this.drawRow(drawing, strip, row, top + HEAD + row * (ROW + GAP), hole, edge);
    }
    if (this.hit) this.outline(drawing, this.hit, scroll, text);
  }

  drawRow(drawing, strip, row, y, hole, edge) {
    const from = row * this.shownRowBytes, to = Math.min(strip.bytes, from + this.shownRowBytes);
    const scale = this.width / this.shownRowBytes;
    drawing.fillStyle = hole;
    drawing.fillRect(1, y, (to - from) * scale, ROW);
    let place = lastAtMost(strip.segments.length, (at) => strip.segments[at].offset, from);
    for (; place < strip.segments.length && strip.segments[place].offset < to; ++place) {
      const segment = strip.segments[place];
      const shift = segment.offset - segment.address; // of an address in the strip
      const addresses = this.blocks.address;
      let at = segment.first + lastAtMost(segment.blocks, (index) => addresses[segment.first + index] + shift, from);
      for (; at < segment.first + segment.blocks; ++at) {
        const begins = Math.max(from, addresses[at] + shift), ends = Math.min(to, addresses[at] + shift + this.blocks.bytes[at]);
        if (begins >= to) break;
        const colour = this.colour(strip, at);
        if (colour === null || ends <= begins) continue;
        const wide = (ends - begins) * scale;
        drawing.fillStyle = colour;
        drawing.fillRect(1 + (begins - from) * scale, y, wide > 3 ? wide - 0.6 : wide, ROW);
      }
      if (segment.offset >= from) {
        drawing.fillStyle = edge;
        drawing.fillRect(0.5 + (segment.offset - from) * scale, y - 1, 1, ROW + 2);
      }
    }
  }

  outline(drawing, { strip, segment, at }, scroll, colour) {
    const begins = this.blocks.address[at] - segment.address + segment.offset, ends = begins + this.blocks.bytes[at];
    const scale = this.width / this.shownRowBytes;
    drawing.strokeStyle = colour;
    drawing.lineWidth = 2;
    for (let row = Math.floor(begins / this.shownRowBytes); row * this.shownRowBytes < ends; ++row) {
      const from = row * this.shownRowBytes;
      const left = Math.max(0, begins - from) * scale, right = Math.min(this.shownRowBytes, ends - from) * scale;
      const y = strip.top + HEAD + row * (ROW + GAP) - scroll;
      if (y > VIEW) break;
      drawing.strokeRect(1 + left, y, Math.max(1, right - left), ROW);
    }
  }

  // What lies under a point of the canvas, or null.
  find(x, y) {
    const depth = y + this.frame.scrollTop;
    const strip = this.strips.find((one) => depth >= one.top + HEAD && depth < one.top + HEAD + one.rows * (ROW + GAP));
    if (!strip) return null;
    const row = Math.floor((depth - strip.top - HEAD) / (ROW + GAP));
    const offset = row * this.shownRowBytes + ((x - 1) / this.width) * this.shownRowBytes;
    if (offset < 0 || offset >= strip.bytes) return null;
    const segment = strip.segments[lastAtMost(strip.segments.length, (at) => strip.segments[at].offset, offset)];
    const address = segment.address + offset - segment.offset;
    const at = segment.first + lastAtMost(segment.blocks, (index) => this.blocks.address[segment.first + index], address);
    return { strip, segment, at };
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const hit = this.find(event.clientX - box.left, event.clientY - box.top);
    if ((hit && hit.at) !== (this.hit && this.hit.at)) {
      this.hit = hit;
      this.draw();
    }
    showTip(event, hit ? this.describe(hit) : "");
  }

  describe({ strip, segment, at }) {
    const { blocks, snapshot } = this;
    const state = blocks.state[at];
    const lines = [`${snapshot.states[state]}, ${bytes(blocks.bytes[at])} (${count(blocks.bytes[at])} B) in ${strip.name}`];
    if (state !== FREE) lines.push(`asked for ${count(blocks.requested[at])} B`);
    lines.push(`at ${hex(blocks.address[at])}, ${bytes(blocks.address[at] - segment.address)} into a segment of ${bytes(segment.bytes)}`);
    lines.push(blocks.stream[at] === 0 ? "default stream" : "stream " + hex(blocks.stream[at]));
    if (blocks.tag[at] >= 0) lines.push("tag " + snapshot.tags[blocks.tag[at]]);
    if (blocks.site[at] >= 0) lines.push("", ...snapshot.sites[blocks.site[at]].slice(0, 12).map(frameText));
    return lines.join("\n");
  }
}
