// The page in headless Chromium, served as files.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { cp, mkdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "../tools/serve.js";
import { toFloat32 } from "../src/index.js";
import { numberText } from "../page/words.js";
import { bytesOf, CASES, changed, jsonOf } from "./support.js";

const CHROMIUM =
  process.env.CHROMIUM ??
  ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const DIST = fileURLToPath(new URL("../dist", import.meta.url));
const PICTURES = process.env.BF16CODECS_PICTURES; // a folder for pictures of the page

let browser, site, stores;
before(async () => {
  site = await serve(DIST);
  stores = await serve(CASES);
  // Without a sandbox, since containers have none; and without talk to its maker's servers.
  const quiet = ["background-networking", "component-update", "quic", "sync"];
  browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: ["--no-sandbox", "--no-first-run", ...quiet.map((name) => `--disable-${name}`)],
  });
});
after(() => Promise.all([browser.close(), site.close(), stores.close()]));

/** The page at a query, when it has come to rest; errors of scripts fail the test. */
async function open(query, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  const page = await context.newPage();
  page.failures = [];
  page.on("pageerror", (error) => page.failures.push(String(error)));
  page.on("request", (request) => {
    if (!/^(http:\/\/127\.0\.0\.1:|data:)/.test(request.url())) page.failures.push(request.url());
  });
  await page.goto(`${site.address}/?${new URLSearchParams(query)}`);
  await atRest(page);
  return page;
}

const atRest = (page) => page.waitForSelector('body[aria-busy="false"]', { timeout: 60_000 });

async function close(page, name) {
  if (PICTURES) {
    await mkdir(PICTURES, { recursive: true });
    await page.screenshot({ path: `${PICTURES}/${name}.png`, fullPage: true });
  }
  const tooWide = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
  );
  assert(tooWide <= 0, `${name}: the page is ${tooWide} pixels too wide`);
  assert.deepEqual(page.failures, []);
  await page.context().close();
}

const text = (page, id) => page.textContent(`#${id}`);

for (const [name, options] of Object.entries({
  "wide and light": {},
  "wide and dark": { colorScheme: "dark" },
  narrow: { viewport: { width: 380, height: 800 } },
})) {
  test(`the demo's model, ${name}`, async () => {
    const page = await open({}, options);
    assert.equal(await page.isVisible("#message"), false);
    assert.match(await text(page, "count"), /^39 tensors$/);
    await page.fill("#filter", "layers.1.mlp");
    assert.match(await text(page, "count"), /^3 tensors$/);
    await page.click('#rows tr[data-name="model.layers.1.mlp.up_proj.weight"]');
    await atRest(page);
    assert.equal(await text(page, "name"), "model.layers.1.mlp.up_proj.weight");
    assert.match(await text(page, "facts"), /256 × 96 of bfloat16; arithmetic, fast/);
    assert.match(await text(page, "statistics"), /numbers24576/);
    assert.match(await text(page, "engine"), /simd128/);
    assert.match(page.url(), /tensor=model\.layers\.1/);
    await close(page, `demo, ${name}`);
  });
}

/** The numbers of a case, of bfloat16. */
async function numbersOf(wanted) {
  const { expected } = (await jsonOf("cases.json")).find((one) =>
    Object.entries(wanted).every(([key, value]) => one[key] === value));
  return toFloat32(new Uint16Array((await bytesOf(expected)).buffer), "bfloat16");
}

/** The colours of the picture's pixels. */
const pixelsOf = (page) =>
  page.$eval("#picture", (canvas) => {
    const { width, height } = canvas;
    return { width, height, data: [...canvas.getContext("2d").getImageData(0, 0, width, height).data] };
  });

/** What is told of the number at a place of the picture. */
async function pointed(page, row, column, rows, columns) {
  const { width, height } = await page.$eval("#picture", (canvas) => canvas.getBoundingClientRect());
  await page.hover("#picture", {
    position: { x: ((column + 0.5) * width) / columns, y: ((row + 0.5) * height) / rows },
  });
  return text(page, "pointed");
}

