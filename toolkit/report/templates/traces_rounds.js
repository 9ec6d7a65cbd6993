// What a navigator did: its rounds, its checklist, and who meets what, with the passages that say so.

const VERDICT_SIGNS = { satisfied: "✓", not: "✗", unknown: "?" };

function roundsElements(trace) {
  if (!trace.rounds.length && !trace.matrix.documents.length) return null;
  return [trace.rounds.length ? section("Rounds", trace.rounds.map(roundElement)) : null,
    trace.matrix.documents.length ? section("Documents and requirements", matrixElements(trace.matrix)) : null];
}

function roundElement(round) {
  const queries = round.queries.map((query) => {
    const facts = [query.operator ? words(query.operator) : "",
      query.candidates === null ? "" : count(query.candidates, "candidate"),
      query.new === null ? "" : `${amount(query.new)} new`,
      query.error ? `failed: ${words(query.error)}` : ""].filter(Boolean);
    return make("li", { class: query.error ? "unseen" : null }, make("bdi", {}, query.text),
      facts.length ? make("span", { class: "muted" }, ` ${facts.join(", ")}`) : null,
      query.call ? [" ", callLink(query.call)] : null,
      query.reason ? make("div", { class: "muted" }, make("bdi", {}, query.reason)) : null);
  });
  return make("div", { class: "round" },
    make("h3", {}, `Round ${round.number}`),
    round.note ? make("p", { class: "muted" }, make("bdi", {}, round.note)) : null,
    queries.length ? [make("h4", {}, "Strategy"), make("ul", { class: "queries" }, queries)] : null,
    round.checklist.length ? [make("h4", {}, "Checklist"), checklistElement(round.checklist)] : null,
    round.facts.length ? pairs(round.facts) : null);
}

function checklistElement(checklist) {
  return make("ol", { class: "checklist" }, checklist.map((text) => make("li", {}, make("bdi", {}, text))));
}

// A row for each document, a column for each requirement; a cell opens the evidence below its row.
function matrixElements(matrix) {
  const overall = matrix.documents.some((document) => document.overall !== null);
  const heads = ["Document", "Listed", "Score", ...(overall ? ["Overall"] : [])].map((text, place) =>
    make("th", { scope: "col", class: place ? `num ${text.toLowerCase()}` : null }, text));
  const numbers = matrix.checklist.map((requirement, place) =>
    make("th", { scope: "col", class: "cell", title: requirement }, `${place + 1}`));
  const texts = new Map(matrix.texts);
  const body = make("tbody", {});
  matrix.documents.forEach((document) => body.append(matrixRow(document, matrix, texts, overall, heads.length)));
  const wide = make("table", { class: "matrix" },
    make("thead", {}, make("tr", {}, heads, numbers)), body);
  return [
    make("p", { class: "muted" }, "Columns are the requirements by number; ",
      Object.entries(VERDICT_SIGNS).map(([word, sign]) => `${sign} ${word}`).join(", "),
      ", — without a score. A cell opens the passage that it stands on. A document’s score is that of the round that scored it",
      overall ? "; overall is the scorer’s probability that it is relevant." : "."),
    checklistElement(matrix.checklist),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Documents and requirements" }, wide),
  ];
}

function matrixRow(document, matrix, texts, overall, before) {
  const number = (name, value) => make("td", { class: `num ${name}` }, share(value));
  const row = make("tr", { class: document.listed ? "" : "unseen" },
    make("th", { scope: "row" }, make("bdi", {}, document.docid),
      document.judged.length ? [" ", judgedMark(document.judged)] : null,
      document.title ? make("span", { class: "snippet" }, document.title) : null),
    make("td", { class: "num" }, document.listed ? `${document.listed}` : "—"),
    number("score", document.score), overall ? number("overall", document.overall) : null,
    document.cells.map((cell, place) => make("td", { class: "cell" },
      cell ? matrixCell(cell, matrix.checklist[place], texts, () => row, before + document.cells.length) : "—")));
  return row;
}

function matrixCell(cell, requirement, texts, rowOf, width) {
  const sign = VERDICT_SIGNS[cell.verdict] || "·";
  const button = make("button", { type: "button", class: `cell-${cell.verdict}`, "aria-expanded": "false",
    "aria-label": `${cell.verdict} ${share(cell.score)}: ${requirement || ""}` }, `${sign} ${share(cell.score)}`);
  let shown = null;
  button.addEventListener("click", () => {
    if (shown) shown.remove();
    else {
      shown = make("tr", { class: "opened" }, make("td", { colspan: `${width}` }, cellEvidence(cell, requirement, texts)));
      rowOf().after(shown);
    }
    if (!shown.isConnected) shown = null;
    button.setAttribute("aria-expanded", shown ? "true" : "false");
  });
  return button;
}

function cellEvidence(cell, requirement, texts) {
  return make("div", { class: "evidence" },
    make("p", {}, make("strong", { class: `cell-${cell.verdict}` }, `${VERDICT_SIGNS[cell.verdict] || ""} ${words(cell.verdict)}, ${share(cell.score)}`),
      requirement ? [" ", make("bdi", {}, requirement)] : null),
    cell.rationale ? make("p", { class: "muted" }, make("bdi", {}, cell.rationale)) : null,
    cell.passage ? make("p", { class: "muted" }, "Passage ", make("bdi", {}, cell.passage)) : make("p", { class: "muted" }, "No passage."),
    texts.get(cell.passage) ? box(texts.get(cell.passage), []) : null);
}
