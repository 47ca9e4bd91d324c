// Sorts a table by the column whose title is pressed: down first, then up.
function sortBy(title) {
  const titles = [...title.parentNode.children];
  const column = titles.indexOf(title);
  const body = title.closest("table").tBodies[0];
  const down = title.getAttribute("aria-sort") !== "descending";
  for (const other of titles) other.removeAttribute("aria-sort");
  title.setAttribute("aria-sort", down ? "descending" : "ascending");
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
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
