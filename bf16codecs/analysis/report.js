// Sorts a table by the column whose title is clicked, or has Enter pressed on it.
function sortBy(title) {
  const column = [...title.parentNode.children].indexOf(title);
  const body = title.closest("table").tBodies[0];
  const down = title.dataset.down !== "yes";
  title.dataset.down = down ? "yes" : "";
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;  // what lacks one comes last
    const least = x < y ? -1 : x > y ? 1 : 0;
    return down ? -least : least;
  };
  body.append(...[...body.rows].sort(order));
}
for (const title of document.querySelectorAll("th")) {
  title.addEventListener("click", () => sortBy(title));
  title.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(title); });
}
