// One question: what was asked, what came of it, and how.

// `trace` as its file holds it, `row` of the table, `verdict` on its answer (or undefined).
function traceElements(trace, row, verdict) {
  const repeats = rows.filter((other) => other.qid === row.qid);
  return [
    make("h1", { id: "trace-title", tabindex: "-1" }, "Question ", make("bdi", {}, trace.qid),
      row.repeat > 1 || repeats.length > 1 ? `, repeat ${row.repeat}` : ""),
    make("p", { class: "question" }, trace.question),
    badges(trace, row),
    repeats.length > 1 ? repeatsTable(repeats, row) : null,
    trace.traceback ? section("Failure", box(trace.traceback, [], "failure")) : null,
    trace.warnings.length ? section("Warnings", make("ul", {}, trace.warnings.map((w) => make("li", {}, w)))) : null,
    answers(trace, row, verdict),
    roundsElements(trace),
    trace.evidence.length ? evidence(trace) : null,
    timeline(trace),
    details("Usage and times", pairs([...trace.usage, ["seconds", trace.seconds], ["started", trace.started]])),
    trace.source.length ? details("What the imported file says of itself", pairs(trace.source)) : null,
  ].flat().filter(Boolean);
}

function section(title, ...content) {
  return make("section", {}, make("h2", {}, title), content);
}

function details(title, ...content) {
  return make("details", {}, make("summary", {}, title), content);
}

// Names and texts.
function pairs(lines) {
  return table([], lines, "pairs");
}

function table(heads, lines, kind) {
  const head = heads.length
    ? make("thead", {}, make("tr", {}, heads.map((text) => make("th", { scope: "col" }, text))))
    : null;
  const body = lines.map((line) => make("tr", {}, line.map((item, place) =>
    place ? make("td", {}, item) : make("th", { scope: "row" }, item))));
  return make("div", { class: "scroll" }, make("table", { class: kind || null }, head, make("tbody", {}, body)));
}

// Text of others in a box that it cannot leave; ids of judged documents behind `docid` are marked.
function box(text, judged, kind) {
  return make("pre", { class: `text ${kind || ""}` }, marked(text, judged));
}

function marked(text, judged) {
  if (!judged.length) return [text];
  const labels = new Map(judged.map((document) => [document.docid, document.judged]));
  const ids = [...labels.keys()].map((id) => id.replace(/[\\^$.*+?()[\]{}|\/-]/g, "\\$&"));
  const pattern = new RegExp(`(?<=docid["'=:\\s]{1,6})(?:${ids.join("|")})(?![\\w-])`, "gi");
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const judgement = labels.get(match[0]);
    if (!judgement) continue;
    pieces.push(text.slice(end, match.index),
      make("mark", { title: `judged: ${judgement.join(", ")}` }, match[0]));
    end = match.index + match[0].length;
  }
  return [...pieces, text.slice(end)];
}

function badges(trace, row) {
  const recall = TIERS.filter((tier) => row[`recall_${tier}`] !== null)
    .map((tier) => `${tier} ${share(row[`recall_${tier}`])}`);
  const facts = [
    make("span", { class: `badge status-${trace.status}` }, words(trace.status),
      trace.reason ? `: ${words(trace.reason)}` : ""),
    make("span", { class: `badge verdict-${row.verdict || "none"}` }, row.verdict ? VERDICTS[row.verdict] : "not judged"),
    recall.length ? make("span", { class: "badge" }, `recall: ${recall.join(", ")}`) : null,
    make("span", { class: "badge" }, `${count(row.calls, "call")}, ${count(row.tokens, "token")} of tool output`),
    row.dollars === null ? null : make("span", { class: "badge" }, dollars(row.dollars)),
  ];
  return make("p", { class: "badges" }, facts);
}

