"use strict";

// A head sorts its column up, then down, then puts the rows back. Rows of all groups are sorted together;
// a missing value comes last both ways, and equal ones keep their order.
const words = new Intl.Collator("en", { numeric: true });
const unsorted = new WeakMap();

function key(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.v;
  if (value === undefined) return cell.textContent;
  return value === "" ? null : Number(value);
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : words.compare(a, b));
}

function sort(head) {
  const table = head.closest("table");
  const order = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
  for (const other of head.parentElement.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", order);
  if (!unsorted.has(table)) {
    unsorted.set(table, [...table.tBodies].map((body) => ({ body, rows: [...body.rows] })));
  }
  const groups = unsorted.get(table);
  table.classList.toggle("sorted", order !== "none");
  for (const { body, rows } of groups) body.replaceChildren(...rows);
  if (order === "none") return;
  const column = head.cellIndex;
  const sign = order === "ascending" ? 1 : -1;
  const keyed = groups
    .flatMap(({ rows }) => rows)
    .filter((row) => !row.classList.contains("group"))
    .map((row) => ({ row, key: key(row, column) }));
  keyed.sort((a, b) => compare(a.key, b.key, sign));
  for (const { body } of groups) body.replaceChildren();
  groups[0].body.replaceChildren(...keyed.map(({ row }) => row));
}

// What a link leads to may be folded.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.scrollIntoView();
}

document.addEventListener("click", (event) => {
  const head = event.target.closest("th[aria-sort]");
  if (head) sort(head);
  const fold = event.target.closest("[data-fold]");
  if (fold) for (const variant of document.querySelectorAll(".variant")) variant.open = fold.dataset.fold === "open";
  const link = event.target.closest("a[href^='#']");
  if (link && link.hash === location.hash) reveal();
});

const jump = document.getElementById("jump");
jump.addEventListener("pointerdown", () => (jump.selectedIndex = 0)); // so that the same choice is a change again
jump.addEventListener("change", () => {
  if (location.hash === `#${jump.value}`) reveal();
  else location.hash = jump.value;
});

addEventListener("hashchange", reveal);
reveal();
