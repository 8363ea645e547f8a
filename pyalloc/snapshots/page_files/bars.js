// The device's bar with its legend, and the table of pools.

function part(whole, size, colour, label, idle) {
  const made = make("i", "", { title: `${label}: ${bytes(size)}` });
  made.style.width = share(size, whole) + "%";
  made.style.background = idle ? `repeating-linear-gradient(135deg, ${colour} 0 3px, transparent 3px 7px)` : colour;
  return made;
}

function legendItem(colour, label, value) {
  const mark = make("i");
  mark.style.background = colour;
  return make("li", "", {}, mark, label + (value === undefined ? "" : " "), make("strong", value === undefined ? "" : value));
}

function drawDevice(device) {
  const ledger = device.ledger;
  const parts = ledger.pools
    .filter((pool) => pool.reserved > 0)
    .map((pool) => [pool.reserved, poolColour(device, pool.name), pool.name]);
  parts.push([ledger.shelf, "#c3b091", "shelf"], [ledger.outside, "#5d6673", "outside pyalloc"]);
  const shown = parts.filter(([size]) => size > 0);
  element("device-bar").replaceChildren(...shown.map(([size, colour, label]) => part(ledger.total, size, colour, label)));
  element("device-legend").replaceChildren(
    ...shown.map(([size, colour, label]) => legendItem(colour, label, bytes(size))),
    legendItem("var(--hole)", "free", bytes(ledger.free)),
  );
  const fragmentation = Object.entries(ledger.fragmentation).map(([kind, value]) => `${kind.replace("_", " ")} ${value.toFixed(3)}`);
  element("device-note").textContent =
    `${bytes(ledger.total)}, ${bytes(ledger.margin)} left before out-of-memory; fragmentation: ${fragmentation.join(", ")}` +
    (device.exact ? "" : "; the blocks are of a moment later than the figures");
}

const FRAGMENTATION = [
  ["internal", "1 - requested / allocated: what rounding costs"],
  ["external", "1 - longest free run / free mapped bytes"],
  ["effective_external", "the same if what is idle moves together, as it does for a request that needs it"],
  ["granule", "free bytes in partly used 2 MiB pieces / reserved"],
];

function drawPools(device, chosen, choose) {
  const head = make("tr", "", {}, make("th", "pool"), make("th", "live | rounding and holes | idle, up to the limit or the largest pool"));
  head.children[1].style.textAlign = "left";
  for (const [name, title] of [
    ["blocks", "live blocks"], ["requested", "bytes asked for by live blocks"], ["reserved", "mapped memory"],
    ["peak", "most that was used at once"], ["limit", "most that may be used"], ...FRAGMENTATION,
  ]) head.append(make("th", name.replace("_", " "), { title }));
  const widest = Math.max(1, ...device.ledger.pools.map((pool) => Math.max(pool.reserved, pool.limit || 0)));
  const rows = device.ledger.pools.map((pool) => {
    const colour = poolColour(device, pool.name);
    const mark = make("i");
    mark.style.cssText = `display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:8px;background:${colour}`;
    const bar = make("div", "", { class: "bar" },
      part(widest, pool.requested, colour, "live, as asked for"),
      part(widest, Math.max(0, pool.used - pool.requested), colour + "88", "rounding, and holes in used granules"),
      part(widest, Math.max(0, pool.reserved - pool.used), colour, "idle", true));
    if (pool.limit) {
      const limit = make("b", "", { title: "limit " + bytes(pool.limit) });
      limit.style.left = `calc(${share(pool.limit, widest)}% - 2px)`;
      bar.append(limit);
    }
    const row = make("tr", "", { tabindex: "0" }, make("td", "", {}, mark, pool.name), make("td", "", { class: "bar-cell" }, bar));
    for (const value of [count(pool.blocks), bytes(pool.requested), bytes(pool.reserved), pool.peak === null ? "-" : bytes(pool.peak), pool.limit ? bytes(pool.limit) : "-"])
      row.append(make("td", value));
    for (const [kind] of FRAGMENTATION) {
      const value = pool.fragmentation[kind];
      row.append(make("td", value.toFixed(3), value > 0.3 && pool.reserved > 0 ? { class: "bad" } : {}));
    }
    if (pool.name === chosen) row.classList.add("chosen");
    if (pool.reserved === 0) row.classList.add("unused");
    row.addEventListener("click", () => choose(pool.name === chosen ? null : pool.name));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") row.click(); });
    return row;
  });
  element("pools").replaceChildren(make("thead", "", {}, head), make("tbody", "", {}, ...rows));
}
