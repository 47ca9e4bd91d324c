// Elements, numbers and sizes. Text from a model only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name in element && typeof value === "boolean") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// element("p", {class: "soft"}, "text", other)
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

// The same for SVG.
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// The colour of a variable of the style sheet, in the current colour scheme.
export function styled(name) {
  const probe = element("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

export function size(nbytes) {
  if (nbytes === null || nbytes === undefined) return "";
  let unit = 0;
  const units = ["B", "kB", "MB", "GB", "TB"];
  while (nbytes >= 1000 && unit < units.length - 1) {
    nbytes /= 1000;
    unit += 1;
  }
  return `${unit ? nbytes.toFixed(2) : nbytes} ${units[unit]}`;
}

export function percent(part) {
  const value = 100 * part;
  return `${value > 0 && value < 0.1 ? value.toPrecision(1) : value.toFixed(1)} %`;
}

export function digits(value, count = 3) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  const small = Math.abs(value);
  return small < 1e-3 || small >= 1e5 ? value.toExponential(count - 1) : value.toPrecision(count);
}

// A count in few letters: 1.6k, 79k, 12M.
export function brief(count) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(count);
}

export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

export function shaped(shape) {
  return shape.length ? shape.join("×") : "scalar";
}

// Original over stored size.
export function ratio(row) {
  return row.stored_nbytes ? row.nbytes / row.stored_nbytes : null;
}

export function bitsPerValue(row) {
  if (row.stored_nbytes === null || !row.parameters) return null;
  return (8 * row.stored_nbytes) / row.parameters;
}
