"""Where the commands of the golden gate run, and how a result is compared with its golden file. The
commands use a server that plays a language model, and tiny checkpoints.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import golden_store as store
import pytest
from golden_store import Places, cells, plain, record, runs_below, without_scores
from support.commands import run_entry
from support.llm_server import Peer, Raw, Say

WRITE = os.environ.get("SOUNDINGLINE_GOLDEN") == "write"
WORLDS = {"world": store.DATA / "world", "sets": store.DATA / "sets"}
CHECKPOINTS = ("t5", "doc2query", "splade", "dense", "colbert", "cross_encoder", "rankllama")


class Ended(NamedTuple):
    """What a command leaves in this process."""

    code: int
    out: str
    err: str


def run_here(name, *arguments):
    """Run a command to its end in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_entry(name, *arguments)
    return Ended(code, out.getvalue(), err.getvalue())


def ranked(*overrides, queries):
    """The frame that the pipeline of these overrides gives for queries."""
    import pandas as pd

    from soundingline.experiments import Experiment

    experiment = Experiment.compose(*overrides)
    topics = [{"qid": row["_id"], "query": row["text"]} for row in queries]
    return experiment.pipeline().transform(pd.DataFrame(topics))


class Workplace:
    """Where commands are run. All workers share their indexes and checkpoints; each has run folders
    and caches of its own."""

    def __init__(self, folder: Path, shared: Path, server: Peer) -> None:
        self.folder, self.shared, self.server = folder, shared, server
        self.reset()

    def reset(self):
        self.server.reset()
        self.server.default = reply

    def arguments(self, name, text):
        """The words of a command line, with places filled in; `name` is that of its run. Each run
        has caches of its own: no result may depend on what ran before."""
        values = {**{key: str(path) for key, path in WORLDS.items()}, "server": self.address}
        values["root"] = self.address.removesuffix("/v1")
        for checkpoint in CHECKPOINTS:
            if f"{{{checkpoint}}}" in text:
                values[checkpoint] = str(self.checkpoint(checkpoint))
        own = [f"name={name}"] if name else []
        caches = [f"paths.caches=caches/{name}"] if name and "paths.caches=" not in text else []
        return [
            *text.format(**values).split(),
            *own,
            *caches,
            f"paths.indexes={self.shared}/indexes",
        ]

    @property
    def address(self):
        return self.server.openai_url

    @cached_property
    def places(self):
        return Places(
            {
                str(self.shared): "<shared>",
                str(self.folder): "<work>",
                str(store.DATA): "<data>",
                self.address: "<server>",
            }
        )

    def run(self, command, name, text, code=0):
        """Run a command to its end, which must be the one expected."""
        ended = run_here(command, *self.arguments(name, text))
        assert ended.code == code, f"{command} ended with {ended.code}: {ended.err}"
        return ended

    def recorded(self, name, ordered=None):
        """What the run of this name has left; of a sweep, by cell."""
        records = [record(run, ordered) for run in runs_below(self.folder / "runs" / name)]
        return records[0] if len(records) == 1 else {"cells": cells(records)}

    def requests(self, *, scores=True):
        """What the server was sent, in an order that does not depend on which came first."""
        sent = [stored_request(each, scores=scores) for each in self.server.requests]
        return sorted(sent, key=lambda each: json.dumps(each, sort_keys=True))

    def checkpoint(self, name):
        import torch

        torch.set_num_threads(1)  # Sums of floats are then made in one order.
        folder = self.shared / name
        with _alone(self.shared / f"{name}.lock"):
            place = folder / "place"
            if not place.exists():
                made = make_checkpoint(name, folder)
                place.write_text(str(made))
        return Path(place.read_text())

    def questions(self, world):
        return json_lines(WORLDS[world] / "queries.jsonl")


@contextlib.contextmanager
def _alone(path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def json_lines(path):
    """The objects in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(name, received, places):
    """Compare a result with its golden file, or write the file where that was asked for."""
    received = places.hidden(received)
    if WRITE:
        changed = store.write(name, received)
        pytest.skip(f"{store.path_of(name).name} is {'written' if changed else 'the same'}")
    if message := store.differences(store.read(name), received):
        pytest.fail(f"{name} differs from {store.path_of(name).name}\n{message}", pytrace=False)


def skip_without(packages):
    """Skip the test where one of these optional packages is not installed. None is imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is optional and not installed")


# Tiny checkpoints with random weights, made on the spot, whose vocabulary is that of the stored
# world. With these seeds scores are far apart where their order is stored.


def _words(lower=True):
    """The 400 most frequent words of the documents."""
    rows = (store.DATA / "world" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    text = " ".join(json.loads(row)["text"] for row in rows)
    counts = Counter(re.findall(r"[A-Za-z]+", text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:400]
    return tuple(dict.fromkeys(word.lower() for word in frequent)) if lower else tuple(frequent)


def cross_encoder(folder):
    import torch
    from support import checkpoints
    from transformers import BertConfig, BertForSequenceClassification

    words = checkpoints.whole_word_tokenizer(("[Q]", "[D]"), _words())
    words.model_max_length = 128
    torch.manual_seed(3)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    size |= {"num_attention_heads": 4, "initializer_range": 0.3, "num_labels": 1}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), **size))
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    return checkpoints.save_network(folder, model.eval(), words)


