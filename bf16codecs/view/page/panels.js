// Panels below the picture of a tensor: histograms, entropies, scales, changes over steps.

import { api } from "./api.js";
import { bars, curve, figure, numbers } from "./charts.js";
import { counted, digits, element, percent } from "./dom.js";
import { show, state } from "./state.js";

const CODECS = { huffman: "Huffman", arithmetic: "arithmetic", "arithmetic best": "arithmetic, best" };

// Fill an element with the panels of a tensor.
export async function panels(target, about, against, of = "") {
  if (!target.children.length || of) {
    target.replaceChildren(element("p", { class: "soft" }, "Counting …"));
  }
  const asked = { step: state.step, tensor: about.name, against, of };
  try {
    const found = await api.statistics(asked);
    if (found === null) return;
    target.replaceChildren(...sections(found, target, about, against));
    if (about.steps.length > 1) await history(target, about);
  } catch (error) {
    target.replaceChildren(element("p", { class: "wrong" }, error.message));
  }
}

// Add the changes from step to step; for a store on a server, only on demand.
async function history(target, about) {
  if (about.is_remote && !target.dataset.isAsked) {
    const ask = element("button", {
      id: "ask-steps",
      onclick: () => {
        target.dataset.isAsked = "yes";
        ask.remove();
        history(target, about).catch((error) => target.append(element("p", { class: "wrong" }, error.message)));
      },
    }, "Compare all steps");
    target.append(ask);
    return;
  }
  const over = await api.history(about.name);
  if (over !== null) target.append(...overSteps(over.steps));
}

function sections(found, target, about, against) {
  const statistics = found.statistics;
  const sample = statistics.values < found.size && !found.errors.length;
  const more = element("button", { id: "count-all", onclick: () => panels(target, about, against, "all") },
    "Count all");
  const note = element("p", { class: "soft", id: "sample" },
    statistics.values < found.size
      ? `Counted: ${percent(statistics.values / found.size)} of ${counted(found.size, "value")}. `
      : `Counted: all of ${counted(found.size, "value")}.`, sample ? more : null);
  const wrong = found.errors.length
    ? [element("p", { class: "wrong" }, ["Not all could be read:", ...found.errors.slice(0, 3)].join("\n"))]
    : [];
  if (!statistics.values) return wrong.length ? wrong : [element("p", {}, "Nothing was counted.")];
  const grid = found.grid
    ? element("p", { id: "grid" }, `Quantised once, and multiplied out again: ${found.grid}.`)
    : null;
  return [
    note, ...wrong, grid, values(found.histogram), exponents(statistics), entropies(statistics), reached(found),
    setBits(statistics), change(statistics.change, statistics.bit_labels),
    neighbours(statistics.predictions), scales(found.scales),
  ].filter(Boolean);
}

function values(histogram) {
  if (!histogram) return null;
  const { least, width, counts, below, above, not_finite: strange } = histogram;
  const middle = (i) => least + (i + 0.5) * width;
  const last = counts.length - 1;
  const outside = [
    below ? `${counted(below, "value")} below` : "", above ? `${counted(above, "value")} above` : "",
    strange ? `${counted(strange, "value")} infinite or NaN` : "",
  ].filter(Boolean).join(", ");
  return figure("Values", outside && `Not in the picture: ${outside}.`,
    bars("histogram of the values", counts, {
      describe: (i) => `about ${digits(middle(i))}: ${counted(counts[i], "value")}`,
      ticks: valueTicks(histogram, last).map((i) => [i, digits(rounded(middle(i), width))]),
    }));
}

// The ends, and zero if it lies between them and near neither.
function valueTicks({ least, width }, last) {
  const zero = Math.floor(-least / width);
  return [...new Set([0, ...(zero > last / 5 && zero < 0.8 * last ? [zero] : []), last])];
}

function rounded(value, width) {
  return Math.abs(value) < width / 2 ? 0 : value;
}

function exponents(statistics) {
  const { first, bias, normal, counts } = statistics.exponents;
  if (!counts.length) return null;
  const total = counts.reduce((a, b) => a + b, 0);
  const last = counts.length - 1;
  const power = (i) => {
    if (first + i < normal[0]) return "0";
    return first + i >= normal[1] ? "inf, NaN" : `2${raised(first + i - bias)}`;
  };
  return figure("Exponents", `Entropy: ${digits(statistics.entropies.exponent, 4)} bits per value.`,
    bars("histogram of the exponents", counts, {
      describe: (i) => `${power(i)}: ${percent(counts[i] / total)}`,
      ticks: [...new Set([0, Math.round(last / 2), last])].map((i) => [i, power(i)]),
    }));
}

