// Colours of numbers. The three scales are distinct for colour-blind eyes; diverging ones have the
// colour of the page at zero.

const SEQUENTIAL = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
const DIVERGING = {
  light: ["#08306b", "#4393c3", "#f4f4f4", "#d6604d", "#67001f"],
  dark: ["#7cc3ff", "#2f6fae", "#26282c", "#b5543c", "#ffb08a"],
};

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

function channels(text) {
  const hex = /^#(..)(..)(..)$/.exec(text);
  return hex ? hex.slice(1).map((part) => parseInt(part, 16)) : text.match(/\d+/g).map(Number);
}

// 256 colours from stops at equal distances, as red, green, blue.
function table(stops) {
  const points = stops.map(channels);
  const found = new Uint8Array(3 * 256);
  for (let i = 0; i < 256; i += 1) {
    const at = (i / 255) * (points.length - 1);
    const low = Math.min(Math.floor(at), points.length - 2);
    for (let c = 0; c < 3; c += 1) {
      found[3 * i + c] = points[low][c] + (at - low) * (points[low + 1][c] - points[low][c]);
    }
  }
  return found;
}

const tables = { sequential: table(SEQUENTIAL) };
for (const [name, stops] of Object.entries(DIVERGING)) tables[name] = table(stops);

// A scale: a function from numbers to 0..1, and the colours of that range.
//   kind    "diverging" from -most to most, "log" from least to most, "linear" likewise
export function scale(kind, least, most) {
  const spread = kind === "log" ? Math.log(most / least) || 1 : most - least || 1;
  const position = {
    diverging: (v) => (v / (most || 1) + 1) / 2,
    log: (v) => (v > 0 ? Math.log(v / least) / spread : 0),
    linear: (v) => (v - least) / spread,
  }[kind];
  const name = kind === "diverging" ? (isDark() ? "dark" : "light") : "sequential";
  return { kind, least, most, position, colours: tables[name] };
}

export function index(scale, value) {
  return Math.max(0, Math.min(255, Math.round(255 * scale.position(value))));
}

export function css(scale, value) {
  const at = 3 * index(scale, value);
  return `rgb(${scale.colours[at]}, ${scale.colours[at + 1]}, ${scale.colours[at + 2]})`;
}

// Black or white, whichever can be read on a colour.
export function textOn(scale, value) {
  const at = 3 * index(scale, value);
  const [r, g, b] = scale.colours.slice(at, at + 3);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff";
}

// Draw a scale from left to right.
export function paintLegend(canvas, scale) {
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const image = context.createImageData(256, 1);
  for (let i = 0; i < 256; i += 1) {
    image.data.set([...scale.colours.slice(3 * i, 3 * i + 3), 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}
