// A static file server, with ranges, for the tests and to look at the page:
//
//   node tools/serve.js FOLDER [PORT]

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const TYPES = {
  ".css": "text/css", ".html": "text/html; charset=utf-8", ".js": "text/javascript",
  ".json": "application/json", ".wasm": "application/wasm",
};

/** The bytes that a request's Range header asks for; undefined if it has none, null if there are none. */
function rangeOf(header, size) {
  const [, from, to] = /^bytes=(\d*)-(\d*)$/.exec(header ?? "") ?? [];
  if (from === undefined || from + to === "") return undefined;
  const start = from === "" ? Math.max(0, size - Number(to)) : Number(from);
  const end = from === "" || to === "" ? size - 1 : Math.min(Number(to), size - 1);
  return start <= end ? { start, end } : null;
}

/**
 * Serve a folder on this machine.
 *
 * @param {string} folder
 * @param {object} [options]
 * @param {number} [options.port]
 * @param {boolean} [options.ranges] Whether ranges are known.
 * @param {boolean} [options.cors] Whether pages of other sites may read.
 */
export async function serve(folder, { port = 0, ranges = true, cors = true } = {}) {
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const path = join(folder, normalize(decodeURIComponent(pathname)));
    const file = pathname.endsWith("/") ? join(path, "index.html") : path;
    const found = await stat(file).catch(() => null);
    const headers = cors
      ? { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Range" }
      : {};
    if (request.method === "OPTIONS") return response.writeHead(204, headers).end();
    if (!found?.isFile()) return response.writeHead(404, headers).end();
    headers["Content-Type"] = TYPES[extname(file)] ?? "application/octet-stream";
    const range = ranges ? rangeOf(request.headers.range, found.size) : undefined;
    if (range === null) return response.writeHead(416, headers).end();
    const { start, end } = range ?? { start: 0, end: found.size - 1 };
    headers["Content-Length"] = end - start + 1;
    if (range) headers["Content-Range"] = `bytes ${start}-${end}/${found.size}`;
    response.writeHead(range ? 206 : 200, headers);
    if (request.method === "HEAD" || found.size === 0) return response.end();
    return createReadStream(file, { start, end }).pipe(response);
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  return {
    address: `http://127.0.0.1:${server.address().port}`,
    close: () => new Promise((resolve) => server.close(resolve).closeAllConnections()),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder = ".", port = "8000"] = process.argv.slice(2);
  const { address } = await serve(folder, { port: Number(port) });
  console.log(`${folder} is at ${address}/`);
}