/** Checks that the picture is that of numbers, and what is told under the pointer. */
async function checkPicture(page, values, rows, columns, top = 0, left = 0) {
  const { width, height, data } = await pixelsOf(page);
  assert.deepEqual([width, height], [columns, rows]);
  const zero = [247, 247, 245];
  const colors = new Set();
  values.forEach((value, i) => {
    const [red, green, blue, alpha] = data.slice(4 * i, 4 * i + 4), where = `${value} at ${i}`;
    colors.add(`${red} ${green} ${blue}`);
    assert.equal(alpha, 255, where);
    if (Number.isNaN(value)) assert.deepEqual([red, green, blue], [214, 60, 214], where);
    else if (value === 0) assert.deepEqual([red, green, blue], zero, where);
    // The smallest ones may be too few steps from zero to be seen.
    else if (value > 0) assert(red - blue >= zero[0] - zero[2], `${where}: ${red}, ${blue}`);
    else assert(red - blue <= zero[0] - zero[2], `${where}: ${red}, ${blue}`);
    if (value === Infinity) assert.deepEqual([red, green, blue], [190, 40, 44], where);
    if (value === -Infinity) assert.deepEqual([red, green, blue], [24, 96, 176], where);
  });
  assert(colors.size > Math.min(20, values.length / 4), `${colors.size} colours`);
  for (const [row, column] of [[0, 0], [rows - 1, columns - 1], [rows >> 1, columns >> 1]]) {
    const expected = `[${top + row}, ${left + column}] ${numberText(values[row * columns + column])}`;
    assert.equal(await pointed(page, row, column, rows, columns), expected);
  }
}

const fetched = async (page) => Number(/in (\d+) request/.exec(await text(page, "traffic"))[1]);

async function draw(page, window) {
  for (const [name, value] of Object.entries(window)) {
    await page.fill(`#window [name=${name}]`, String(value));
  }
  await page.click("text=Draw");
  await atRest(page);
}

test("the picture is that of the numbers that NumPy has", async () => {
  const tensor = "of.bfloat16", store = "model-arithmetic-3.zarr";
  const page = await open({ store: `${stores.address}/${store}`, tensor });
  await checkPicture(page, await numbersOf({ store, tensor }), 40, 30);
  await close(page, "picture");
});

test("a window of a large tensor is read in part, and its numbers are those of NumPy", async () => {
  const page = await open({ store: `${stores.address}/run.zarr`, tensor: "w" });
  const before = await fetched(page);
  await draw(page, { row: 600, rows: 3, column: 5, columns: 20 });
  const rows = async (step) => {
    const values = await numbersOf({ store: "run.zarr", tensor: "w", step });
    return [0, 1, 2].flatMap((row) => [...values.slice(700 * row + 5, 700 * row + 25)]);
  };
  await checkPicture(page, await rows(40), 3, 20, 600, 5);
  assert((await fetched(page)) > before);
  const facts = "1200 × 700 of bfloat16; arithmetic, fast; one chunk for every 8 steps";
  assert.equal(await text(page, "facts"), facts);
  await page.selectOption("#step", "10");
  await atRest(page);
  assert.equal(await page.isVisible("#message"), false);
  await draw(page, { row: 600, rows: 3, column: 5, columns: 20 });
  await checkPicture(page, await rows(10), 3, 20, 600, 5);
  await close(page, "run");
});

