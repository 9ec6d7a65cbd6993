{#- The script of the tables of questions: it hides the rows that do not match the fields above the
table, and sorts the rows by the column that is chosen or whose title is clicked; unknown values come
last. The address `index.html#not_opened` chooses the questions with that label of `LABELS`. -#}
const rows = [...document.querySelectorAll("tbody tr")];
const fields = [...document.querySelectorAll("[data-filters]")];
const [text, sort, down] = ["text", "sort", "descending"].map((id) => document.getElementById(id));
const shown = (row, title) => {
  const cell = title ? row.querySelector(`[data-column="${title}"]`) : row.cells[0];
  return cell?.firstChild?.textContent ?? "—";
};
const refresh = () => {
  for (const row of rows) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(text.value.toLowerCase())
      || fields.some((one) => one.value && shown(row, one.dataset.filters) !== one.value);
  }
};
const order = () => {
  const sign = down.checked ? -1 : 1;
  const keys = new Map(rows.map((row) => [row, shown(row, sort.value).replaceAll(",", "")]));
  const compared = (a, b) => (a === "—") - (b === "—")
    || sign * (a - b || a.localeCompare(b, "en", { numeric: true }));
  rows.sort((a, b) => compared(keys.get(a), keys.get(b)));
  document.querySelector("tbody").append(...rows);
};
const choose = () => {
  const label = fields.find((one) => one.dataset.filters === "Label");
  if (label) label.value = location.hash.slice(1).replaceAll("_", " ");
  refresh();
};
[text, ...fields].forEach((field) => field.addEventListener("input", refresh));
[sort, down].forEach((field) => field.addEventListener("input", order));
document.querySelectorAll("thead th").forEach((head, place) => {
  head.addEventListener("click", () => {
    down.checked = sort.selectedIndex === place && !down.checked;
    sort.selectedIndex = place;
    order();
  });
});
addEventListener("hashchange", choose);
if (location.hash) choose();
