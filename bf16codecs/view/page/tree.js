// The tensors as a tree of the parts of their names, or, during a search, as a list.

import { byId, counted, digits, element, ratio, shaped, size } from "./dom.js";
import { show, state } from "./state.js";

// The most rows that are drawn, without a noticeable pause; the search finds the rest.
const MOST = 1000;
// Groups are opened at the start up to this number of rows.
const IN_SIGHT = 30;

let rows = [];
let root = null;

// Group rows by the parts of their names; a group with a single member is merged with it.
export function grouped(tensors) {
  const whole = { name: "", path: "", groups: new Map(), rows: [], nbytes: 0, count: 0 };
  for (const row of tensors) {
    let group = whole;
    const parts = row.name.split(".");
    for (const part of parts.slice(0, -1)) {
      group.nbytes += row.nbytes;
      group.count += 1;
      if (!group.groups.has(part)) {
        const path = group.path ? `${group.path}.${part}` : part;
        group.groups.set(part, { name: part, path, groups: new Map(), rows: [], nbytes: 0, count: 0 });
      }
      group = group.groups.get(part);
    }
    group.nbytes += row.nbytes;
    group.count += 1;
    group.rows.push({ ...row, last: parts.at(-1) });
  }
  return joined(whole);
}

function joined(group) {
  const groups = [];
  const rows = [];
  for (const child of group.groups.values()) {
    let inner = child;
    while (inner.groups.size === 1 && !inner.rows.length) {
      const [next] = inner.groups.values();
      inner = { ...next, name: `${inner.name}.${next.name}` };
    }
    if (inner.count === 1) rows.push({ ...inner.rows[0], last: `${inner.name}.${inner.rows[0].last}` });
    else groups.push(joined(inner));
  }
  return { ...group, groups, rows: [...rows, ...group.rows] };
}

// Layer 10 comes behind layer 9, whatever the order in the file.
const inOrder = new Intl.Collator("en", { numeric: true });

export function setRows(tensors) {
  rows = [...tensors].sort((a, b) => inOrder.compare(a.name, b.name));
  root = grouped(rows);
  draw();
}

// Draw the results of the search, or the tree with its open groups.
export function draw() {
  const tree = byId("tree");
  const open = new Set([...tree.querySelectorAll("[aria-expanded=true]")].map((n) => n.dataset.path));
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  byId("search").value = state.search;
  if (words.length) {
    const hits = rows.filter((row) => words.every((word) => row.name.toLowerCase().includes(word)));
    byId("found").textContent = `${counted(hits.length, "tensor")} of ${rows.length}`;
    tree.replaceChildren(...some(hits.map((row) => [row, row.name]).map(leaf)));
  } else {
    byId("found").textContent = counted(rows.length, "tensor");
    tree.replaceChildren(...inside(root));
    for (const path of open) expand(itemAt(path));
    unfold();
  }
  select();
}

// Mark the tensor that is shown, and open its groups.
export function select() {
  const tree = byId("tree");
  for (const item of tree.querySelectorAll("[aria-selected=true]")) {
    item.setAttribute("aria-selected", "false");
  }
  if (state.tensor && !state.search) reveal(state.tensor);
  const item = [...tree.querySelectorAll("[data-tensor]")].find(
    (node) => node.dataset.tensor === state.tensor
  );
  if (item) {
    item.setAttribute("aria-selected", "true");
    item.querySelector(".row").scrollIntoView({ block: "nearest" });
  }
  for (const node of tree.querySelectorAll("[tabindex='0']")) node.tabIndex = -1;
  const first = item ?? tree.querySelector("[role=treeitem]");
  if (first) first.tabIndex = 0;
}

// The name of the tensor after the one that is shown, or before it; after the last comes the first.
export function neighbour(by) {
  const at = rows.findIndex((row) => row.name === state.tensor);
  return rows.at(at < 0 && by < 0 ? -1 : (at + by) % rows.length)?.name ?? "";
}

function some(makers) {
  const shown = makers.slice(0, MOST);
  if (makers.length > MOST) {
    const more = `${makers.length - MOST} more: search for them`;
    shown.push(element("li", { role: "none", class: "soft" }, more));
  }
  return shown;
}