function repeatsTable(repeats, row) {
  const heads = ["Repeat", "Status", "Verdict", "Recall opened", "Calls", "Tokens", "$"];
  const lines = repeats.map((other) => [
    other === row || other.status === "missing"
      ? make("strong", {}, other.repeat)
      : make("a", { href: address(other) }, `repeat ${other.repeat}`),
    words(other.status), make("span", { class: `verdict-${other.verdict || "none"}` }, VERDICTS[other.verdict]), share(other.recall_opened),
    ...["calls", "tokens"].map((name) => (other[name] === null ? "—" : amount(other[name]))),
    other.dollars === null ? "—" : dollars(other.dollars),
  ]);
  const answers = repeats.map((other) => answersOfRepeats.get(other.name) || "—");
  return section("Repeats of this question", table([...heads, "Answer"],
    lines.map((line, place) => [...line, make("bdi", {}, answers[place])])));
}

function judgedMark(labels) {
  return make("span", { class: `judged ${labels.some((l) => l.startsWith("gold")) ? "gold" : ""}` },
    labels.join(", "));
}

function answers(trace, row, verdict) {
  const given = trace.answer;
  const documents = (rows) => rows.map(([docid, labels]) =>
    make("li", {}, make("bdi", {}, docid), " ", labels.length ? judgedMark(labels) : make("span", { class: "muted" }, "not judged relevant")));
  const cited = documents(given.citations);
  const listed = documents(given.documents);
  const left = make("div", {},
    make("h3", {}, "Given"),
    given.exact || !listed.length ? make("p", { class: "exact" }, given.exact || "(no answer)") : null,
    given.confidence === null ? null : make("p", { class: "muted" }, `Confidence ${given.confidence}%`),
    given.explanation ? box(given.explanation, []) : null,
    cited.length ? [make("h4", {}, "Cites"), make("ul", { class: "plain" }, cited)] : null,
    listed.length ? [make("h4", {}, `Lists ${count(listed.length, "document")}`), make("ol", { class: "listing" }, listed)] : null);
  const right = make("div", {},
    make("h3", {}, "Accepted"),
    trace.accepted.length
      ? make("ul", { class: "plain exact" }, trace.accepted.map((text) => make("li", {}, text)))
      : make("p", { class: "muted" }, "The benchmark has no accepted answer."),
    make("h3", {}, "Verdict"),
    verdictElements(row, verdict));
  return section("Answer and truth", make("div", { class: "beside" }, left, right));
}

function verdictElements(row, verdict) {
  if (!verdict) return make("p", { class: "muted" }, "This answer was not judged.");
  const yes = (value) => (value ? "yes" : "no");
  return [
    make("p", {}, make("strong", { class: `verdict-${row.verdict}` }, VERDICTS[row.verdict]),
      ` by ${verdict.judge}`, verdict.error ? ` (${verdict.error})` : ""),
    verdict.extracted ? make("p", {}, "The judge read the answer as: ", make("bdi", {}, verdict.extracted)) : null,
    verdict.reasoning ? box(verdict.reasoning, []) : null,
    make("p", { class: "muted" }, `By rule: equal ${yes(verdict.exact)}, contained ${yes(verdict.contained)}, F1 ${share(verdict.f1)}`),
  ];
}

function evidence(trace) {
  const lines = trace.evidence.map((document) => [
    make("bdi", {}, document.docid),
    judgedMark(document.judged),
    document.rank ? [`rank ${amount(document.rank[0])}, `, callLink(document.rank[1])] : "—",
    ...TIERS.map((tier) => (document[tier] === null ? make("span", { class: "muted" }, "never")
      : tier === "cited" || !document[tier] ? "yes" : callLink(document[tier]))),
  ]);
  return section("Evidence",
    make("p", { class: "muted" }, "Documents that are judged relevant, and the first call in each tier of exposure."),
    table(["Document", "Judged", "Best rank", ...TIERS.map((t) => t[0].toUpperCase() + t.slice(1))], lines));
}

