// What is live, by size, by tag and by call site: the largest of each; and what was refused.

const MOST_GROUPS = 12;

function drawGroups(snapshot, device, pool) {
  const { blocks, segments } = device;
  const by = { size: new Map(), tag: new Map(), "call site": new Map() };
  const add = (groups, key, size) => {
    const group = groups.get(key) || { bytes: 0, blocks: 0 };
    group.bytes += size;
    group.blocks += 1;
    groups.set(key, group);
  };
  // As `pyalloc diff` has them: tags that differ in their numbers alone count as one.
  const stars = snapshot.tags.map((tag) => tag.replace(/\d+/g, "*"));
  const alike = new Map();
  for (const star of stars) alike.set(star, (alike.get(star) || 0) + 1);
  const tags = snapshot.tags.map((tag, at) => (alike.get(stars[at]) > 1 ? `${stars[at]} (${count(alike.get(stars[at]))} tags)` : tag));
  let first = 0, total = 0;
  for (let index = 0; index < segments.address.length; first += segments.blocks[index], ++index) {
    if (pool !== null && segments.pool[index] !== pool) continue;
    for (let at = first; at < first + segments.blocks[index]; ++at) {
      if (blocks.state[at] !== LIVE) continue;
      const size = blocks.requested[at];
      total += size;
      add(by.size, sizeClass(blocks.bytes[at]), size);
      if (blocks.tag[at] >= 0) add(by.tag, tags[blocks.tag[at]], size);
      if (blocks.site[at] >= 0) add(by["call site"], frameText(ownFrame(snapshot.sites[blocks.site[at]])), size);
    }
  }
  const panels = Object.entries(by).map(([name, groups]) => {
    const rows = [...groups.entries()].sort((a, b) => b[1].bytes - a[1].bytes);
    const panel = make("div", "", {}, make("h3", `by ${name}` + (rows.length > MOST_GROUPS ? `, the largest ${MOST_GROUPS} of ${count(rows.length)}` : "")));
    if (rows.length === 0)
      panel.append(make("small", name === "tag" ? "no block has a tag: pyalloc.tag() gives one" : name === "size" ? "nothing is live" : "not known: torch.cuda.memory._record_memory_history() or sample_stacks keeps them"));
    for (const [key, group] of rows.slice(0, MOST_GROUPS)) {
      const label = name === "size" ? `${bytes(key / 2)} to ${bytes(key)}` : key;
      const bar = make("div", "", { class: "bar" }, part(total, group.bytes, COLOURS[0], label));
      panel.append(make("div", "", { class: "row", title: label }, make("span", label), make("span", bytes(group.bytes)), make("span", count(group.blocks)), bar));
    }
    return panel;
  });
  element("groups-note").textContent = `${bytes(total)} asked for` + (pool === null ? "" : ` in ${pool}`);
  element("groups").replaceChildren(...panels);
}

function drawRefused(snapshot) {
  const { counts, last } = snapshot.oom;
  const refused = Array.isArray(last) ? [...last].reverse() : [];
  element("refused-section").hidden = refused.length === 0;
  element("refused-note").textContent = Object.entries(counts || {}).filter(([, number]) => number > 0)
    .map(([reason, number]) => `${count(number)} by ${reason}`).join(", ");
  element("refused").replaceChildren(...refused.map((one) => make("details", "", {},
    make("summary", `${clock(one.unix_ms)}: ${bytes(one.bytes)} in ${one.pool} of device ${one.device}, ${one.reason}`),
    make("pre", String(one.message)))));
}
