// What is told of a tensor below its picture: histograms, entropies, scales, changes over steps.

import { api } from "./api.js";
import { bars, curve, figure, numbers } from "./charts.js";
import { counted, digits, element, percent } from "./dom.js";
import { show, state } from "./state.js";

const CODECS = { huffman: "Huffman", arithmetic: "arithmetic", "arithmetic best": "arithmetic, best" };

// Fill a place with what is told of a tensor.
export async function panels(place, about, against, of = "") {
  if (!place.children.length || of) {
    place.replaceChildren(element("p", { class: "soft" }, "Counting …"));
  }
  const asked = { step: state.step, tensor: about.name, against, of };
  try {
    const found = await api.statistics(asked);
    if (found === null) return;
    place.replaceChildren(...sections(found, place, about, against));
    if (about.steps.length > 1) await history(place, about);
  } catch (error) {
    place.replaceChildren(element("p", { class: "wrong" }, error.message));
  }
}

// Add what changes from step to step. Of a store at an address it is fetched only if asked for.
async function history(place, about) {
  if (about.is_far && !place.dataset.isAsked) {
    const ask = element("button", {
      id: "ask-steps",
      onclick: () => {
        place.dataset.isAsked = "yes";
        ask.remove();
        history(place, about).catch((error) => place.append(element("p", { class: "wrong" }, error.message)));
      },
    }, "Compare all steps");
    place.append(ask);
    return;
  }
  const over = await api.history(about.name);
  if (over !== null) place.append(...overSteps(over.steps));
}

function sections(found, place, about, against) {
  const own = found.statistics;
  const sample = own.values < found.size && !found.errors.length;
  const more = element("button", { id: "count-all", onclick: () => panels(place, about, against, "all") },
    "Count all");
  const note = element("p", { class: "soft", id: "sample" },
    own.values < found.size
      ? `Counted: ${percent(own.values / found.size)} of ${counted(found.size, "value")}. `
      : `Counted: all of ${counted(found.size, "value")}.`, sample ? more : null);
  const wrong = found.errors.length
    ? [element("p", { class: "wrong" }, ["Not all could be read:", ...found.errors.slice(0, 3)].join("\n"))]
    : [];
  if (!own.values) return wrong.length ? wrong : [element("p", {}, "Nothing was counted.")];
  return [
    note, ...wrong, values(found.histogram), exponents(own), entropies(own), reached(found),
    setBits(own), change(own.change, own.bit_labels), neighbours(own.predictions), scales(found.scales),
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
      told: (i) => `about ${digits(middle(i))}: ${counted(counts[i], "value")}`,
      ticks: valueTicks(histogram, last).map((i) => [i, digits(rounded(middle(i), width))]),
    }));
}

// The ends, and zero if it is between them and not near either.
function valueTicks({ least, width }, last) {
  const zero = Math.floor(-least / width);
  return [...new Set([0, ...(zero > last / 5 && zero < 0.8 * last ? [zero] : []), last])];
}

function rounded(value, width) {
  return Math.abs(value) < width / 2 ? 0 : value;
}

function exponents(own) {
  const { first, bias, normal, counts } = own.exponents;
  if (!counts.length) return null;
  const total = counts.reduce((a, b) => a + b, 0);
  const last = counts.length - 1;
  const power = (i) => {
    if (first + i < normal[0]) return "0";
    return first + i >= normal[1] ? "inf, NaN" : `2${raised(first + i - bias)}`;
  };
  return figure("Exponents", `${digits(own.entropies.exponent, 4)} bits a value: what codecs gain by.`,
    bars("histogram of the exponents", counts, {
      told: (i) => `${power(i)}: ${percent(counts[i] / total)}`,
      ticks: [...new Set([0, Math.round(last / 2), last])].map((i) => [i, power(i)]),
    }));
}

function raised(number) {
  return [...String(number)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
}

function entropies(own) {
  const { bytes, sign, exponent, mantissa, ...rest } = own.entropies;
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
  for (const [name, own] of Object.entries(found.blocks)) {
    if (name !== "entropy") continue;
    rows.push(["entropy of 64 KiB blocks", own.mean.toFixed(3),
      `${own.quantiles[0].toFixed(2)} to ${own.quantiles.at(-1).toFixed(2)}`]);
  }
  return rows.length ? figure("What codecs reach, in bits a value", "", numbers(rows)) : null;
}

function itemBits(found) {
  return (8 * found.statistics.nbytes) / Math.max(1, found.statistics.values);
}

function setBits(own) {
  return figure("Set bits", "Bits near 50 % look like noise, and cannot be coded in less.",
    bits("part of the values in which each bit is set", own.set_bits, own.bit_labels));
}

function bits(name, parts, labels) {
  const every = Math.ceil(labels.length / 16);
  return bars(name, parts, {
    told: (i) => `${labels[i]}: ${percent(parts[i])}`,
    ticks: labels.map((label, i) => [i, label]).filter(([i]) => i % every === 0),
    format: (v) => `${Math.round(100 * v)} %`, most: 1,
  });
}

function change(own, labels) {
  if (!own) return null;
  const note = `${percent(own.changed)} of the values differ; of the difference, ` +
    `${own.difference.toFixed(3)} bits a value, of the exclusive or, ${own.xor.toFixed(3)}.`;
  const section = figure("Bits that changed", note, bits("part of each bit that differs", own.flipped, labels));
  section.id = "changes";
  return section;
}

function neighbours(predictions) {
  if (!predictions.length) return null;
  const rows = predictions.map((own) => [
    `${own.of}, from its ${own.neighbour} neighbour`, own.alone.toFixed(3),
    `${own.delta.toFixed(3)} as difference, ${own.xor.toFixed(3)} as exclusive or`,
  ]);
  const gains = predictions.some((own) => Math.min(own.delta, own.xor) < own.alone);
  const note = gains
    ? "Some neighbours tell something of a value: what is left is smaller than the value alone."
    : "Neighbours tell next to nothing of a value: what is left is larger than the value alone.";
  return figure("Neighbours", note, numbers(rows));
}

function scales(own) {
  if (!own) return null;
  const rows = [["rows", own.rows], ["columns", own.columns]].filter(([, spread]) => spread)
    .map(([name, spread]) => [name, spread.deviation.toFixed(3),
      `${digits(2 ** spread.quantiles[0])} to ${digits(2 ** spread.quantiles.at(-1))}`]);
  const zero = own.zero_rows || own.zero_columns
    ? `All zero: ${counted(own.zero_rows, "row")}, ${counted(own.zero_columns, "column")}.` : "";
  return figure("Scales: deviation in octaves", zero, numbers(rows));
}

function overSteps(steps) {
  const choose = (step) => show({ step });
  const draw = (title, note, value, format) => {
    const points = steps.map((own) => ({ step: own.step, value: value(own), before: own.before }));
    if (!points.some((point) => point.value !== null)) return null;
    return figure(title, note, curve(title, points, {
      format, here: state.step, choose,
      told: (p) => `step ${p.step}: ${format(p.value)}`,
    }));
  };
  return [
    draw("Changed since the step before", "Click on a step to see it.", (own) => own.changed, percent),
    draw("Bits a value over the steps", "As the arithmetic codec stores them whole.",
      (own) => own.bits.arithmetic ?? null, (v) => digits(v)),
  ].filter(Boolean);
}