// No address of its own: the fragment names the question.
function callLink(number) {
  return make("button", { type: "button", class: "link", click: () => goToCall(number) }, `call ${number}`);
}

function goToCall(number) {
  const call = byId(`call-${number}`);
  if (!call) return;
  call.scrollIntoView({ block: "start" });
  call.focus({ preventScroll: true });
}

function timeline(trace) {
  const steps = trace.steps.map((step) => (step.call ? callElement(step, trace) : messageElement(step, trace)));
  return section("What happened", make("ol", { class: "steps" }, steps));
}

const ROLES = { system: "Instructions", user: "To the agent", assistant: "Agent", tool: "Reply that is no call of the search tool" };

function messageElement(step, trace) {
  const role = ROLES[step.role] || step.role;
  const text = step.text ? box(step.text, []) : null;
  const folded = step.role === "system" || (step.role === "user" && step.text === trace.question);
  return make("li", { class: `step message ${step.role === "assistant" ? "agent" : ""}` },
    folded
      ? details(step.role === "user" ? `${role}: the question` : role, text)
      : [make("h3", {}, role), step.reasoning ? details("Reasoning", box(step.reasoning, [])) : null, text],
    spent(step));
}

function callElement(step, trace) {
  const query = step.arguments.find(([name]) => /query/i.test(name));
  const others = step.arguments.filter((pair) => pair !== query);
  const notes = step.notes.filter(([name]) => !/^rewrite(_\d+)?$/.test(name) || !step.rewritten.length);
  return make("li", { class: `step call ${step.error ? "refused" : ""}`, id: `call-${step.call}`, tabindex: "-1" },
    make("h3", {}, make("span", { class: "number" }, `${step.call}`), " ", step.name,
      step.error ? [" ", make("span", { class: "badge status-failed" }, `refused: ${step.error}`)] : null),
    query ? make("p", { class: "query" }, query[1]) : null,
    step.rewritten.map((text) => make("p", { class: "rewritten" }, make("span", { class: "muted" }, "Ranked by: "), text)),
    others.length ? make("dl", { class: "arguments" }, others.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)))) : null,
    judgedOfCall(step),
    make("details", { class: "page" }, make("summary", {}, pageTitle(step)), box(step.output, trace.evidence)),
    notes.length ? details("Notes of the pipeline", pairs(notes)) : null,
    spent(step));
}

function pageTitle(step) {
  const size = `Page as the agent saw it (${count(step.tokens, "token")}`;
  return `${size}${step.shown.length ? `, ${count(step.shown.length, "unit")} shown` : ""})`;
}

function judgedOfCall(step) {
  if (!step.judged.length) {
    const searched = step.ranked || step.shown.length;
    return searched ? make("p", { class: "muted" }, "No judged evidence here.") : null;
  }
  return make("ul", { class: "found" }, step.judged.map((document) => {
    const facts = [document.rank ? `rank ${amount(document.rank)} of ${amount(step.ranked)}` : "",
      document.shown ? "shown" : "not shown",
      document.first.length ? `first time ${document.first.join(" and ")}` : ""];
    return make("li", { class: document.shown ? "" : "unseen" }, judgedMark(document.judged), " ",
      make("bdi", {}, document.docid), ` ${facts.filter(Boolean).join(", ")}`);
  }));
}

function spent(step) {
  const facts = [];
  if (step.call) facts.push(`${amount(step.tokens_so_far)} tokens of tool output so far`);
  if (step.model) {
    const [input, cached, output] = step.model;
    facts.push(`model so far ${amount(input)} in${cached ? ` (${amount(cached)} cached)` : ""}, ${amount(output)} out`);
  }
  if (step.dollars !== undefined) facts.push(`≈ ${dollars(step.dollars)} so far`);
  if (step.call) facts.push(`took ${step.seconds} s`);
  return facts.length ? make("p", { class: "muted spent" }, facts.join(" · ")) : null;
}
