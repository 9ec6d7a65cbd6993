"""What a query of a ranking costs, by what its stages counted."""

from __future__ import annotations

from soundingline.experiments.pipeline import Stages
from soundingline.experiments.rank import query_costs
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.prices import UNKNOWN, Price

# A long request costs ten times as much, and many short ones together are no long request.
PRICE = Price(input=2.0, output=8.0, long_context={"above": 1000, "input": 20.0, "output": 80.0})


def stages(**prices):
    models = {
        group: (BlockingModel("m", role="rewriter", price=price), None)
        for group, price in prices.items()
    }
    return Stages({}, models)


def test_a_query_costs_what_its_replies_cost():
    counted = {"rewriter": {"reply_input_tokens": 4_000_000, "reply_output_tokens": 1_000_000}}
    found = query_costs(stages(rewriter=PRICE), counted, 50.0, 10)
    tokens = {"input_tokens": 400_000.0, "output_tokens": 100_000.0}
    assert found == {"seconds": 5.0, **tokens, "dollars": (4 * 2.0 + 1 * 8.0) / 10}


def test_a_query_has_no_price_where_a_model_has_none():
    counted = {
        "rewriter": {"reply_input_tokens": 40, "reply_output_tokens": 10},
        "reranker": {"reply_input_tokens": 60, "reply_output_tokens": 30},
    }
    found = query_costs(stages(rewriter=PRICE, reranker=UNKNOWN), counted, 50.0, 10)
    assert found == {"seconds": 5.0, "input_tokens": 10.0, "output_tokens": 4.0}


def test_a_query_has_neither_tokens_nor_price_where_a_reply_told_none():
    counted = {
        "rewriter": {"reply_input_tokens": 40, "reply_output_tokens": 10, "reply_unmetered": 1}
    }
    assert query_costs(stages(rewriter=PRICE), counted, 50.0, 10) == {"seconds": 5.0}
    of_queries = {f"query_{name}": number for name, number in counted["rewriter"].items()}
    found = query_costs(stages(enrichment=PRICE), {"enrichment": of_queries}, 50.0, 10)
    assert found == {"seconds": 5.0}
    assert query_costs(stages(), {}, 50.0, 10) == {"seconds": 5.0}
