// Metadata that are damaged: whatever is in place of what should be there, an error says so in its words.

import assert from "node:assert/strict";
import { before, test } from "node:test";
import * as zarr from "zarrita";
import { get, load, loadZstd, openModel, withBF16 } from "../src/index.js";
import { serve } from "../tools/serve.js";
import { CASES, cause, CountingStore, encoded, fails, ReplacedStore, storeOf } from "./support.js";

let core;
before(async () => (core = await load({ zstd: await loadZstd() })));

const ABSENT = Symbol("absent");
const WRONG = [
  ABSENT, null, 0, -1, 1.5, 1e20, "", "x", "constructor", "<constructor", "NaN", true,
  [], [null], [[1]], [-1, 1], {}, { a: 1 },
];
const SAID = new Set([
  "CorruptDataError", "TruncatedDataError", "UnsupportedError", "UnsupportedVersionError", "MemoryError",
  "StoreError", "InvalidMetadataError", "NotFoundError", "UnknownCodecError",
]);

/** All places in a document, but those of other arrays and what a reader ignores. */
function placesOf(value, isWanted, path = []) {
  if (typeof value !== "object" || value === null) return [path];
  const parts = Object.keys(value).filter((key) => isWanted([...path, key].join(" ")));
  return [path, ...parts.flatMap((key) => placesOf(value[key], isWanted, [...path, key]))];
}

function edited(document, path, value) {
  if (path.length === 0) return value === ABSENT ? undefined : value;
  const copy = structuredClone(document);
  let at = copy;
  for (const key of path.slice(0, -1)) at = at[key];
  if (value === ABSENT) delete at[path.at(-1)];
  else at[path.at(-1)] = value;
  return copy;
}

/** A store of which one document is another one, or is not there. */
const editedStore = (name, key, document) =>
  new ReplacedStore(name, key, document === undefined ? undefined : encoded(document));

async function documentOf(name, key) {
  return JSON.parse(new TextDecoder().decode(await new CountingStore(name).get(key)));
}

/** Fails if an error is thrown that this package, or zarrita, does not mean. */
async function inPlainWords(read, where) {
  try {
    await read();
    return 0;
  } catch (error) {
    const outer = SAID.has(error.name) || error._tag === "UnknownCodecError" ? error : cause(error);
    const isOwn = /^there is no tensor|^the run has no step|not in the model/.test(outer.message);
    const isSaid =
      SAID.has(outer.name) || SAID.has(outer._tag) || (outer.name === "RangeError" && isOwn) ||
      /^Invalid acceleration/.test(outer.message); // numcodecs, of a level
    assert(isSaid, `${where}: ${outer.stack}`);
    assert.doesNotMatch(outer.message, /undefined|is not a function/, where);
    return 1;
  }
}

const IGNORED =
  / (files|writer|index|codec$|kind|must_understand)|writer$|dimension_names .|_ARRAY_DIMENSIONS/;
const isOfSome = (arrays) => (path) =>
  !IGNORED.test(path) &&
  (!/^(consolidated_metadata )?metadata ./.test(path) ||
    arrays.some((array) => path.replace(/^consolidated_metadata /, "").startsWith(`metadata ${array}`)));

const DOCUMENTS = [
  ["model-arithmetic-3.zarr", "/zarr.json", ["of/float32", "of/bfloat16", "of/complex64"]],
  ["model-zstd-2.zarr", "/.zmetadata", ["of/float32", "of/bfloat16", ".z"]],
  ["lossy-delta-rle-3.zarr", "/zarr.json", ["half"]],
  ["lossy-delta-deflate-2.zarr", "/.zmetadata", ["half"]],
  ["run.zarr", "/zarr.json", ["small"]],
];

for (const [name, key, arrays] of DOCUMENTS) {
  test(`documents of ${name}`, async () => {
    const document = await documentOf(name, key);
    const places = placesOf(document, isOfSome(arrays));
    assert(places.length > 20);
    let refused = 0;
    for (const place of places) {
      for (const wrong of WRONG) {
        const where = `${name} ${place.join(" / ")} = ${String(JSON.stringify(wrong))}`;
        const store = editedStore(name, key, edited(document, place, wrong));
        const tensors = arrays.filter((array) => array !== ".z").map((array) => array.replace("/", "."));
        refused += await inPlainWords(async () => {
          const model = await openModel(store, core);
          for (const tensor of tensors) await (await model.tensor(tensor)).get();
        }, where);
      }
    }
    assert(refused > 100, `${refused}`);
  });
}

