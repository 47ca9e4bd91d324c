// Parts of chunks: selections, what is not there, what is damaged, and what is given up halfway.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { before, test } from "node:test";
import * as zarr from "zarrita";
import { PREFIX_SIZE } from "../src/core.js";
import { CodecError, get, load, loadZstd, openModel, withBF16 } from "../src/index.js";
import { someAtOnce } from "../src/parts.js";
import { serve } from "../tools/serve.js";
import { bytesOf, CASES, CountingStore, fails, jsonOf, ReplacedStore, storeOf } from "./support.js";

let core;
before(async () => (core = await load({ zstd: await loadZstd() })));

const open = (store, path) => zarr.open(zarr.root(withBF16(store, core)).resolve(path), { kind: "array" });
const slices = (selection) => selection.map((part) => (Array.isArray(part) ? zarr.slice(...part) : part));
const bytesOfData = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);

/** A store in a folder that has no ranges. */
class WholeStore extends CountingStore {
  getRange = undefined;
}

test("steps that a growing frame has only the room for: as Python", async () => {
  for (const Store of [CountingStore, WholeStore]) {
    for (const { array: name, selection, error, sha256 } of await jsonOf("unfinished.json")) {
      const array = await open(new Store("unfinished.zarr"), name);
      const read = () => get(array, slices(selection));
      const where = `${name} ${JSON.stringify(selection)}`;
      if (error !== undefined) {
        await assert.rejects(read, fails(error, /has 4 of 8 versions, and version 5/), where);
      } else {
        const found = createHash("sha256").update(bytesOfData(await read())).digest("hex");
        assert.equal(found, sha256, where);
      }
    }
  }
});

test("zarrita's own get() reads NaN there", async () => {
  const { data } = await zarr.get(await open(new CountingStore("unfinished.zarr"), "small"));
  assert(data.slice(0, 24).every(Number.isFinite) && data.slice(24).every(Number.isNaN));
});

test("selections that are none", async () => {
  const array = await open(new CountingStore("arrays3.zarr"), "bfloat16-fast-blocks");
  const model = await openModel(new CountingStore("run.zarr"), core);
  const tensor = await model.tensor("w");
  const wrong = [
    [[zarr.slice(9, 2, -1), null], /a step of at least 1, not \(9, 2, -1\)/],
    [[zarr.slice(0, 5, 0), null], /a step of at least 1/],
    [[zarr.slice(0, 5, 1.5), null], /whole numbers/],
    [[{ start: "0", stop: 5, step: 1 }, null], /whole numbers/],
    [[zarr.slice(1)], /has 1 of 2 dimensions/],
    [[], /has 0 of 2 dimensions/],
    [[null, null, 0], /has 3 of 2 dimensions/],
    [[300000, null], /no index 300000 in dimension 0/],
    [[0, -300000], /no index -300000 in dimension 1/],
    [[0.5, 0], /no index 0.5/],
  ];
  for (const [selection, message] of wrong) {
    await assert.rejects(() => get(array, selection), fails("RangeError", message));
    await assert.rejects(() => tensor.get(selection), fails("RangeError", message));
  }
  await assert.rejects(() => get(array, 5), fails("TypeError", /a selection is/));
});

test("a frame is refused for the size that it claims, before there is memory for it", async () => {
  const chunk = await bytesOf("huge.bin");
  const bytes = { name: "bytes", configuration: { endian: "little" } };
  const huffman = { name: "bf16codecs.huffman", configuration: {} };
  const blocks = { name: "bf16codecs.blocks", configuration: {} };
  const cases = [
    [[blocks], /holds 3221225472 bytes, a chunk of this array has 2400/],
    [[bytes, huffman], /holds 3221225472 bytes, a chunk of this array has 2400/],
    [[bytes, { ...huffman, name: "numcodecs.bf16codecs.huffman" }], /holds 3221225472 bytes/],
    // How large it may be is not known here, but not that large.
    [[bytes, { name: "bf16codecs.rle" }, huffman], /3221225472 bytes, for a chunk of 2400/],
  ];
  for (const [codecs, message] of cases) {
    const array = await open(storeOf({ shape: [40, 30], data_type: "bfloat16", codecs, chunk }), "a");
    const before = core.decoded.bytes;
    await assert.rejects(() => zarr.get(array), fails("CorruptDataError", message));
    await assert.rejects(() => get(array), fails("CorruptDataError", message));
    assert.equal(core.decoded.bytes, before);
  }
});

