// What is fetched for a part, and what is said of stores that are not as they should be.

import assert from "node:assert/strict";
import { cp, readFile, rm, writeFile } from "node:fs/promises";
import { test } from "node:test";
import * as zarr from "zarrita";
import { get, load, loadZstd, openModel, withBF16 } from "../src/index.js";
import { serve } from "../tools/serve.js";
import { CASES, changed, CountingStore, fails, jsonOf } from "./support.js";

const zstd = await loadZstd();
const core = await load({ zstd });
const BLOCK = 2 ** 19;

/** What a selection of an array takes, after its metadata. */
async function costOf(path, selection) {
  const store = new CountingStore("large.zarr");
  const array = await zarr.open(zarr.root(withBF16(store, core)).resolve(path), { kind: "array" });
  const before = { requests: store.requests, bytes: store.bytes };
  await get(array, selection);
  return { requests: store.requests - before.requests, bytes: store.bytes - before.bytes };
}

test("a few rows take the head and one run of blocks", async () => {
  const { requests, bytes } = await costOf("bfloat16-arithmetic", [zarr.slice(700, 703), null]);
  assert.equal(requests, 2);
  assert(bytes < 2 * BLOCK, `${bytes}`);
});

test("most of a chunk takes one request for all of it", async () => {
  assert.equal((await costOf("bfloat16-arithmetic", [zarr.slice(0, 1000), null])).requests, 1);
});

test("a row of a later step takes a block of each that it comes from", async () => {
  const { requests, bytes } = await costOf("steps", [3, zarr.slice(400, 401), null]);
  assert(requests <= 5 && bytes < 4 * BLOCK, `${requests} requests, ${bytes} bytes`);
});

test("a tensor of a run takes less than its chunk", async () => {
  const store = new CountingStore("run.zarr");
  const model = await openModel(store, core);
  assert.deepEqual(model.steps, [10, 20, 30, 40]);
  const tensor = await model.tensor("w", { step: 20 });
  const before = store.bytes;
  await tensor.get([zarr.slice(0, 2), null]);
  assert(store.bytes - before < 2 * BLOCK, `${store.bytes - before}`);
});

test("servers: with ranges and without", async () => {
  for (const ranges of [true, false]) {
    const server = await serve(CASES, { ranges });
    try {
      const store = withBF16(new zarr.FetchStore(`${server.address}/large.zarr`), core);
      const array = await zarr.open(zarr.root(store).resolve("float32-huffman"), { kind: "array" });
      const { data } = await get(array, [zarr.slice(700, 703), null]);
      const cases = await jsonOf("cases.json");
      const { expected } = cases.find((one) => one.array === "float32-huffman");
      const bytes = await readFile(`${CASES}/${expected}`);
      assert.deepEqual(Buffer.from(data.buffer, data.byteOffset, data.byteLength), bytes);
    } finally {
      await server.close();
    }
  }
});

async function editRoot(store, edit) {
  const path = `${store}/zarr.json`;
  const root = JSON.parse(await readFile(path, "utf8"));
  edit(root.attributes.bf16codecs, root);
  await writeFile(path, JSON.stringify(root));
}

test("stores that are damaged, or of another kind", async () => {
  const model = "model-arithmetic-3.zarr", chunk = "of/float32/c.0.0";
  const cases = [
    ["a bit of a chunk", async (store) => {
      const bytes = await readFile(`${store}/${chunk}`);
      bytes[bytes.length - 20] ^= 4;
      await writeFile(`${store}/${chunk}`, bytes);
    }, fails("CorruptDataError", /checksum|block/)],
    ["an end", async (store) => {
      const bytes = await readFile(`${store}/${chunk}`);
      await writeFile(`${store}/${chunk}`, bytes.subarray(0, 900));
    }, fails("TruncatedDataError", /900/)],
    ["a chunk that is missing", (store) => rm(`${store}/${chunk}`),
      fails("CorruptDataError", /missing/)],
    ["a chunk of another array", async (store) => {
      await cp(`${store}/of/float64/c.0.0`, `${store}/${chunk}`);
    }, fails("CorruptDataError", /9600 bytes, a chunk of this array has 4800/)],
    ["a newer layout", (store) => editRoot(store, (attributes) => (attributes.layout = 3)),
      fails("UnsupportedError", /layout 3/)],
    ["a path out of the store", (store) => editRoot(store, (attributes) => {
      attributes.tensors["of.float32"] = "%2e%2e/secret";
    }), fails("CorruptDataError", /map/)],
    ["no model", (store) => editRoot(store, (_, root) => (root.attributes = {})),
      fails("UnsupportedError", /no model store/)],
    ["a data type", (store) => editRoot(store, (_, root) => {
      root.consolidated_metadata.metadata["of/float32"].data_type = "posit32";
    }), fails("InvalidMetadataError", /posit32/)],
    ["a codec", (store) => editRoot(store, (_, root) => {
      root.consolidated_metadata.metadata["of/float32"].codecs = [{ name: "bf16codecs.next" }];
    }), fails("UnknownCodecError", /next/)],
  ];
  for (const [name, change, isExpected] of cases) {
    const { store, remove } = await changed(model, change);
    const read = async () => (await (await openModel(store, core)).tensor("of.float32")).get();
    await assert.rejects(read, isExpected, name);
    await remove();
  }
});

test("what is stored as a difference to another store is refused by name", async () => {
  const model = await openModel(new CountingStore("difference.zarr"), core);
  await assert.rejects(() => model.tensor("w"), fails("UnsupportedError", /"w".*difference/));
});

test("a frame of Zstandard needs a decompressor", async () => {
  const plain = await load();
  try {
    const model = await openModel(new CountingStore("model-zstd-3.zarr"), plain);
    const read = async () => (await model.tensor("of.bfloat16")).get();
    await assert.rejects(read, fails("UnsupportedError", /Zstandard|zstd/i));
  } finally {
    await load({ zstd });
  }
});
