# The browser example: the decoder in WebAssembly, in Node and in Chromium, against Python's verdicts.

can_build_browser_example() {
  if ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then
    note "NO Node of at least 20: left out"
  elif ! npm view zarrita version >/dev/null 2>&1; then
    note "NO registry of npm: left out"
  elif ! quietly browser-pip.log "$scratch/wasm/bin/pip" install ziglang; then
    note "NO ziglang: left out"
  else
    return 0
  fi
  return 1
}

# What npm installs and builds is in a copy of the checkout.
browser_example() {
  local tree=$scratch/browser
  make_bare_venv wasm "$python"
  can_build_browser_example || return 0
  mkdir -p "$tree/examples"
  cp -r bf16codecs tests docs "$tree"
  cp -r examples/browser "$tree/examples"
  (
    without_ccache
    export PATH=$bin:$scratch/wasm/bin:$PATH PYTHON=$bin/python
    cd "$tree/examples/browser"
    quietly browser-npm.log npm ci --no-audit --no-fund
    npm run --silent types
    quietly browser-build.log npm run build -- modules page samples kernels
    test_kernels npm run --silent kernels
    has_browser || rm test/page.test.js
    npm test --silent
  )
}
