// What the page knows of a snapshot: its devices, and each one's pools with their segments end to end.

const LIVE = 0, FREE = 2; // places in the file's "states"
const texts = document.querySelectorAll("script.snapshot");
const summary = JSON.parse(element("summary").textContent);
const read = new Map();

function snapshotAt(index) {
  if (!read.has(index)) read.set(index, JSON.parse(texts[index].textContent));
  return read.get(index);
}

const poolColour = (device, name) => colourOf(device.ledger.pools.findIndex((pool) => pool.name === name));

// [{name, colour, bytes, segments: [{offset, address, bytes, first, blocks, ...}]}] of the pools with mapped memory.
function strips(device) {
  const found = new Map();
  const rows = device.segments;
  let first = 0;
  for (let index = 0; index < rows.address.length; ++index) {
    const name = rows.pool[index];
    if (!found.has(name)) found.set(name, { name, colour: poolColour(device, name), bytes: 0, segments: [] });
    const strip = found.get(name);
    const segment = { offset: strip.bytes, first };
    for (const column of ["address", "bytes", "blocks", "stream", "allocated", "requested"]) segment[column] = rows[column][index];
    strip.segments.push(segment);
    strip.bytes += segment.bytes;
    first += segment.blocks;
  }
  const order = device.ledger.pools.map((pool) => pool.name);
  return [...found.values()].sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
}

// The last place of a sorted list whose value is at most `value`.
function lastAtMost(length, valueAt, value) {
  let low = 0, high = length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (valueAt(middle) <= value) low = middle; else high = middle - 1;
  }
  return low;
}

// The program's own line of a stack, or its first.
function ownFrame(site) {
  const own = site.find((frame) => frame.filename.endsWith(".py") && !/^<(list|dict|set)comp>$/.test(frame.name) && !/[\\/](torch|pyalloc)[\\/]/.test(frame.filename));
  return own || site[0];
}

const frameText = (frame) => `${frame.filename}:${frame.line} in ${frame.name}`;
const sizeClass = (size) => 2 ** Math.ceil(Math.log2(size));
