// Runs the program that compares the kernels with the scalar ones: npm run kernels

import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const program = new URL("../build/kernels_test.wasm", import.meta.url);
const wasi = new WASI({ version: "preview1" });
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
