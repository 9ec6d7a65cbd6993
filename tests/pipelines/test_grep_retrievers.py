"""GrepRAG and ShellAgent on a scripted model. The expected rankings are computed by hand."""

import json

import pandas as pd
import pytest
from support.assertions import refused
from support.llm_model import ScriptedPrompts

from soundingline.pipelines.grep import GrepRag, ShellAgent, jaccard
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.llm.errors import Refused, ServerGone

TEXTS = {
    "d0": "the old mill stands by the river",
    "d1": "A RIVER MILL",
    "d2": "windmills turn in the wind",
    "d3": "a harbour by the sea",
    "d4": "the river and the sea and the harbour light",
}
UNITS = {docno: Unit(docno, "", text) for docno, text in TEXTS.items()}
QUERY = "the river mill"


class ScriptedTalk(ScriptedPrompts):
    """Answers conversations, whole."""

    def respond_many(self, requests, qids, settings=None, arrived=None):
        self.talks = [*getattr(self, "talks", []), *map(list, requests)]
        prompts = [[{"role": "user", "content": json.dumps(list(each))}] for each in requests]
        return super().respond_many(prompts, qids, settings, arrived)


def collected(units, folder):
    LexicalEngine().build(units, folder / "index", corpus_fingerprint="c")
    index = LexicalEngine().open(folder / "index", corpus_fingerprint="c")
    by_id = {unit.unit_id: unit for unit in units}
    return Collection("c", index=index, texts=lambda docnos: [by_id[d] for d in docnos])


@pytest.fixture
def collection(tmp_path):
    return collected([*UNITS.values()], tmp_path)


def searched(stage, collection, *queries):
    """The ranking of each query as (docno, score), and the model's talks."""
    queries = queries or (QUERY,)
    frame = pd.DataFrame({"qid": [f"q{n}" for n in range(len(queries))], "query": queries})
    out = stage.bind(collection)(frame)
    for _, rows in out.groupby("qid"):
        assert rows["rank"].tolist() == list(range(len(rows)))
    return [
        [(row.docno, row.score) for row in out[out["qid"] == qid].itertuples()]
        for qid in frame["qid"]
    ]


def answering(*replies):
    """A model that gives these replies in turn."""
    left = iter(replies)
    return ScriptedTalk(lambda prompt: next(left))


def acting(*queries):
    return answering(*(json.dumps({"action": "search", "query": query}) for query in queries))


def test_greprag_pools_substrings_and_ranks_them_by_the_jaccard_similarity_of_words(collection):
    """`mill` is also within a word of d2. The query has the words the, river, mill."""
    model = answering('Thinking. {"patterns": ["mill", "OLD MILL", " "]}')
    (ranking,) = searched(GrepRag(model), collection)
    # d1 shares 2 of 4 words, d0 3 of 6: equal, in the order of the collection. d2 shares 1 of 7.
    assert ranking == [("d0", 3 / 6), ("d1", 2 / 4), ("d2", 1 / 7)]
    ((message,),) = model.talks
    assert message["role"] == "user" and f"<query>\n{QUERY}\n</query>" in message["content"]
    assert "Write 10 strings" in message["content"]
    assert jaccard(set(), {"a"}) == 0


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ('{"queries": ["sea"]}', ["d4", "d3"]),
        ('{"keywords": ["sea"]}', ["d4", "d3"]),
        ('["sea", 3]', ["d4", "d3"]),
        ("I cannot.", []),
        ('{"patterns": ["zeppelin"]}', []),
        (Refused("no"), []),
    ],
)
def test_what_the_authors_code_reads_of_a_reply(collection, reply, found):
    stage = GrepRag(ScriptedTalk(lambda prompt: reply))
    (ranking,) = searched(stage, collection)
    # d4 shares `the` and `river` of 7 words, d3 `the` of 7.
    assert [docno for docno, _ in ranking] == found
    assert stage.counts["unreadable"] == ("sea" not in str(reply) and "zeppelin" not in str(reply))


def test_a_pattern_adds_five_times_the_depth_to_the_pool_in_the_order_of_the_collection(tmp_path):
    units = [Unit(f"d{n}", "", "mill " + "filler " * (9 - n)) for n in range(9)]
    units[8] = Unit("d8", "", "the river mill pier")
    collection = collected(units, tmp_path)
    for patterns, best in ((["mill"], "d0"), (["mill", "pier"], "d8")):
        stage = GrepRag(answering(json.dumps(patterns)), depth=1)
        (ranking,) = searched(stage, collection)
        assert [docno for docno, _ in ranking] == [best], patterns


