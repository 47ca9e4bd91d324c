// Counts requests and delayed work in progress, in `data-waiting` of the page.

let count = 0;

function mark(by) {
  count += by;
  document.body.dataset.waiting = count;
}

// Wait for a promise, and count it meanwhile.
export async function during(promise) {
  mark(1);
  try {
    return await promise;
  } finally {
    mark(-1);
  }
}

// Return a function that does something after a pause without further calls; its `.cancel` drops it.
export function paused(milliseconds, work) {
  let timer = null;
  let last = null;
  const run = () => {
    timer = null;
    try {
      work(...last);
    } finally {
      mark(-1);
    }
  };
  const soon = (...given) => {
    soon.cancel();
    last = given;
    mark(1);
    timer = setTimeout(run, milliseconds);
  };
  soon.cancel = () => {
    if (timer === null) return;
    clearTimeout(timer);
    timer = null;
    mark(-1);
  };
  return soon;
}