test("of steps that are chosen quickly, one after the other, the last one is shown", async () => {
  const page = await open({ store: `${stores.address}/run.zarr`, tensor: "small" });
  let slow = 400;
  await page.route(/run.zarr.small.c/, async (route) => {
    await new Promise((resolve) => setTimeout(resolve, (slow -= 100)));
    await route.continue().catch(() => {}); // it was given up
  });
  await page.evaluate(async () => {
    const step = document.getElementById("step");
    for (const value of ["10", "20", "30"]) {
      step.value = value;
      step.dispatchEvent(new Event("change"));
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  });
  await atRest(page);
  await page.waitForTimeout(500);
  assert.equal(await page.inputValue("#step"), "30");
  assert.equal(await pointed(page, 0, 5, 1, 6), "[5] 150");
  assert.equal(await page.isVisible("#message"), false);
  // A tensor that is chosen while the list is made anew.
  await page.evaluate(() => {
    const step = document.getElementById("step");
    step.value = "40";
    step.dispatchEvent(new Event("change"));
    document.querySelector('#rows tr[data-name="ids"]').click();
  });
  await atRest(page);
  await page.waitForTimeout(300);
  assert.equal(await text(page, "name"), "ids");
  assert.equal(await pointed(page, 0, 4, 1, 5), "[4] 160");
  assert.equal(await page.getAttribute('#rows tr[aria-selected="true"]', "data-name"), "ids");
  await close(page, "steps");
});

test("after a failure nothing of what was shown before is left", async () => {
  const { store, remove } = await changed("model-arithmetic-3.zarr", async (folder) => {
    const path = `${folder}/of/bfloat16/c.0.0`, bytes = await readFile(path);
    bytes[bytes.length - 20] ^= 4;
    await writeFile(path, bytes);
    const short = `${folder}/of/float64/c.0.0`;
    await writeFile(short, (await readFile(short)).subarray(0, 900));
    const root = JSON.parse(await readFile(`${folder}/zarr.json`, "utf8"));
    root.consolidated_metadata.metadata["of/float16"].shape = null;
    await writeFile(`${folder}/zarr.json`, JSON.stringify(root));
  });
  const server = await serve(store.folder);
  const page = await open({ store: server.address, tensor: "of.float32" });
  const choose = async (name) => {
    await page.click(`#rows tr[data-name="${name}"]`);
    await atRest(page);
  };
  const isDrawn = async () => [
    await page.isVisible("#picture"),
    (await text(page, "statistics")) !== "",
    await page.isVisible("#message"),
  ];
  assert.deepEqual(await isDrawn(), [true, true, false]);
  for (const [name, message] of [
    // By the names of classes, which are those of the bundle.
    ["of.bfloat16", /^The store is damaged\. \(.*checksum/],
    ["of.float64", /^The store is damaged: a chunk is cut off\. \(/],
  ]) {
    await choose(name);
    assert.match(await text(page, "message"), message);
    assert.deepEqual(await isDrawn(), [false, false, true], name);
    assert.equal(await text(page, "name"), name);
    await choose("of.float32");
    assert.deepEqual(await isDrawn(), [true, true, false]);
  }
  await choose("of.float16");
  assert.match(await text(page, "message"), /"shape" is not a list of lengths/);
  assert.equal(await page.isVisible("#tensor"), false);
  // One that is not there, measured.
  await choose("of.float32");
  await page.route(/of.float32.c/, (route) => route.fulfill({ status: 404 }));
  await page.click("#measure");
  await atRest(page);
  assert.match(await text(page, "message"), /is missing/);
  assert.equal(await text(page, "measured"), "");
  await close(page, "damaged");
  await server.close();
  await remove();
});

test("small frames are measured, and tensors without numbers are not", async () => {
  const store = `${stores.address}/model-arithmetic-3.zarr`;
  for (const [tensor, message] of [
    ["one.bfloat16", null],
    ["none", /^This tensor has no numbers, so that there is nothing to decode\.$/],
    ["of.int64", /^This tensor is not in frames of bf16codecs/],
  ]) {
    const page = await open({ store, tensor, measure: "" });
    const found = await page.getAttribute("#measured", "data-found");
    if (message === null) assert.equal(JSON.parse(found).bytes, 2);
    else assert.match(await text(page, "message"), message);
    assert.equal(await page.isDisabled("#measure"), message !== null);
    await close(page, `measure, ${tensor}`);
  }
});

test("more tensors than are listed", async () => {
  const folder = `${CASES}/many.zarr`;
  await cp(`${CASES}/model-arithmetic-3.zarr`, folder, { recursive: true });
  const root = JSON.parse(await readFile(`${folder}/zarr.json`, "utf8"));
  const names = Array.from({ length: 6001 }, (_, i) => `block.${i}.weight`);
  root.attributes.bf16codecs.tensors = Object.fromEntries(names.map((name) => [name, "of/bfloat16"]));
  await writeFile(`${folder}/zarr.json`, JSON.stringify(root));
  const page = await open({ store: `${stores.address}/many.zarr` });
  const count = (expected) =>
    page.waitForFunction((wanted) => document.getElementById("count").textContent === wanted, expected);
  await count("the first 5,000 of 6,001 tensors; filter to see others");
  assert.equal(await page.$$eval("#rows tr", (rows) => rows.length), 5000);
  await page.fill("#filter", "block.6000.");
  await count("1 tensor");
  await page.click("#rows tr");
  await atRest(page);
  assert.equal(await text(page, "name"), "block.6000.weight");
  await page.fill("#filter", "");
  await count("the first 5,000 of 6,001 tensors; filter to see others");
  await close(page, "many");
});

test("what was fetched is told of the store that is shown", async () => {
  const alone = await open({ store: "samples/demo.zarr", tensor: "lm_head.weight" });
  const expected = (await text(alone, "traffic")).replace(/ in [\d.]+ ms.*/, "");
  await close(alone, "alone");
  const page = await open({ store: `${stores.address}/run.zarr`, tensor: "w" });
  await page.route(/large|model-none/, async (route) => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    await route.continue().catch(() => {});
  });
  await page.fill("#address", `${stores.address}/model-none-3.zarr`);
  await page.click("text=Open");
  await page.fill("#address", "samples/demo.zarr");
  await page.click("text=Open");
  await atRest(page);
  await page.click('#rows tr[data-name="lm_head.weight"]');
  await atRest(page);
  await page.waitForTimeout(500);
  assert.equal((await text(page, "traffic")).replace(/ in [\d.]+ ms.*/, ""), expected);
  await close(page, "traffic");
});

test("every kind of tensor is drawn", async () => {
  for (const store of ["model-zstd-2.zarr", "lossy-delta-deflate-3.zarr", "model-none-3.zarr"]) {
    const page = await open({ store: `${stores.address}/${store}` });
    for (const name of await page.$$eval("#rows tr", (rows) => rows.map((row) => row.dataset.name))) {
      await page.click(`#rows tr[data-name="${name}"]`);
      await atRest(page);
      assert.equal(await text(page, "message"), "", `${store} ${name}`);
      assert.equal(await text(page, "name"), name);
      if (name.startsWith("one.")) {
        assert((await text(page, "facts")).startsWith(`one number of ${name.slice(4)};`), name);
        assert.equal(await pointed(page, 0, 0, 1, 1), "[0] 0.0625", name);
      }
    }
    await close(page, store);
  }
});

test("errors in plain words", async () => {
  const closed = await serve(CASES, { cors: false });
  const cases = [
    ["samples/nothing.zarr",
      /^There is no store at http.*samples\/nothing.zarr: neither zarr.json nor .zgroup is there\.$/],
    [`${closed.address}/run.zarr`, /Access-Control-Allow-Origin/],
    [`${stores.address}/arrays3.zarr`, /no model store/],
    ["page.css", /no store|no metadata/],
    ["http://", /not an address/],
  ];
  for (const [store, expected] of cases) {
    const page = await open({ store });
    assert.match(await text(page, "message"), expected);
    await close(page, "error");
  }
  const page = await open({ store: `${stores.address}/difference.zarr`, tensor: "w" });
  assert.match(await text(page, "message"), /difference to another store/);
  await close(page, "difference");
  await closed.close();
});

test("decoding is measured on the page", async () => {
  for (const name of ["fast", "huffman", "best"]) {
    const store = `samples/weights-${name}.zarr`;
    const page = await open({ store, tensor: "weights", measure: "" });
    const found = JSON.parse(await page.getAttribute("#measured", "data-found"));
    assert.equal(found.bytes, 2 ** 24);
    assert.equal(found.isa, "simd128");
    assert(found.decode.least > 0 && found.decode.median >= found.decode.least);
    console.log(`# ${name}: ${await text(page, "measured")}`);
    await close(page, `measure, ${name}`);
  }
});
