// What a build needs that npm does not bring, looked for before anything is built.

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";

/** An interpreter that has bf16codecs. */
export const PYTHON = process.env.PYTHON ?? "python3";

export function run(program, ...args) {
  execFileSync(program, args, { stdio: ["ignore", "inherit", "inherit"] });
}

function runs(program, ...args) {
  try {
    execFileSync(program, args, { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}

const NEEDS = {
  python: {
    isThere: () => runs(PYTHON, "--version"),
    advice: `Python, as "${PYTHON}": install it, or name it in the variable PYTHON`,
  },
  bf16codecs: {
    isThere: () => runs(PYTHON, "-c", "import bf16codecs.convert"),
    advice: `bf16codecs, of "${PYTHON}": pip install ../..`,
  },
  packages: {
    isThere: () => existsSync(new URL("../node_modules/esbuild", import.meta.url)),
    advice: "packages of npm's: npm ci",
  },
  cmake: { isThere: () => runs("cmake", "--version"), advice: "CMake: pip install cmake" },
  ninja: { isThere: () => runs("ninja", "--version"), advice: "Ninja: pip install ninja" },
  zig: {
    isThere: () => runs("zig", "version") || runs("python-zig", "version"),
    advice: "Zig, as zig or python-zig: pip install ziglang",
  },
};

/** Of each part, what it needs. */
const NEEDED = {
  modules: ["cmake", "ninja", "zig"],
  kernels: ["cmake", "ninja", "zig"],
  page: ["packages"],
  samples: ["python", "bf16codecs"],
};

/**
 * What is missing for some parts, and how one gets it; an empty text if nothing is.
 *
 * @param {string[]} parts
 */
export function missingFor(parts) {
  const names = new Set(parts.flatMap((part) => NEEDED[part]));
  const missing = [...names].filter((name) => !NEEDS[name].isThere());
  if (missing.length === 0) return "";
  const lines = missing.map((name) => `  ${NEEDS[name].advice}`);
  return ["The build needs what is not there:", ...lines].join("\n");
}