def make_checkpoint(name, folder):
    """Save the checkpoint of this name; where it is."""
    from support import checkpoints

    if name == "cross_encoder":
        return cross_encoder(folder)
    cased = _words(lower=False)
    t5 = {"words": (*checkpoints.T5_WORDS, *cased)}
    llama = (*checkpoints.LLAMA_WORDS, *_words()[:200])
    save, settings = {
        "t5": (checkpoints.save_t5, {**t5, "seed": 2}),
        # As many layers on both sides: transformers counts the encoder's where it caches the
        # decoder's.
        "doc2query": (checkpoints.save_t5, {**t5, "seed": 4, "num_decoder_layers": 2}),
        "splade": (
            checkpoints.write_splade,
            {"words": cased, "kind": "distilbert", "seed": 7},
        ),
        "dense": (checkpoints.save_sentence_model, {"words": _words(), "seed": 1}),
        "colbert": (checkpoints.save_multi_vector, {"words": _words(), "seed": 1}),
        "rankllama": (checkpoints.save_rankllama, {"words": llama, "seed": 5}),
    }[name]
    return save(folder, **settings)


# The language model: a server that plays every part which a run may give to a model. The part is
# found by the request's own words. What it replies depends on the texts in a prompt alone and not
# on the words around them: a run of it can be stored, and another prompt changes the stored
# requests alone. The name of the model chooses between characters: `formless` never answers in the
# format that it is asked for.

COMPLETIONS = "/v1/completions"
_DOCID = re.compile(r"docid=([^\s%]+)")
_QUERY = re.compile(r"<query>\n(.*)\n</query>", re.DOTALL)
_QUESTION = re.compile(r"^(?:Question|Request): (.+)$", re.MULTILINE)
_WORD = re.compile(r"[\w,']{4,}")
# What stands between the marks of a section, and the random numbers that make the marks unique.
_SECTION = "===== begin {} (\\w+) =====\n(.*)\n===== end {} \\1 ====="
_NONCE = re.compile(r"\b[0-9a-f]{12,16}\b(?= =====|=====| belongs to this request)")
Messages = Sequence[Mapping[str, Any]]


def reply(request):
    """What the server says to this request."""
    body = request.body
    if request.path == COMPLETIONS:
        return reasoned_completion(body["prompt"])
    messages = body["messages"]
    size = 100 * len(messages)
    usage = {"input": size, "cached": size - 100, "reasoning": 3, "output": 20}
    tools = [tool["function"]["name"] for tool in body.get("tools") or []]
    if tools == ["verdict"]:
        return Say(calls=[("v1", "verdict", json.dumps(verdict(prompt_of(messages))))], usage=usage)
    if body.get("model") == "formless":
        return formless(messages, usage)
    if tools:
        return agent_turn(body, usage)
    if len(messages) > 1 and messages[0]["role"] == "system":
        return Say(text=json.dumps(plan(messages)), usage=usage)
    return Say(text=written(messages[-1]["content"]), usage=usage)


def written(prompt):
    """The reply to a prompt that stands alone, by the words that tell what it asks for."""
    for words, answer in _PARTS.items():
        if words in prompt:
            return answer(prompt)
    raise AssertionError(f"no part of the model answers this prompt: {prompt}")


def prompt_of(messages):
    return "\n".join(str(message["content"]) for message in messages)


def spread(*texts):
    """A number from 0 to 1 that depends on nothing but the texts."""
    total = sum((place + 7) * ord(letter) for place, letter in enumerate("|".join(texts)))
    return total % 101 / 101


# Prompts that stand alone.


def rewritten(prompt):
    """A question of the query's first words by alphabet."""
    words = _QUERY.findall(prompt)[-1].split()
    return f"Which town knows {' '.join(sorted(words)[:6])}?"


def passage(prompt):
    """A passage of the question's longer words, and of some that it lacks."""
    words = _WORD.findall(prompt.rpartition("Question: ")[2])
    return f"The census tells of {' and '.join(sorted(set(words))[:8])}, and of a stone museum."


def rationale(prompt):
    words = _WORD.findall(prompt.split("\n\n")[1])
    return f"It is about {' '.join(words[-6:])}. The final answer is a bronze charter."


