// Numbers of bits, and errors that keep their names.

import assert from "node:assert/strict";
import { test } from "node:test";
import { build } from "esbuild";
import * as package_ from "../src/index.js";

const { complexParts, roundToBFloat16, toFloat32 } = package_;

test("data types that are not known", () => {
  const isNamed = (name) => ({
    name: "TypeError",
    message:
      "the data type is one of bfloat16, float16, float8_e4m3fn, float8_e5m2, bool, int8, int16," +
      ` int32, int64, uint8, uint16, uint32, uint64, float32, float64, not ${name}`,
  });
  for (const name of ["bf16", "BF16", "float8", "", "toString", "constructor", undefined]) {
    assert.throws(() => toFloat32(new Uint16Array(3), name), isNamed(name));
    assert.throws(() => toFloat32(new Float32Array(3), name), isNamed(name));
  }
  assert.throws(() => toFloat32(new BigUint64Array(1), "complex64"), /see complexParts/);
});

test("numbers of lists, and of single items", () => {
  const cases = [
    [[0x3fc0], "bfloat16", 1.5], [[0x3e00], "float16", 1.5], [[0x3c], "float8_e4m3fn", 1.5],
    [[0x3e], "float8_e5m2", 1.5], [[7n], "int64", 7], [[true], "bool", 1], [[1.5], "float64", 1.5],
  ];
  for (const [data, dtype, expected] of cases) {
    assert.deepEqual([...toFloat32(data, dtype)], [expected], dtype);
  }
});

test("views that begin anywhere in their buffer", () => {
  const floats = Float32Array.of(9, 1.5, -2, 0.25);
  const one = roundToBFloat16(floats.subarray(1, 3));
  assert.deepEqual([...one], [0x3fc0, 0xc000]);
  const bits = new BigUint64Array(3);
  new Float32Array(bits.buffer).set([9, 9, 1.5, -2, 0.25, 4]);
  assert.deepEqual([...complexParts(bits.subarray(1))], [1.5, -2, 0.25, 4]);
  // Bytes at odd places are no such arrays, and none is made of them by mistake.
  const bytes = new Uint8Array(17).subarray(1);
  assert.throws(() => complexParts(bytes), { name: "TypeError", message: /are a BigUint64Array/ });
  assert.throws(() => roundToBFloat16(bytes), { name: "TypeError", message: /is a Float32Array/ });
  assert.throws(() => roundToBFloat16(new Float64Array(2)), { name: "TypeError" });
});

test("errors have their names after a bundler has been at work", async () => {
  const { outputFiles } = await build({
    entryPoints: [new URL("../src/errors.js", import.meta.url).pathname],
    bundle: true, minify: true, format: "esm", write: false,
  });
  const minified = await import(`data:text/javascript,${encodeURIComponent(outputFiles[0].text)}`);
  const names = Object.keys(package_).filter((name) => name.endsWith("Error"));
  assert.equal(names.length, 8);
  for (const name of names) {
    assert.equal(new package_[name]("x").name, name);
    assert.equal(new minified[name]("x").name, name);
    assert(new minified[name]("x") instanceof minified.CodecError);
  }
});