function inside(group) {
  return some([
    ...group.groups.map(branch),
    ...group.rows.map((row) => leaf([row, row.last])),
  ]);
}

function branch(group) {
  const about = `${group.count} · ${size(group.nbytes)}`;
  const item = element(
    "li",
    {
      role: "treeitem", "aria-expanded": "false", tabindex: "-1", "data-path": group.path,
      "aria-label": `${group.name}, ${counted(group.count, "tensor")}`,
    },
    element(
      "div",
      { class: "row", onclick: () => toggle(item) },
      element("span", { class: "twist", "aria-hidden": "true" }, "▸"),
      element("span", { class: "name", title: group.path }, group.name),
      element("span", { class: "about" }, about)
    )
  );
  item.group = group;
  return item;
}

function leaf([row, name]) {
  const times = ratio(row);
  const about = [row.dtype, shaped(row.shape), size(row.nbytes), times ? `${digits(times)}×` : ""];
  const title = `${row.name}\n${about.filter(Boolean).join(", ")}`;
  return element(
    "li",
    {
      role: "treeitem", "aria-selected": "false", tabindex: "-1", "data-tensor": row.name,
      "aria-label": title,
    },
    element(
      "div",
      { class: "row", title, onclick: () => show({ tensor: row.name }) },
      element("span", { class: "twist", "aria-hidden": "true" }),
      element("span", { class: "name" }, name || "(no name)"),
      element("span", { class: "about" }, about.slice(0, 2).join(" ")),
      element("span", { class: "about" }, about[3] || about[2])
    )
  );
}

function expand(item) {
  if (!item || item.getAttribute("aria-expanded") !== "false") return;
  item.setAttribute("aria-expanded", "true");
  item.querySelector(".twist").textContent = "▾";
  item.append(element("ul", { role: "group" }, ...inside(item.group)));
}

function collapse(item) {
  item.setAttribute("aria-expanded", "false");
  item.querySelector(".twist").textContent = "▸";
  item.querySelector("ul").remove();
}

function toggle(item) {
  if (item.getAttribute("aria-expanded") === "true") collapse(item);
  else expand(item);
}

// Open the outer groups as long as all rows stay in sight.
function unfold() {
  const tree = byId("tree");
  let next = [...tree.querySelectorAll("[aria-expanded=false]")];
  while (next.length) {
    const more = next.reduce((sum, { group }) => sum + group.groups.length + group.rows.length, 0);
    if (tree.querySelectorAll("[role=treeitem]").length + more > IN_SIGHT) return;
    next.forEach(expand);
    next = next.flatMap((item) => [...item.querySelectorAll("[aria-expanded=false]")]);
  }
}

function itemAt(path) {
  const items = [...byId("tree").querySelectorAll("[data-path]")];
  return items.find((item) => item.dataset.path === path);
}

function reveal(name) {
  for (let group = root; group; ) {
    group = group.groups.find((inner) => name.startsWith(`${inner.path}.`));
    if (group) expand(itemAt(group.path));
  }
}

// The keys of a tree, as in ARIA's authoring practices.
export function onKey(event) {
  const item = event.target.closest("[role=treeitem]");
  if (!item || event.ctrlKey || event.altKey || event.metaKey) return;
  const items = [...byId("tree").querySelectorAll("[role=treeitem]")];
  const go = (to) => {
    if (!to) return;
    item.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  };
  const at = items.indexOf(item);
  const isOpen = item.getAttribute("aria-expanded");
  const moves = {
    ArrowDown: () => go(items[at + 1]),
    ArrowUp: () => (at ? go(items[at - 1]) : byId("search").focus()),
    Home: () => go(items[0]),
    End: () => go(items.at(-1)),
    ArrowRight: () => (isOpen === "false" ? expand(item) : isOpen && go(items[at + 1])),
    ArrowLeft: () =>
      isOpen === "true" ? collapse(item) : go(item.parentElement.closest("[role=treeitem]")),
    Enter: () => item.querySelector(".row").click(),
    " ": () => item.querySelector(".row").click(),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  moves[event.key]();
}