def phrases(prompt):
    """Phrases of words that are new, common, rare and repeated, so that every filter decides."""
    text = re.search(r"<(text|query)>\n(.*)\n</\1>", prompt, re.DOTALL)
    assert text is not None
    words = sorted(set(_WORD.findall(text[2])), key=lambda word: (spread(word), word))
    listed = [*words[:3], f"{words[0]} museum", "the and of", "zorbal quay", "larch", words[0]]
    return json.dumps({"keywords": listed})


def order(prompt):
    """The passages from the last to the first, with one left out and one named twice."""
    count = int(re.findall(r"all (\d+) numbers", prompt)[-1])
    numbers = [*range(count, 0, -1)]
    return " > ".join(f"[{number}]" for number in [*numbers[:2], *numbers[3:], numbers[0]])


def points(prompt):
    """Points for a document; now and then a reply that cannot be read."""
    share = spread(prompt.partition("<document>")[2].partition("</document>")[0])
    return "I cannot say." if share < 0.15 else json.dumps({"score": round(100 * share)})


def requirement_scores(prompt):
    """A requirement is met where a passage holds its longest word. The last row of some replies is
    missing, and has to be asked for once more."""
    title, *passages = _sections("passages", prompt)[-1].splitlines()
    shown = dict(match.groups() for match in map(_PASSAGE.match, passages) if match)
    rows = []
    listed = re.findall(
        r"^(\d+)\. (.+)$", prompt.partition("The requirements, by number:")[2], re.M
    )
    for number, requirement in listed:
        word = max(_WORD.findall(requirement), key=len, default="")
        places = [unit for unit, text in shown.items() if word.lower() in text.lower()]
        met = "satisfied" if places else "unknown" if spread(requirement, title) < 0.5 else "not"
        score = {"satisfied": 0.9, "unknown": 0.4, "not": 0.1}[met]
        row = {"number": int(number), "verdict": met, "score": score, "rationale": f"As to {word}."}
        rows.append({**row, "passage": (places or ["nowhere"])[0]})
    if len(rows) > 1 and spread(title) < 0.2:
        rows.pop()
    share = sum(row["score"] for row in rows) / max(1, len(rows))
    probability = round(0.8 * share + 0.1 * spread(title), 3)
    return json.dumps({"requirements": rows, "relevant": share > 0.5, "probability": probability})


_PASSAGE = re.compile(r"> \[(\S+)\] (.*)")


def _sections(name, prompt):
    return [found[1] for found in re.findall(_SECTION.format(name, name), prompt, re.DOTALL)]


def remembered(prompt):
    words = question_words([{"role": "user", "content": prompt}])
    return f"Explanation: I recall [d01] and [99999].\nExact Answer: {words[-1]}\nConfidence: 35%"


def remembered_list(prompt):
    """Documents by id, by title, by a title with a slip, by address, and one that is nowhere."""
    return f"Explanation: from memory\nConfidence: 20%\nDocuments:\n{REMEMBERED}"


REMEMBERED = """\
d03
Drumatoll Star
A Mill That Is Nowhere
Mulodan Hal
1. Thijukax Bridge
https://almanac.example/town/nether-jukusil"""

_PARTS = {
    "The question in the style of MS MARCO": rewritten,
    "Please write a passage": passage,
    "Give the rationale before answering": rationale,
    "You add search vocabulary": phrases,
    "You put search results in order": order,
    "You judge how useful a document is": points,
    "You check whether a document meets": requirement_scores,
    "Answer the question below from what you know": remembered,
    "List the documents that the request below asks for": remembered_list,
}


# The judge, the navigator and the agents.


def verdict(prompt):
    """Right for about half of the responses, whatever they say."""
    response = _sections("response", prompt)[-1]
    right = spread(response) < 0.5
    return {
        "extracted_answer": "x",
        "reasoning": "As scripted.",
        "correct": right,
        "confidence": 50,
    }


def plan(messages):
    """A navigator's plan: the question's clauses, then a further requirement and other queries,
    then the end."""
    prompt = messages[-1]["content"]
    request = prompt.partition("The request:\n")[2].partition("\n\n")[0]
    clauses = [part.strip() for part in re.split(r"[.,:]| and ", request) if len(part) > 12][:4]
    words = _WORD.findall(request)
    round_ = re.search(r"Round (\d+) of", prompt)
    if round_ is None:
        first = {"operator": "search", "query": " ".join(words[:8])}
        others = [{"operator": "search", "query": clause} for clause in clauses[1:3]]
        return {"checklist": clauses, "queries": [first, *others], "reason": "All of it first."}
    if round_[1] == "2":
        known = re.findall(r"^> (\S+) \|", prompt, re.MULTILINE)
        linked = [{"operator": "expand", "docid": docid} for docid in known[:1]]
        queries = [{"operator": "search", "query": " ".join(words[-6:])}, *linked]
        checklist = [*clauses, "The page is about one thing"]
        return {"checklist": checklist, "queries": queries, "reason": "What is missing."}
    return {"stop": True, "reason": "Nothing is left."}


