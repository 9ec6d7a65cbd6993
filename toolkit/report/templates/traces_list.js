// The table of all questions, its filters and its order.

const VERDICTS = { right: "✓ right", wrong: "✗ wrong", undecided: "? no verdict", "": "—" };
const TIERS = ["surfaced", "previewed", "opened", "cited"];

let rows = []; // one a trajectory: its values by column, and its `element`
let shown = []; // those that pass the filters, in the order of the table
let order = { column: "", descending: false };

const numeric = (title, show) => ({ title, numeric: true, show });
const HEADS = {
  question: { title: "Question" },
  status: { title: "Status" },
  verdict: { title: "Verdict" },
  ...Object.fromEntries(TIERS.map((tier) => [`recall_${tier}`, numeric(`recall ${tier}`, share)])),
  calls: numeric("calls", amount),
  tokens: numeric("tool tokens", amount),
  dollars: numeric("$", dollars),
  seconds: numeric("seconds", (value) => value.toFixed(value < 10 ? 1 : 0)),
};

function takeIndex(index) {
  rows = index.rows.map((row) =>
    Object.fromEntries(index.columns.map((column, place) => [column, row[place]])),
  );
  document.title = `Traces of ${index.run}`;
  byId("run").textContent = `Traces of ${index.run}`;
  const questions = new Set(rows.map((row) => row.qid)).size;
  const repeats = new Set(rows.map((row) => row.repeat)).size;
  byId("subtitle").textContent =
    `${index.benchmark}, ${count(questions, "question")}` +
    (repeats > 1 ? `, each asked ${repeats} times` : "");
  const columns = Object.keys(HEADS).filter((c) => rows.some((row) => row[c] !== null));
  byId("table").tHead.replaceChildren(make("tr", {}, columns.map(headCell)));
  rows.forEach((row, place) => {
    row.place = place;
    row.sought = `${row.qid} ${row.question}`.toLowerCase();
    row.element = tableRow(row, columns, repeats > 1);
  });
  choices("f-status", [...new Set(rows.map((row) => row.status))].map((s) => [s, words(s)]));
  choices("f-verdict", Object.entries(VERDICTS).filter(([v]) => rows.some((r) => r.verdict === v)));
  choices("f-tier", TIERS.map((tier) => [tier, tier]), "opened");
  refresh();
}

const words = (name) => name.replaceAll("_", " ");

function choices(id, options, chosen) {
  const all = chosen ? [] : [make("option", { value: "*" }, "any")];
  const made = options.map(([value, text]) =>
    make("option", { value, selected: value === chosen }, text),
  );
  byId(id).replaceChildren(...all, ...made);
}

function headCell(column) {
  const { title, numeric } = HEADS[column];
  const sort = () => {
    const again = order.column === column;
    order = { column, descending: again ? !order.descending : Boolean(numeric) };
    refresh();
  };
  const button = make("button", { type: "button", click: sort }, title);
  return make("th", { scope: "col", class: cellClass(column), "data-column": column }, button);
}

const cellClass = (column) => `${HEADS[column].numeric ? "num " : ""}c-${column}`;

function tableRow(row, columns, repeats) {
  return make("tr", {}, columns.map((column) => {
    if (column === "question") return questionCell(row, repeats);
    return make("td", { class: cellClass(column) }, cellContent(row, column));
  }));
}

function questionCell(row, repeats) {
  const label = repeats ? `${row.qid} · repeat ${row.repeat}` : row.qid;
  const id = row.status === "missing"
    ? make("span", {}, make("bdi", {}, label))
    : make("a", { href: address(row) }, make("bdi", {}, label));
  return make("th", { scope: "row", class: "c-question" }, id,
    make("span", { class: "snippet" }, row.question));
}

function cellContent(row, column) {
  const value = row[column];
  if (column === "verdict") {
    const odd = row.status === "completed" ? null : make("small", {}, words(row.status));
    return [make("span", { class: `verdict-${value || "none"}` }, VERDICTS[value]), odd];
  }
  if (column === "status") return make("span", { class: `status-${value}` }, words(value));
  return value === null ? "—" : HEADS[column].show(value);
}

const address = (row) => `#${encodeURIComponent(row.name)}`;

function passes(row) {
  const text = byId("f-text").value.trim().toLowerCase();
  const [status, verdict, recall] = ["f-status", "f-verdict", "f-recall"].map((id) => byId(id).value);
  const value = row[`recall_${byId("f-tier").value}`];
  const within = {
    "": true,
    none: value === 0,
    part: value !== null && value > 0 && value < 1,
    all: value === 1,
  };
  return (
    (status === "*" || row.status === status) &&
    (verdict === "*" || row.verdict === verdict) &&
    within[recall] &&
    row.sought.includes(text)
  );
}

function compared(a, b) {
  const [x, y] = [a[order.column], b[order.column]];
  if (x === y) return a.place - b.place;
  if (x === null || y === null) return x === null ? 1 : -1; // unknown values last
  return (x < y ? -1 : 1) * (order.descending ? -1 : 1);
}

function refresh() {
  shown = rows.filter(passes);
  if (order.column) shown.sort(compared);
  byId("table").tBodies[0].replaceChildren(...shown.map((row) => row.element));
  byId("table").className = `tier-${byId("f-tier").value}`;
  for (const head of byId("table").tHead.rows[0].cells) {
    const sorted = head.dataset.column === order.column;
    const direction = order.descending ? "descending" : "ascending";
    head.setAttribute("aria-sort", sorted ? direction : "none");
  }
  const right = shown.filter((row) => row.verdict === "right").length;
  const judged = shown.filter((row) => row.verdict).length;
  byId("count").textContent =
    `${amount(shown.length)} of ${count(rows.length, "trace")}` +
    (judged ? `, ${amount(right)} of ${amount(judged)} judged answers right` : "");
}
