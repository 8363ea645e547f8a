// The time line of several snapshots: live memory of the pools, one on another, and the line of what is reserved.

const CHART = 170, LEFT = 76, BOTTOM = 22, TOP = 8;

class Timeline {
  constructor(choose) {
    this.canvas = element("timeline");
    this.choose = choose;
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", (event) => showTip(event, ""));
    this.canvas.addEventListener("click", (event) => choose(this.nearest(event)));
  }

  show(number, chosen) {
    this.number = number;
    this.chosen = chosen;
    const moments = summary.map((one) => one.devices.find((device) => device.device === number));
    const names = [...new Set(moments.flatMap((device) => (device ? device.pools.map((pool) => pool.name) : [])))];
    const { drawing, width } = context(this.canvas, CHART);
    const begin = summary[0].unix_ms, length = Math.max(1, summary[summary.length - 1].unix_ms - begin);
    this.x = summary.map((one) => LEFT + ((one.unix_ms - begin) / length) * (width - LEFT - 12));
    const highest = Math.max(1, ...moments.map((device) => (device ? device.reserved : 0)));
    const y = (size) => CHART - BOTTOM - (size / highest) * (CHART - BOTTOM - TOP);
    drawing.font = "11px system-ui, sans-serif";
    for (const part of [0, 0.5, 1]) {
      drawing.fillStyle = style("--line");
      drawing.fillRect(LEFT, y(part * highest), width - LEFT - 12, 1);
      drawing.fillStyle = style("--soft");
      drawing.textAlign = "right";
      drawing.fillText(bytes(Math.round(part * highest)), LEFT - 8, y(part * highest) + 4);
    }
    const below = moments.map(() => 0);
    names.forEach((name, place) => {
      const sizes = moments.map((device) => (device && device.pools.find((pool) => pool.name === name) || { allocated: 0 }).allocated);
      if (Math.max(...sizes) === 0) return;
      drawing.fillStyle = colourOf(place);
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
    drawing.textAlign = "center";
    this.x.forEach((x, at) => {
      drawing.fillStyle = at === chosen ? style("--text") : style("--edge");
      drawing.fillRect(x - (at === chosen ? 1 : 0.5), at === chosen ? TOP - 6 : CHART - BOTTOM, at === chosen ? 2 : 1, at === chosen ? CHART - BOTTOM + 4 : 5);
    });
    drawing.fillStyle = style("--soft");
    drawing.fillText("0 s", LEFT, CHART - 4);
    drawing.textAlign = "right";
    drawing.fillText((length / 1000).toFixed(1) + " s", width - 12, CHART - 4);
  }

  nearest(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.x.reduce((best, one, at) => (Math.abs(one - x) < Math.abs(this.x[best] - x) ? at : best), 0);
  }

  hover(event) {
    const at = this.nearest(event);
    const device = summary[at].devices.find((one) => one.device === this.number);
    const lines = [`${clock(summary[at].unix_ms)}, ${((summary[at].unix_ms - summary[0].unix_ms) / 1000).toFixed(1)} s`];
    if (device) {
      lines.push(`reserved ${bytes(device.reserved)}`);
      for (const pool of device.pools) if (pool.reserved > 0) lines.push(`${pool.name}: ${bytes(pool.allocated)} live of ${bytes(pool.reserved)}`);
    }
    showTip(event, lines.join("\n"));
  }
}
