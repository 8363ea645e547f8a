// What is chosen, and drawing it.

const chosen = { snapshot: summary.length - 1, device: 0, pool: null };
const heapMap = new HeapMap();
const timeline = new Timeline((index) => choose({ snapshot: index }));

function choose(change) {
  Object.assign(chosen, change);
  render();
}

function option(value, label, current) {
  const made = make("option", label, { value });
  made.selected = value === current;
  return made;
}

function render() {
  const snapshot = snapshotAt(chosen.snapshot);
  const numbers = snapshot.devices.map((one) => one.ledger.device);
  if (!numbers.includes(chosen.device)) chosen.device = numbers.length ? numbers[0] : null;
  const device = snapshot.devices.find((one) => one.ledger.device === chosen.device);
  const versions = Object.entries(snapshot.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  element("what").textContent = `${snapshot.program || "a program"}, process ${snapshot.pid}, ${clock(snapshot.unix_ms)}; ${versions}`;
  document.title = `${snapshot.program || "process " + snapshot.pid} - pyalloc snapshot`;
  element("snapshot").replaceChildren(...summary.map((one, at) => option(at, clock(one.unix_ms), chosen.snapshot)));
  element("snapshot-choice").hidden = summary.length < 2;
  element("device").replaceChildren(...numbers.map((number) => option(number, String(number), chosen.device)));
  element("device-choice").hidden = numbers.length < 2;
  element("timeline-section").hidden = !device || !timeline.has(device);
  drawRefused(snapshot);
  if (!device) {
    element("device-note").textContent = "no device was in use";
    return;
  }
  element("timeline-note").textContent = summary.length > 1
    ? "live memory by pool, and what is reserved (line); click to choose a snapshot"
    : `live memory through the last ${count(device.events.unix_us.length)} allocations and frees, in bytes asked for`;
  if (timeline.has(device)) timeline.draw(device, chosen.snapshot);
  drawDevice(device);
  drawPools(device, chosen.pool, (pool) => choose({ pool }));
  heapMap.show(snapshot, device, chosen.pool);
  drawGroups(snapshot, device, chosen.pool);
}

element("snapshot").addEventListener("change", (event) => choose({ snapshot: Number(event.target.value) }));
element("device").addEventListener("change", (event) => choose({ device: Number(event.target.value) }));
element("colour").addEventListener("change", (event) => {
  heapMap.colourBy = event.target.value;
  render();
});
element("in").addEventListener("click", () => heapMap.zoom(0.5));
element("out").addEventListener("click", () => heapMap.zoom(2));
element("whole").addEventListener("click", () => heapMap.whole());
window.addEventListener("resize", render);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
render();