def agent_turn(body, usage):
    """An agent's next step, by how many it has taken. Some calls are wrong: a tool that another
    interface has, an empty query."""
    messages = body["messages"]
    words = question_words(messages)
    outputs = [str(message["content"]) for message in messages if message["role"] == "tool"]
    docids = _DOCID.findall(" ".join(outputs))
    docid = [*docids, "none", "none"][1]
    number = sum(message["role"] == "assistant" for message in messages)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    steps = [
        [("search", {"query": " ".join(words[-12:])})],
        [
            ("search", {"query": " ".join(words[:8])}),
            ("read_search_results", {"search_id": "s1", "offset": 4, "limit": 3}),
        ],
        [("read_document", {"docid": docid, "offset": 1, "limit": 5})],
        [("get_document", {"docid": docid}), ("search", {"query": ""})],
    ]
    # Repeats of a question have seeds of their own: one half of them takes a step less.
    steps = steps[: len(steps) - (body.get("seed") or 0) % 2]
    if number == len(steps):
        return Say(text=final_answer(messages, docid, docids, words), usage=usage)
    calls = []
    for place, (name, arguments) in enumerate(steps[number]):
        properties = schemas.get(name, {}).get("properties", arguments)
        arguments = {key: value for key, value in arguments.items() if key in properties}
        if "reason" in properties:
            arguments = {"reason": "as scripted", **arguments}
        calls.append((f"c{number}{place}", name, json.dumps(arguments)))
    return Say(reasoning=f"Step {number}: I think of {words[-1]}.", calls=calls, usage=usage)


def final_answer(messages, docid, docids, words):
    explanation = f"Explanation: it is told in [{docid}] and [nowhere]."
    if "Documents: [docid]" in prompt_of(messages):
        listed = " ".join(f"[{each}]" for each in [*dict.fromkeys(docids)][:6])
        return f"{explanation}\nConfidence: 60%\nDocuments: {listed} [nowhere]"
    return f"{explanation}\nExact Answer: {words[-1]}\nConfidence: 60%"


def formless(messages, usage):
    """A model that answers at once and in no format, writes its calls as text, and repeats the
    prompt's own description of the format when it is reminded."""
    words = question_words(messages)
    number = sum(message["role"] == "assistant" for message in messages)
    arguments = {"reason": "as text", "query": " ".join(words[:6])}
    said = [
        f"I believe that it is {words[-1]}.",
        "",
        json.dumps({"name": "search", "arguments": arguments}),
        f"Perhaps {words[0]}, perhaps not. [d01]",
        "Explanation: see above\nExact Answer: the answer alone\nConfidence: 0% to 100%",
    ]
    return Say(text=said[min(number, len(said) - 1)], usage=usage)


def question_words(messages):
    """The longer words of the question: of the first user message, or of its line that a prompt
    labels as the question."""
    prompt = next(message["content"] for message in messages if message["role"] == "user")
    labelled = _QUESTION.search(prompt)
    return _WORD.findall(labelled[1] if labelled else prompt)


def reasoned_completion(prompt):
    """Rank1's server: a reasoning that ends by itself, with the probabilities of both verdicts."""
    share = 0.05 + 0.9 * spread(prompt.partition("Passage: ")[2])
    word = " true" if share >= 0.5 else " false"
    tokens = ["\n", "It", " is", ".", "\n", "</", "think", ">", word]
    likeliest = {" true": math.log(share), " false": math.log(1 - share)}
    tops = [{token: 0.0} for token in tokens[:-1]] + [likeliest]
    logprobs = {
        "tokens": tokens,
        "token_logprobs": [top[token] for token, top in zip(tokens, tops, strict=True)],
        "top_logprobs": tops,
    }
    choice = {"index": 0, "text": "\nIt is.\n", "finish_reason": "stop", "logprobs": logprobs}
    usage = {"prompt_tokens": 100, "completion_tokens": 9}
    return Raw(json.dumps({"model": "rank1", "choices": [choice], "usage": usage}))


def stored_request(request, *, scores):
    """What the server was sent, without the random numbers of sections. Without `scores`, those on
    the pages of search results are left out."""
    text = _NONCE.sub("NONCE", json.dumps(request.body, ensure_ascii=False))
    body = plain(json.loads(text))
    return {"path": request.path, **(body if scores else without_scores(body))}