def test_queries_share_one_pass_over_the_texts(collection):
    passes = []

    def texts(docnos):
        passes.extend(docnos)
        return [UNITS[docno] for docno in docnos]

    replies = {"mill": '["mill"]', "sea": '["sea"]'}
    model = ScriptedTalk(lambda prompt: next(r for word, r in replies.items() if word in prompt))
    counted = Collection("c", index=collection.index, texts=texts)
    first, second = searched(GrepRag(model), counted, "a mill", "a sea")
    assert [d for d, _ in first] == ["d1", "d0", "d2"] and [d for d, _ in second] == ["d3", "d4"]
    assert passes == list(TEXTS) and model.qids == ["q0", "q1"]


# Searches of the shell agent with two hits shown: texts with the most different words first.
#   "river mill"  d0 d1        (both words; d4 has one, d2 `mill`)
#   "sea river"   d4 d0        (d4 both; d0 and d1 `river`, d3 `sea`: the collection's order)
#   "harbour"     d3 d4
SEARCHES = ("river mill", "sea river", "harbour")
FUSED = {
    "best_rank": [("d0", 1 / 2), ("d4", 1 / 2), ("d3", 1 / 2), ("d1", 1 / 3)],
    "frequency": [("d0", 2.0), ("d4", 2.0), ("d1", 1.0), ("d3", 1.0)],
    "rrf": [("d0", 1 / 61 + 1 / 62), ("d4", 1 / 61 + 1 / 62), ("d3", 1 / 61), ("d1", 1 / 62)],
}


@pytest.mark.parametrize("fusion", FUSED)
def test_the_searches_of_the_shell_agent_are_fused_by_their_ranks(collection, fusion):
    stage = ShellAgent(acting(*SEARCHES), turns=3, page=2, fusion=fusion)
    (ranking,) = searched(stage, collection)
    assert [docno for docno, _ in ranking] == [docno for docno, _ in FUSED[fusion]]
    assert [score for _, score in ranking] == pytest.approx([s for _, s in FUSED[fusion]])
    (first,) = searched(ShellAgent(acting(*SEARCHES), turns=3, page=2, depth=1), collection)
    assert first == FUSED["best_rank"][:1]


def test_the_shell_agent_reads_excerpts_and_ends_when_it_says_so(collection):
    done = 'Enough. {"action": "done"}'
    model = answering('{"action": "search", "query": "SEA light"}', done)
    stage = ShellAgent(model, turns=4, excerpt_characters=12)
    (ranking,) = searched(stage, collection)
    assert ranking == [("d4", 1 / 2), ("d3", 1 / 3)]
    first, second = model.talks
    assert [message["role"] for message in first] == ["system", "user"]
    assert "at most 4 searches" in first[0]["content"] and QUERY in first[1]["content"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    # Six characters on either side of the first match.
    page = second[3]["content"]
    assert "2 documents found." in page and "[1] (id=d4) …d the sea an…" in page
    assert "[2] (id=d3) …y the sea" in page and "3 of 4 searches left" in page
    assert stage.counts["searches"] == 1 and stage.counts["unreadable"] == 0


@pytest.mark.parametrize(
    "reply",
    ["I cannot.", '{"action": "search"}', '{"action": "look", "query": "sea"}', Refused("no")],
)
def test_any_other_reply_ends_the_search_with_what_was_found(collection, reply):
    stage = ShellAgent(answering('{"action": "search", "query": "sea"}', reply))
    (ranking,) = searched(stage, collection)
    assert [docno for docno, _ in ranking] == ["d3", "d4"]
    assert stage.counts["unreadable"] == 1


def test_conversations_are_asked_together_and_replies_are_kept(collection, tmp_path):
    def choose(prompt):
        word = "sea" if "a sea" in prompt else "mill"
        asked = f'\\"action\\": \\"search\\", \\"query\\": \\"{word}\\"' in prompt
        return '{"action": "done"}' if asked else json.dumps({"action": "search", "query": word})

    model = ScriptedTalk(choose)
    cached = Collection(
        "c", index=collection.index, texts=collection.texts, caches=tmp_path / "caches"
    )
    first = searched(ShellAgent(model), cached, "a mill", "a sea")
    assert [len(each) for each in model.rounds] == [2, 2]
    assert searched(ShellAgent(model), cached, "a mill", "a sea") == first
    assert len(model.rounds) == 2


def test_errors_and_impossible_settings(collection):
    with pytest.raises(ServerGone):
        searched(GrepRag(ScriptedTalk(lambda prompt: ServerGone("gone"))), collection)
    refused("fusion='sum'. valid: best_rank, frequency, rrf", lambda: ShellAgent(fusion="sum"))
    refused("patterns=0", lambda: GrepRag(patterns=0))
    refused("is not bound", lambda: searched(GrepRag(answering('["a"]')), Collection("c")))
    assert GrepRag().fingerprint != ShellAgent().fingerprint