test("names of codecs as of format 2", async () => {
  const { codecs, chunk } = await frameCase();
  for (const prefix of ["", "numcodecs."]) {
    const named = codecs.map((codec) => ({ ...codec, name: codec.name.replace(/^(?=bf16)/, prefix) }));
    const array = await open(storeOf({ shape: [128, 110], data_type: "float32", codecs: named, chunk }), "a");
    const { data } = await get(array);
    // As every array of make_cases begins.
    assert(Object.is(data[1], -0) && Number.isNaN(data[2]) && data[3] === Infinity, prefix);
  }
});

/** A chunk of an array of make_cases, and its codecs. */
async function frameCase() {
  const folder = `${CASES}/arrays3.zarr/float32-fast-bytes`;
  const { codecs } = JSON.parse(await readFile(`${folder}/zarr.json`, "utf8"));
  return { codecs, chunk: new Uint8Array(await readFile(`${folder}/c/0/0`)) };
}

test("a chunk that is cut off, without a codec, is no chunk that ends in zeros", async () => {
  const codecs = [{ name: "bytes", configuration: { endian: "little" } }];
  const store = storeOf({ shape: [8], data_type: "float32", codecs, chunk: new Uint8Array(16) });
  const array = await open(store, "a");
  await assert.rejects(() => get(array), fails("CorruptDataError", /4 of 8 items/));
  await assert.rejects(() => zarr.get(array), fails("CorruptDataError", /4 of 8 items/));
});

test("what is closed is not used, and closed once", async () => {
  const bytes = new Uint8Array(await readFile(`${CASES}/run.zarr/w/c.0.0.0`));
  const growing = core.openGrowing(bytes.subarray(0, core.headSize(bytes.subarray(0, PREFIX_SIZE))));
  const { offset, size } = growing.version(0);
  const own = bytes.subarray(offset, offset + size);
  const frame = growing.open(0, own);
  const { offset: at, size: length } = frame.block(0);
  growing.close();
  growing.close();
  assert.throws(() => growing.version(0), { name: "Error", message: "the frame is closed" });
  assert.throws(() => growing.open(0, own), { name: "Error", message: "the frame is closed" });
  assert.equal(frame.decode(own.subarray(at, at + length), 0, 1).length, frame.block(0).rawSize);
  frame.close();
  frame.close();
  assert.throws(() => frame.block(0), { name: "Error", message: "the frame is closed" });
  assert.throws(() => frame.decode(own, 0, 1), { name: "Error", message: "the frame is closed" });
});

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

