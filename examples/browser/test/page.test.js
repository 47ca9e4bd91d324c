// The page in headless Chromium, served as files.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "../tools/serve.js";
import { bytesOf, CASES, jsonOf } from "./support.js";

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

test("a window of a large tensor is read in part, and its numbers are those of NumPy", async () => {
  const page = await open({ store: `${stores.address}/run.zarr`, tensor: "w" });
  const before = Number(/in (\d+) request/.exec(await text(page, "traffic"))[1]);
  for (const [name, value] of Object.entries({ row: 600, rows: 3, column: 5, columns: 2 })) {
    await page.fill(`#window [name=${name}]`, String(value));
  }
  await page.click("text=Draw");
  await atRest(page);
  const { expected } = (await jsonOf("cases.json")).find(
    ({ store, tensor, step }) => store === "run.zarr" && tensor === "w" && step === 40,
  );
  const bits = new Uint16Array((await bytesOf(expected)).buffer).slice(5, 7);
  const [first] = new Float32Array(Uint32Array.of(bits[0] << 16).buffer);
  await page.hover("#picture", { position: { x: 2, y: 2 } });
  const [, place, value] = /^(\[.*\]) (.*)$/.exec(await text(page, "pointed"));
  assert.equal(place, "[600, 5]");
  assert(Math.abs(Number(value) - first) <= 1e-4 * Math.abs(first), `${value}, ${first}`);
  assert(Number(/in (\d+) request/.exec(await text(page, "traffic"))[1]) > before);
  await page.selectOption("#step", "10");
  await atRest(page);
  assert.equal(await page.isVisible("#message"), false);
  await close(page, "run");
});

test("every kind of tensor is drawn", async () => {
  for (const store of ["model-zstd-2.zarr", "lossy-delta-deflate-3.zarr", "model-none-3.zarr"]) {
    const page = await open({ store: `${stores.address}/${store}` });
    for (const name of await page.$$eval("#rows tr", (rows) => rows.map((row) => row.dataset.name))) {
      await page.click(`#rows tr[data-name="${name}"]`);
      await atRest(page);
      assert.equal(await text(page, "message"), "", `${store} ${name}`);
      assert.equal(await text(page, "name"), name);
    }
    await close(page, store);
  }
});

test("errors in plain words", async () => {
  const closed = await serve(CASES, { cors: false });
  const cases = [
    ["samples/nothing.zarr", /no store at this address/],
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