function raised(number) {
  return [...String(number)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
}

function entropies(statistics) {
  const { bytes, sign, exponent, mantissa, ...rest } = statistics.entropies;
  const rows = [
    ["sign", sign], ["exponent", exponent], ["mantissa", mantissa],
    ["mantissa, exponent known", rest.mantissa_given_exponent], ["whole value", rest.all_bits],
    ["high byte", bytes[0]], ["low byte", bytes.length > 1 ? bytes.at(-1) : null],
    ["a byte of the data", rest.payload], ["a byte, the one before known", rest.payload_given_previous],
  ].filter(([, value]) => value !== null);
  return figure("Entropies, in bits", "", numbers(rows.map(([name, v]) => [name, v.toFixed(3)])));
}

function reached(found) {
  const rows = [];
  for (const [prefix, label] of [["", ""], ["difference, ", "change, "]]) {
    for (const [codec, name] of Object.entries(CODECS)) {
      const bits = found.bits[prefix + codec];
      if (bits !== undefined) rows.push([label + name, bits.toFixed(3), `${digits(itemBits(found) / bits)}×`]);
    }
  }
  for (const [name, spread] of Object.entries(found.blocks)) {
    if (name !== "entropy") continue;
    rows.push(["entropy of 64 KiB blocks", spread.mean.toFixed(3),
      `${spread.quantiles[0].toFixed(2)} to ${spread.quantiles.at(-1).toFixed(2)}`]);
  }
  return rows.length ? figure("Coded sizes, in bits per value", "", numbers(rows)) : null;
}

function itemBits(found) {
  return (8 * found.statistics.nbytes) / Math.max(1, found.statistics.values);
}

function setBits(statistics) {
  return figure("Set bits", "Bits near 50 % look like noise, and cannot be compressed.",
    bits("part of the values in which each bit is set", statistics.set_bits, statistics.bit_labels));
}

function bits(name, parts, labels) {
  const every = Math.ceil(labels.length / 16);
  return bars(name, parts, {
    describe: (i) => `${labels[i]}: ${percent(parts[i])}`,
    ticks: labels.map((label, i) => [i, label]).filter(([i]) => i % every === 0),
    format: (v) => `${Math.round(100 * v)} %`, most: 1,
  });
}

function change(found, labels) {
  if (!found) return null;
  const note = `${percent(found.changed)} of the values differ; the entropy of the difference is ` +
    `${found.difference.toFixed(3)} bits per value, that of the exclusive or ${found.xor.toFixed(3)}.`;
  const section = figure("Bits that changed", note, bits("part of each bit that differs", found.flipped, labels));
  section.id = "changes";
  return section;
}

function neighbours(predictions) {
  if (!predictions.length) return null;
  const rows = predictions.map((prediction) => [
    `${prediction.of}, from its ${prediction.neighbour} neighbour`, prediction.alone.toFixed(3),
    `${prediction.delta.toFixed(3)} as difference, ${prediction.xor.toFixed(3)} as exclusive or`,
  ]);
  const gains = predictions.some(({ delta, xor, alone }) => Math.min(delta, xor) < alone);
  const note = gains
    ? "Some neighbours help to predict a value: the difference has less entropy than the value."
    : "Neighbours do not help to predict a value: differences have more entropy than the value.";
  return figure("Neighbours", note, numbers(rows));
}

function scales(found) {
  if (!found) return null;
  const rows = [["rows", found.rows], ["columns", found.columns]].filter(([, spread]) => spread)
    .map(([name, spread]) => [name, spread.deviation.toFixed(3),
      `${digits(2 ** spread.quantiles[0])} to ${digits(2 ** spread.quantiles.at(-1))}`]);
  const zero = found.zero_rows || found.zero_columns
    ? `All zero: ${counted(found.zero_rows, "row")}, ${counted(found.zero_columns, "column")}.` : "";
  return figure("Scales: deviation in octaves", zero, numbers(rows));
}

function overSteps(steps) {
  const choose = (step) => show({ step });
  const draw = (title, note, value, format) => {
    const points = steps.map((step) => ({ step: step.step, value: value(step), before: step.before }));
    if (!points.some((point) => point.value !== null)) return null;
    return figure(title, note, curve(title, points, {
      format, here: state.step, choose,
      describe: (p) => `step ${p.step}: ${format(p.value)}`,
    }));
  };
  return [
    draw("Changed since the step before", "Click on a step to see it.", (step) => step.changed, percent),
    draw("Bits per value over the steps", "Each step alone, with the arithmetic codec.",
      (step) => step.bits.arithmetic ?? null, (v) => digits(v)),
  ].filter(Boolean);
}