test("after a failure nothing begins, and nothing is left", async () => {
  const begun = [], ended = [];
  const call = async (item) => {
    begun.push(item);
    await pause(item === 2 ? 5 : 30);
    ended.push(item);
    if (item === 2) throw new Error("the first");
    if (item === 5) throw new Error("a later one");
  };
  const items = Array.from({ length: 40 }, (_, i) => i);
  await assert.rejects(() => someAtOnce(items, call), { message: "the first" });
  assert.deepEqual(begun, [0, 1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(ended.sort(), begun);
  await pause(50);
  assert.equal(begun.length, 8);
});

/** A store whose ranges are slow, some of which do something else. */
class SlowStore extends CountingStore {
  open = 0;
  asked = 0;

  constructor(name, instead) {
    super(name);
    this.instead = instead;
  }

  async getRange(...call) {
    this.open += 1;
    const number = this.asked++;
    try {
      await pause(number % 3 === 0 ? 2 : 20);
      return await this.instead(number, () => super.getRange(...call), call[2]);
    } finally {
      this.open -= 1;
    }
  }
}

test("a chunk that is gone, or fails, halfway", async () => {
  const cases = [
    [() => undefined, fails("CorruptDataError", /disappeared/)],
    [() => Promise.reject(new Error("the line is dead")), fails("Error", /the line is dead/)],
    [async (read) => (await read()).subarray(1), fails("TruncatedDataError", /ends at byte/)],
    [async (read) => new Uint8Array((await read()).length + 1), fails("Error", /bytes for a range of/)],
    [async (read) => (await read()).fill(7), fails("CorruptDataError", /./)],
  ];
  const parts = [
    ["bfloat16-arithmetic", [zarr.slice(700, 703), null], [1]],
    ["steps", [3, zarr.slice(300, 302), null], [1, 2]],
  ];
  for (const [path, selection, requests] of parts) {
    for (const [instead, isExpected] of cases) {
      for (const failing of requests) {
        const store = new SlowStore("large.zarr", (number, read) =>
          number === failing ? instead(read) : read());
        const array = await open(store, path);
        await assert.rejects(() => get(array, selection), isExpected, `${path} ${failing} ${instead}`);
        assert.equal(store.open, 0, "a request is left");
      }
    }
  }
  // And the decoder is as sound as before.
  const array = await open(new CountingStore("large.zarr"), "bfloat16-arithmetic");
  assert.equal((await get(array, [zarr.slice(700, 703), null])).data.length, 3 * 1100);
});

test("reads that are given up", async () => {
  const given = AbortSignal.abort(new Error("no longer wanted"));
  const array = await open(new CountingStore("large.zarr"), "bfloat16-arithmetic");
  const isGiven = { message: "no longer wanted" };
  for (const selection of [null, [zarr.slice(700, 703), null], [zarr.slice(4, 4), null]]) {
    await assert.rejects(() => get(array, selection, { signal: given }), isGiven);
  }
  const controller = new AbortController();
  const store = new SlowStore("large.zarr", (number, read, { signal }) => {
    assert.equal(signal, controller.signal);
    if (number === 1) controller.abort(new Error("no longer wanted"));
    return read();
  });
  const slow = await open(store, "steps");
  const read = get(slow, [3, zarr.slice(0, 900, 300), null], { signal: controller.signal });
  await assert.rejects(() => read, isGiven);
  assert(store.asked < 12 && store.open === 0, `${store.asked}`);
});

test("aborted on the way, from a server", async () => {
  const server = await serve(CASES);
  try {
    const array = await open(new zarr.FetchStore(`${server.address}/large.zarr`), "steps");
    const controller = new AbortController();
    const read = get(array, null, { signal: controller.signal });
    controller.abort();
    await assert.rejects(() => read, { name: "AbortError" });
    const model = await openModel(`${server.address}/run.zarr`, core);
    const tensor = await model.tensor("w");
    await assert.rejects(() => tensor.get(null, { signal: AbortSignal.abort() }), { name: "AbortError" });
  } finally {
    await server.close();
  }
});

test("servers that know no ranges: chunks that are large, and small", async () => {
  const server = await serve(CASES, { ranges: false });
  try {
    for (const [store, path] of [["large.zarr", "bfloat16-arithmetic"], ["zeros.zarr", "zeros"]]) {
      const local = await open(new CountingStore(store), path);
      const remote = await open(new zarr.FetchStore(`${server.address}/${store}`), path);
      const rows = [zarr.slice(700, 703), null];
      assert.deepEqual((await get(remote, rows)).data, (await get(local, rows)).data, path);
    }
  } finally {
    await server.close();
  }
});

test("parts of damaged chunks: their numbers, or an error that says so", async () => {
  const cases = [
    ["large.zarr", "bfloat16-arithmetic", "c/0/0", [zarr.slice(300, 302), null]],
    ["large.zarr", "steps", "c/0/0/0", [3, zarr.slice(300, 302), null]],
    ["large.zarr", "bfloat16-zstd", "c/0/0", [zarr.slice(300, 302), null]],
    ["run.zarr", "w", "c.0.0.0", [3, zarr.slice(300, 302), null]],
  ];
  let seed = 1;
  const random = (limit) => (seed = (seed * 48271) % 0x7fffffff) % limit;
  for (const [store, path, name, selection] of cases) {
    const file = `/${path}/${name}`, bytes = await bytesOf(`${store}${file}`);
    const read = async (broken) =>
      bytesOfData(await get(await open(new ReplacedStore(store, file, broken), path), selection));
    const sound = await read(bytes);
    let refused = 0;
    for (let turn = 0; turn < 150; ++turn) {
      const broken = turn % 5 === 4 ? bytes.slice(0, random(bytes.length)) : bytes.slice();
      // Most of them in the head.
      const at = random(turn % 2 ? 64 : bytes.length);
      if (turn % 5 !== 4) broken[at] ^= 1 << random(8);
      try {
        assert.deepEqual(await read(broken), sound, `${path}: a bit of byte ${at}`);
      } catch (error) {
        assert(error instanceof CodecError, `${path}, byte ${at}: ${error.stack}`);
        refused += 1;
      }
    }
    assert(refused > 50, `${path}: ${refused}`);
  }
});
