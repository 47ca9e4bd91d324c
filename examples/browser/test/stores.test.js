// What Python writes is read with the bits that NumPy has.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as zarr from "zarrita";
import { get, openModel, registerCodecs, toFloat32, withBF16 } from "../src/index.js";
import { stridesOf } from "../src/codecs.js";
import { bothCores, bytesOf, CountingStore, jsonOf } from "./support.js";

const SELECTION = (part) => (Array.isArray(part) ? zarr.slice(...part) : part);

const ITEMS = {
  int8: Int8Array, int16: Int16Array, int32: Int32Array, uint32: Uint32Array,
  float32: Float32Array, float64: Float64Array,
};
const BITS = { 1: Uint8Array, 2: Uint16Array };

/** The bytes of what was read: a chunk, or one item of so many bytes. */
function bytesOfFound(found, dtype, size) {
  if (found?.data === undefined) {
    const Type = ITEMS[dtype] ?? BITS[size];
    const item = typeof found === "bigint" ? BigInt64Array.of(found) : Type.of(Number(found));
    return new Uint8Array(item.buffer);
  }
  const { data, shape, stride } = found;
  if (dtype === "bool") return Uint8Array.from(data, Number);
  const inOrder = data.slice();
  // zarrita gives arrays of order "F" in that order.
  const isInOrder = stride.every((length, axis) => length === stridesOf(shape)[axis]);
  const copy = (axis, from, to) => {
    if (axis === shape.length) return (inOrder[to] = data[from]);
    for (let i = 0; i < shape[axis]; ++i) copy(axis + 1, from + i * stride[axis], to * shape[axis] + i);
  };
  if (!isInOrder) copy(0, 0, 0);
  return new Uint8Array(inOrder.buffer, inOrder.byteOffset, inOrder.byteLength);
}

const cases = await jsonOf("cases.json");

for (const core of await bothCores()) {
  test(`selections of arrays and tensors, ${core.isa}`, async () => {
    registerCodecs(zarr.registry, core);
    const opened = new Map();
    const open = async (name, how) => {
      if (!opened.has(name)) opened.set(name, await how());
      return opened.get(name);
    };
    for (const { store, array, tensor, step, selection, expected, dtype, shape } of cases) {
      const where = `${store} ${array ?? tensor} ${step ?? ""} ${JSON.stringify(selection)}`;
      const wanted = selection.map(SELECTION);
      const bytes = await bytesOf(expected);
      const check = (found, how) => {
        const name = `${how}: ${where}`;
        if (found?.data !== undefined) assert.deepEqual(found.shape, shape, name);
        assert.deepEqual(bytesOfFound(found, dtype, bytes.length), bytes, name);
      };
      if (array === undefined) {
        const model = await open(store, () => openModel(new CountingStore(store), core));
        check(await (await model.tensor(tensor, { step })).get(wanted), "model");
        continue;
      }
      const root = await open(store, () => zarr.root(withBF16(new CountingStore(store), core)));
      const found = await zarr.open(root.resolve(array), { kind: "array" });
      check(await get(found, wanted), "parts");
      // Which stumbles over arrays without items.
      if (!found.shape.includes(0)) check(await zarr.get(found, wanted), "zarrita");
    }
  });
}

test("values of data types that JavaScript lacks", async () => {
  const [core] = await bothCores();
  registerCodecs(zarr.registry, core);
  const root = zarr.root(withBF16(new CountingStore("arrays3.zarr"), core));
  for (const dtype of ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]) {
    const array = await zarr.open(root.resolve(`${dtype}-fast-blocks`), { kind: "array" });
    const { data } = await get(array, [0, zarr.slice(5)]);
    const values = toFloat32(data, dtype);
    assert(Object.is(values[0], 0) && Object.is(values[1], -0) && Number.isNaN(values[2]), dtype);
    // float8_e4m3fn has no infinity.
    const infinity = dtype === "float8_e4m3fn" ? NaN : Infinity;
    assert.deepEqual([...values.slice(3)], [infinity, -infinity], dtype);
  }
});
