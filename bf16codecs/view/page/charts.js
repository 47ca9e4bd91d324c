// Small drawings of numbers: bars, and lines over steps.

import { brief, drawn, element } from "./dom.js";

const WIDTH = 420;
const HEIGHT = 130;
const LEFT = 52;
const BOTTOM = 20;

// A drawing with a title and a caption.
export function figure(title, note, ...drawings) {
  const caption = note ? [element("p", { class: "soft" }, note)] : [];
  return element("section", {}, element("h2", {}, title), ...drawings, ...caption);
}

function canvas(name, ...children) {
  const box = `0 0 ${WIDTH} ${HEIGHT + BOTTOM}`;
  return drawn("svg", { viewBox: box, width: WIDTH, role: "img", "aria-label": name }, ...children);
}

function axis(x, text, anchor = "middle") {
  return drawn("text", { x, y: HEIGHT + 14, "text-anchor": anchor, class: "soft" }, text);
}

// A text below a point of the axis, but not beyond the edge.
function tick(x, text) {
  const half = 3.2 * text.length;
  return x + half > WIDTH ? axis(WIDTH, text, "end") : axis(Math.max(half, x), text);
}

function levels(most, format) {
  // If all values are zero, there is no upper end.
  return [0, ...(most ? [most] : [])].map((value, i) =>
    drawn("text", { x: LEFT - 5, y: i ? 10 : HEIGHT, "text-anchor": "end", class: "soft" }, format(value))
  );
}

// Bars, one for each count; `describe` returns the title of a bar, `ticks` are [index, text].
export function bars(name, counts, { describe, ticks, format = brief, most = null }) {
  const top = most ?? (Math.max(...counts) || 1);
  const each = (WIDTH - LEFT) / Math.max(1, counts.length);
  const drawings = counts.map((count, i) => {
    const height = (HEIGHT - 4) * Math.min(1, count / top);
    const bar = drawn("rect", {
      class: "bar", x: LEFT + i * each, y: HEIGHT - height,
      width: Math.max(0.5, each - (each > 3 ? 1 : 0)), height,
    });
    bar.append(drawn("title", {}, describe(i)));
    return bar;
  });
  return canvas(
    name,
    drawn("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
    ...levels(top, format),
    ...drawings,
    ...ticks.map(([i, text]) => tick(LEFT + (i + 0.5) * each, text))
  );
}

// A line over steps; a click on a point chooses its step.
export function curve(name, points, { format, describe, here, choose }) {
  const known = points.map((point, i) => ({ ...point, i })).filter((point) => point.value !== null);
  const most = Math.max(...known.map((point) => point.value), 0);
  const top = most || 1;
  const x = (i) => LEFT + 8 + (i * (WIDTH - LEFT - 16)) / Math.max(1, points.length - 1);
  const y = (value) => HEIGHT - ((HEIGHT - 8) * value) / top;
  const path = known.map((p, i) => `${i ? "L" : "M"}${x(p.i).toFixed(1)} ${y(p.value).toFixed(1)}`);
  const dots = known.map((point) => {
    const dot = drawn("circle", {
      class: point.step === here ? "dot here" : "dot", cx: x(point.i), cy: y(point.value), r: 4,
      "data-step": point.step, onclick: () => choose(point.step),
    });
    dot.append(drawn("title", {}, describe(point)));
    return dot;
  });
  return canvas(
    name,
    drawn("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
    ...levels(most, format),
    drawn("path", { class: "curve", d: path.join("") }),
    ...dots,
    axis(LEFT, points[0].step, "start"),
    axis(WIDTH, points.at(-1).step, "end")
  );
}

// A table of names and numbers.
export function numbers(rows) {
  return element(
    "table",
    {},
    element("tbody", {}, ...rows.map(([name, value, about]) =>
      element("tr", {}, element("th", { scope: "row" }, name),
        element("td", { class: "number" }, value), element("td", { class: "soft" }, about ?? "")))
    )
  );
}
