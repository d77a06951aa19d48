// Each cell knows the name of its column: on a phone, docs/book.css shows a row as a block, and the names in it.
for (const table of document.querySelectorAll("main table")) {
  const columns = [...table.querySelectorAll("th")].map((it) => it.textContent);
  for (const { cells } of table.tBodies[0]?.rows ?? []) {
    [...cells].forEach((cell, index) => (cell.dataset.column = columns[index]));
  }
}
