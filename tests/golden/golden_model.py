"""The language model of the golden gate: a server that plays every part which a run may give to a
model. What it replies depends on the request alone, so that a run of it can be stored.

The part is found by the request's own words. What it replies depends on the texts in a prompt and
not on the words around them, so that another prompt changes the stored requests alone. The name of
the model chooses between characters: `formless` never answers in the format that it is asked for.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from golden_record import plain, without_scores
from support.llm_server import Raw, Say

COMPLETIONS = "/v1/completions"
_DOCID = re.compile(r"docid=([^\s%]+)")
_QUERY = re.compile(r"<query>\n(.*)\n</query>", re.DOTALL)
_QUESTION = re.compile(r"^(?:Question|Request): (.+)$", re.MULTILINE)
_WORD = re.compile(r"[\w,']{4,}")
# What stands between the marks of a section, and the random numbers that make the marks unique.
_SECTION = "===== begin {} (\\w+) =====\n(.*)\n===== end {} \\1 ====="
_NONCE = re.compile(r"\b[0-9a-f]{12,16}\b(?= =====|=====| was drawn)")
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
    "You turn a query that a search agent typed": rewritten,
    "Please write a passage": passage,
    "Give the rationale before answering": rationale,
    "You add search vocabulary": phrases,
    "You put search results in order": order,
    "You judge how relevant a document is": points,
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
    pattern = "|".join(words[:2])
    first = "grep" if "grep" in schemas else "search"
    steps = [
        [(first, {"query": " ".join(words[-12:]), "pattern": pattern})],
        [
            (first, {"query": " ".join(words[:8]), "pattern": f"{words[0]}.{{0,40}}[0-9]"}),
            ("read_search_results", {"search_id": "s1", "offset": 4, "limit": 3}),
        ],
        [("read_document", {"docid": docid, "offset": 1, "limit": 5})],
        [("get_document", {"docid": docid}), (first, {"query": "", "pattern": "("})],
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
