// Builds dist/: the WebAssembly modules, the page, and stores to look at.
//
//   npm run build [-- modules page samples kernels]
//
// The last, which is not built unless it is named, is the program of tests/native that compares the
// kernels with the scalar ones; `npm run kernels` runs it.
//
// The modules need CMake, Ninja and Zig, the samples Python's package bf16codecs: see ./needs.js.

import { copyFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { missingFor, PYTHON, run } from "./needs.js";

const HERE = fileURLToPath(new URL("..", import.meta.url));
const DIST = `${HERE}dist`;

/** Builds a target with vectors or without, and returns where. */
function compile(target, vectors) {
  const folder = `${HERE}build/${vectors ? "simd128" : "scalar"}`;
  run(
    "cmake", "-S", `${HERE}wasm`, "-B", folder, "-G", "Ninja",
    `-DCMAKE_TOOLCHAIN_FILE=${HERE}wasm/zig.cmake`, `-DWASM_SIMD=${vectors ? "ON" : "OFF"}`,
  );
  run("cmake", "--build", folder, "--target", target);
  return folder;
}

async function modules() {
  for (const vectors of [true, false]) {
    const name = vectors ? "bf16codecs.wasm" : "bf16codecs-scalar.wasm";
    await copyFile(`${compile("bf16codecs_wasm", vectors)}/${name}`, `${DIST}/${name}`);
  }
}

async function kernels() {
  const folder = compile("kernels_test", true);
  await copyFile(`${folder}/native/kernels_test.wasm`, `${HERE}build/kernels_test.wasm`);
}

async function page() {
  const { build } = await import("esbuild");
  await build({
    entryPoints: [`${HERE}page/page.js`],
    outdir: DIST,
    bundle: true,
    splitting: true, // zarrita loads codecs when they are needed
    format: "esm",
    target: "es2022",
    external: ["node:*"],
    minify: true,
    logLevel: "warning",
  });
  for (const name of ["index.html", "page.css"]) {
    await copyFile(`${HERE}page/${name}`, `${DIST}/${name}`);
  }
}

function samples() {
  run(PYTHON, `${HERE}tools/samples.py`, `${DIST}/samples`);
}

const steps = { modules, page, samples, kernels };

/** What is wrong with what was asked for; an empty text if nothing is. */
function whyNot(wanted) {
  const unknown = wanted.filter((name) => !Object.hasOwn(steps, name));
  const known = Object.keys(steps).join(", ");
  if (unknown.length > 0) return `there is no ${unknown[0]}: name some of ${known}`;
  return missingFor(wanted);
}

async function main(wanted) {
  await mkdir(DIST, { recursive: true });
  for (const name of wanted) {
    console.log(`build: ${name}${name === "modules" ? " (the first time, some ten minutes)" : ""}`);
    await steps[name]();
  }
}

const named = process.argv.slice(2);
const wanted = named.length > 0 ? named : ["modules", "page", "samples"];
const why = whyNot(wanted);
if (why !== "") {
  console.error(why);
  process.exitCode = 1;
} else {
  await main(wanted);
}
