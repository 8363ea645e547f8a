// Numbers and times for people, elements, and colours.

function bytes(size) {
  for (const [unit, factor] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(size) >= factor) return (size / factor).toFixed(2) + " " + unit;
  return size + " B";
}

const count = (number) => number.toLocaleString("en-US");
const share = (part, whole) => (whole > 0 ? Math.min(100, (100 * part) / whole) : 0);
const hex = (address) => "0x" + address.toString(16);
const clock = (unixMs) => new Date(unixMs).toLocaleString("sv-SE");
const seconds = (milliseconds) => (milliseconds < 10000 ? (milliseconds / 1000).toFixed(3) : (milliseconds / 1000).toFixed(1)) + " s";
const element = (id) => document.getElementById(id);

// An element with text and attributes; text is never read as markup.
function make(tag, text = "", attributes = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Told apart also by people who see fewer colours; the first five are those of the pools that always exist.
const COLOURS = ["#4c78a8", "#f28e2b", "#2f9e77", "#b07aa1", "#e15759", "#76b7b2", "#d4a72c", "#8c6d46", "#5f5fc4", "#7f8a99"];
const PENDING = "#f2c14e";
const OTHER = "#9aa4b2";
const colourOf = (place) => (place in COLOURS ? COLOURS[place] : OTHER);

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas as wide as its place, sharp on every screen.
function context(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.parentElement.clientWidth - (canvas.parentElement.id === "map-height" ? 0 : 32);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const drawing = canvas.getContext("2d");
  drawing.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawing.clearRect(0, 0, width, height);
  return { drawing, width };
}

function showTip(event, text) {
  const tip = element("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth;
  const below = event.clientY + 18 + tip.offsetHeight > window.innerHeight;
  tip.style.left = (right ? Math.max(4, event.clientX - tip.offsetWidth - 12) : event.clientX + 16) + "px";
  tip.style.top = (below ? Math.max(4, event.clientY - tip.offsetHeight - 12) : event.clientY + 18) + "px";
}
