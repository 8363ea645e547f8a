// The time line. Of several snapshots: live memory of the pools, one on another, and the line of what is reserved. Of
// one whose file has events (torch's memory history): live memory at each.

const CHART = 170, LEFT = 76, BOTTOM = 22, TOP = 8;

class Timeline {
  constructor(choose) {
    this.canvas = element("timeline");
    this.choose = choose;
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", (event) => showTip(event, ""));
    this.canvas.addEventListener("click", (event) => { if (this.tips === null) choose(this.nearest(event)); });
  }

  // Whether there is something to draw.
  has(device) {
    return summary.length > 1 || device.events.unix_us.length > 1;
  }

  draw(device, chosen) {
    this.tips = null; // of the points; several snapshots make their own
    if (summary.length > 1) this.show(device.ledger.device, chosen); else this.showEvents(device);
  }

  axes(begin, end, highest) {
    const { drawing, width } = context(this.canvas, CHART);
    const x = (time) => LEFT + ((time - begin) / Math.max(1, end - begin)) * (width - LEFT - 12);
    const y = (size) => CHART - BOTTOM - (size / highest) * (CHART - BOTTOM - TOP);
    drawing.font = "11px system-ui, sans-serif";
    for (const part of [0, 0.5, 1]) {
      drawing.fillStyle = style("--line");
      drawing.fillRect(LEFT, y(part * highest), width - LEFT - 12, 1);
      drawing.fillStyle = style("--soft");
      drawing.textAlign = "right";
      drawing.fillText(bytes(Math.round(part * highest)), LEFT - 8, y(part * highest) + 4);
    }
    drawing.textAlign = "center";
    drawing.fillText("0 s", LEFT, CHART - 4);
    drawing.textAlign = "right";
    drawing.fillText(seconds(end - begin), width - 12, CHART - 4);
    return { drawing, x, y };
  }

  showEvents(device) {
    const { unix_us: times, bytes: changes } = device.events;
    let level = device.ledger.requested; // after the last event; those before it are worked out backwards
    const levels = new Array(times.length);
    for (let at = times.length - 1; at >= 0; --at) {
      levels[at] = Math.max(0, level);
      level -= changes[at];
    }
    const milliseconds = times.map((time) => time / 1000);
    const highest = levels.reduce((most, one) => Math.max(most, one), 1);
    const { drawing, x, y } = this.axes(milliseconds[0], milliseconds[times.length - 1], highest);
    this.x = milliseconds.map(x);
    drawing.fillStyle = COLOURS[0];
    drawing.beginPath();
    drawing.moveTo(this.x[0], y(0));
    this.x.forEach((left, at) => {
      if (at > 0) drawing.lineTo(left, y(levels[at - 1]));
      drawing.lineTo(left, y(levels[at]));
    });
    drawing.lineTo(this.x[times.length - 1], y(0));
    drawing.fill();
    this.tips = (at) => `${clock(milliseconds[at])}, ${seconds(milliseconds[at] - milliseconds[0])}\n${changes[at] < 0 ? "freed" : "allocated"} ` +
      `${bytes(Math.abs(changes[at]))}, ${bytes(levels[at])} live after it`;
  }

  show(number, chosen) {
    this.number = number;
    this.chosen = chosen;
    const moments = summary.map((one) => one.devices.find((device) => device.device === number));
    const names = [...new Set(moments.flatMap((device) => (device ? device.pools.map((pool) => pool.name) : [])))];
    const highest = Math.max(1, ...moments.map((device) => (device ? device.reserved : 0)));
    const { drawing, x: place, y } = this.axes(summary[0].unix_ms, summary[summary.length - 1].unix_ms, highest);
    this.x = summary.map((one) => place(one.unix_ms));
    const below = moments.map(() => 0);
    names.forEach((name, order) => {
      const sizes = moments.map((device) => (device && device.pools.find((pool) => pool.name === name) || { allocated: 0 }).allocated);
      if (Math.max(...sizes) === 0) return;
      drawing.fillStyle = colourOf(order);
      drawing.beginPath();
      this.x.forEach((x, at) => drawing.lineTo(x, y(below[at] + sizes[at])));
      for (let at = this.x.length - 1; at >= 0; --at) drawing.lineTo(this.x[at], y(below[at]));
      drawing.fill();
      sizes.forEach((size, at) => { below[at] += size; });
    });
    drawing.strokeStyle = style("--text");
    drawing.lineWidth = 1.5;
    drawing.beginPath();
    moments.forEach((device, at) => drawing.lineTo(this.x[at], y(device ? device.reserved : 0)));
    drawing.stroke();
    this.x.forEach((x, at) => {
      drawing.fillStyle = at === chosen ? style("--text") : style("--edge");
      drawing.fillRect(x - (at === chosen ? 1 : 0.5), at === chosen ? TOP - 6 : CHART - BOTTOM, at === chosen ? 2 : 1, at === chosen ? CHART - BOTTOM + 4 : 5);
    });
  }

  nearest(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.x.reduce((best, one, at) => (Math.abs(one - x) < Math.abs(this.x[best] - x) ? at : best), 0);
  }

  hover(event) {
    const at = this.nearest(event);
    if (this.tips !== null) {
      showTip(event, this.tips(at));
      return;
    }
    const device = summary[at].devices.find((one) => one.device === this.number);
    const lines = [`${clock(summary[at].unix_ms)}, ${seconds(summary[at].unix_ms - summary[0].unix_ms)}`];
    if (device) {
      lines.push(`reserved ${bytes(device.reserved)}`);
      for (const pool of device.pools) if (pool.reserved > 0) lines.push(`${pool.name}: ${bytes(pool.allocated)} live of ${bytes(pool.reserved)}`);
    }
    showTip(event, lines.join("\n"));
  }
}