test("documents of arrays that are opened alone", async () => {
  const arrays = [
    ["arrays3.zarr", "float32-fast-shards", "zarr.json"],
    ["arrays3.zarr", "order-f", "zarr.json"],
    ["arrays3.zarr", "float8_e4m3fn-huffman-bytes", "zarr.json"],
    ["arrays3.zarr", "missing-int64", "zarr.json"],
    ["arrays2.zarr", "big-endian-4", ".zarray"],
    ["arrays2.zarr", "missing-int64", ".zarray"],
    ["arrays2.zarr", "missing-bool", ".zarray"],
  ];
  for (const [name, array, file] of arrays) {
    const key = `/${array}/${file}`, document = await documentOf(name, key);
    const open = file === "zarr.json" ? zarr.open.v3 : zarr.open.v2;
    for (const place of placesOf(document, isOfSome([]))) {
      for (const wrong of WRONG) {
        const store = withBF16(editedStore(name, key, edited(document, place, wrong)), core);
        await inPlainWords(async () => {
          const found = await open(zarr.root(store).resolve(array), { kind: "array" });
          await get(found, found.shape.map(() => zarr.slice(0, 3)));
        }, `${name} ${array} ${place.join(" / ")} = ${String(JSON.stringify(wrong))}`);
      }
    }
  }
});

test("what is wrong is said", async () => {
  const codecs = [{ name: "bytes", configuration: { endian: "little" } }];
  const big = [{ name: "bytes", configuration: { endian: "big" } }];
  const sound = { shape: [4], data_type: "float32", codecs };
  const cases = [
    [{ shape: "4", chunk_grid: undefined }, /^\/a\/zarr.json: "shape" is not a list of lengths$/],
    [{ codecs: {} }, /"codecs" is not a list of codecs/],
    [{ chunk_key_encoding: undefined }, /"chunk_key_encoding" is not one of the known ones/],
    [{ fill_value: "x" }, /"fill_value" is no number of float32/],
    [{ data_type: { name: "date" } }, /"data_type" is not the name of a data type/],
    [{ zarr_format: 4 }, /"zarr_format" is not 3/],
    [{ node_type: "table" }, /"node_type" is neither an array nor a group/],
    [{ data_type: "complex64", fill_value: [0, 0], codecs: big },
      /"bytes" is big-endian, of complex numbers/],
  ];
  for (const [change, message] of cases) {
    const store = withBF16(storeOf({ ...sound, ...change }), core);
    const read = () => zarr.open.v3(zarr.root(store).resolve("a"));
    await assert.rejects(read, fails("InvalidMetadataError", message));
  }
});

test("fill values that JSON has no numbers for", async () => {
  const codecs = [{ name: "bytes", configuration: { endian: "little" } }];
  const cases = [
    ["float32", "0x7fc00001", NaN], ["float32", "0x3fc00000", 1.5], ["float64", "0x3ff8000000000000", 1.5],
    ["float64", "-Infinity", -Infinity], ["int64", 7, 7n], ["uint8", 200, 200], ["bool", true, true],
  ];
  for (const [data_type, fill_value, expected] of cases) {
    const store = withBF16(storeOf({ shape: [3], data_type, codecs, fill_value }), core);
    const { data } = await get(await zarr.open.v3(zarr.root(store).resolve("a")));
    assert.deepEqual([...data], [expected, expected, expected], `${data_type} ${fill_value}`);
  }
});

test("where there is no store, the address is named", async () => {
  const server = await serve(CASES);
  try {
    const address = `${server.address}/nothing.zarr`;
    const message = `^there is no store at ${address}: neither zarr.json nor .zgroup is there$`;
    const expected = fails("StoreError", new RegExp(message));
    await assert.rejects(() => openModel(address, core), expected);
    await assert.rejects(() => openModel(new URL(address), core), expected);
    await assert.rejects(() => openModel(new zarr.FetchStore(address), core), expected);
    const inMemory = fails("StoreError", /^there is no store: neither/);
    await assert.rejects(() => openModel(new Map(), core), inMemory);
    const array = `${server.address}/run.zarr/w`;
    await assert.rejects(() => openModel(array, core), fails("UnsupportedError", /is an array/));
  } finally {
    await server.close();
  }
});
