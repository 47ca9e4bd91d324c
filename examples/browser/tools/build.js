// Builds dist/: the WebAssembly modules, the page, and stores to look at.
//
//   npm run build [-- modules page samples kernels]
//
// The last, which is not built unless it is named, is the program of tests/native that compares the
// kernels with the scalar ones; `npm run kernels` runs it.
//
// It needs CMake, Ninja and, of Python's packages, ziglang and bf16codecs; PYTHON names an interpreter
// that has the latter.

import { execFileSync } from "node:child_process";
import { copyFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = fileURLToPath(new URL("..", import.meta.url));
const DIST = `${HERE}dist`;

function run(program, ...args) {
  execFileSync(program, args, { stdio: ["ignore", "inherit", "inherit"] });
}

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
  await copyFile(`${compile("kernels_test", true)}/native/kernels_test.wasm`, `${HERE}build/kernels_test.wasm`);
}

async function page() {
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
  run(process.env.PYTHON ?? "python3", `${HERE}tools/samples.py`, `${DIST}/samples`);
}

const steps = { modules, page, samples, kernels };
const wanted = process.argv.slice(2);
await mkdir(DIST, { recursive: true });
for (const name of wanted.length ? wanted : ["modules", "page", "samples"]) {
  console.log(`build: ${name}`);
  await steps[name]();
}
