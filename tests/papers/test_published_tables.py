"""The published figures that no experiment runs, and the form of all tables. Values are written
down again from the sources that the tables name."""

from soundingline.experiments.config import CONF
from soundingline.experiments.published_figures import is_measure
from soundingline.toolkit.evaluation.published_tables import (
    published_names,
    published_statistics,
    read_published,
)

# arXiv 2508.06600, Table 1: accuracy, recall (%), search calls and calibration error, in the order
# of the retrievers BM25 and Qwen3-Embed-8B, or BM25, Qwen3-Embed-0.6B, -4B, -8B and ReasonIR.
BROWSECOMP_PLUS = """
gpt-4.1 14.58 16.42 10.35 68.96 35.42 36.89 8.67 54.67
o3 49.28 56.64 25.93 12.58 63.49 73.24 23.97 16.77
gpt-5 55.90 61.70 23.23 13.50 70.12 78.98 21.74 9.11
claude-sonnet-4 14.34 21.31 9.95 29.79 36.75 47.33 9.03 24.51
claude-opus-4 15.54 22.96 11.22 22.00 36.14 50.84 10.24 12.79
gemini-2.5-flash 15.54 21.45 10.56 29.28 33.01 40.19 9.77 21.63
gemini-2.5-pro 19.04 22.81 7.44 51.58 28.67 35.31 6.04 44.08
gpt-oss-120b-high 28.67 35.50 19.45 46.48 42.89 52.63 18.35 40.34
qwen3-32b 3.49 3.12 .92 57.41 4.10 3.45 .91 60.71 7.83 6.20 .89 61.06 10.36 7.80 .94 59.84 9.16 7.59 .91 55.15
search-r1-32b 3.86 2.61 1.78 - 5.66 5.30 1.73 - 9.40 7.90 1.68 - 10.36 10.17 1.69 - 9.43 8.37 1.74 -
"""  # noqa: E501
# assets/table.png of sjtu-sai-agents/PaSaMaster at 1212644: nDCG, recall, precision, F1,
# hallucination (%) and dollars.
PASAMASTER = """
Google Scholar|2.07 1.69 1.48 1.39 0 -
OpenScholar|14.61 11.68 8.52 7.92 0 -
Bohrium Science Navigator|22.39 19.37 12.50 12.26 0 -
DeepSeek-v3.2|35.82 24.76 15.35 15.56 12.94 .28
Kimi-K2.5|37.80 28.08 16.95 17.36 26.59 .16
MiniMax-M2.7|30.70 24.23 14.42 15.11 32.66 .18
GLM-5|35.89 28.99 16.93 18.18 21.64 .56
Gemini-3.1-pro|31.34 21.30 11.68 12.48 27.54 .38
GPT-5.2|31.59 25.32 16.82 16.69 5.65 6.06
Google Scholar Labs|30.54 29.01 18.79 18.87 0 -
"""
# arXiv 2605.06647, Table 1: questions, documents, relevant documents a question.
SIRA = {
    "nq": (3452, 2.68e6, 1.22),
    "hotpotqa/test": (7405, 5.23e6, 2.00),
    "fiqa/test": (648, 57e3, 2.63),
    "arguana": (1401, 8.67e3, 1.00),
    "cqadupstack/english": (1570, 40e3, 2.40),
    "quora/test": (10_000, 523e3, 1.57),
    "scidocs": (1000, 26e3, 29.93),
    "fever/test": (6666, 5.42e6, 1.19),
    "climate-fever": (1535, 5.42e6, 3.05),
    "scifact/test": (300, 5e3, 1.13),
}


def number(text):
    return None if text == "-" else float(text)


def share(text):
    return None if text == "-" else round(float(text) / 100, 4)


def test_all_tables_have_the_form_of_their_columns_and_name_a_paper():
    for name in published_names():
        table = read_published(name)
        assert table.paper.startswith("arXiv 26") or table.paper == "arXiv 2508.06600"
        assert len(table.cells) == len(table.rows)  # raises for a row of another length
    named = {
        line.split()[1]
        for path in (CONF / "experiment").rglob("*.yaml")
        for line in path.read_text("utf-8").splitlines()
        if line.startswith("published: ") and not line.endswith("null")
    }
    assert named <= set(published_names()) and len(named) >= 17


def test_browsecomp_plus():
    expected = []
    for line in BROWSECOMP_PLUS.split("\n")[1:-1]:
        llm, *cells = line.split()
        for place in range(0, len(cells), 4):
            accuracy, recall, calls, error = cells[place : place + 4]
            expected.append((llm, share(accuracy), share(recall), number(calls), number(error)))
    rows = read_published("browsecomp_plus/table1").rows
    assert [(llm, *figures) for llm, _, *figures in rows] == expected
    found = {tuple(row[:2]): row[2:] for row in rows}
    # Both tables have gpt-oss-120b at high effort; Table 8 has the accuracies of Table 1 again.
    other = read_published("browsecomp_plus/table4").other_systems[-1]
    assert other["system"] == "gpt-oss-120b-high over qwen3_embedding_8b"
    assert tuple(other.values())[1:] == found["gpt-oss-120b-high", "qwen3_embedding_8b"]
    dollars = {row[:2]: row[2] for row in read_published("browsecomp_plus/table8").rows}
    assert dollars["o3", "bm25_default"] == 836.35
    assert dollars.keys() < found.keys()
    # Pi-Serini compares itself with gpt-5 over Qwen3-Embed-8B, whose dollars these are.
    (dense,) = read_published("pi_serini/main").other_systems
    assert round(dollars["gpt-5", "qwen3_embedding_8b"], 1) == dense["run_dollars"] == 360.7


def test_the_agent_that_two_papers_report():
    """Table 2 of the text-ranking study cites gpt-oss-20b at high effort of BrowseComp-Plus."""
    bm25, dense = read_published("browsecomp_plus/table4").rows
    assert bm25 == ("bm25_default", 0.2108, 0.3198, 26.87, 33.42)
    assert dense == ("qwen3_embedding_8b", 0.3458, 0.4929, 23.87, 27.81)
    cited, newer, other = (
        tuple(row.values())[1:] for row in read_published("text_ranking/table2").other_systems
    )
    assert cited == (23.87, 0.493, 0.346) == (dense[3], round(dense[2], 3), round(dense[1], 3))
    assert newer == (29.63, 0.557, 0.422) and other == (73.83, 0.747, 0.451)


def test_pasamaster():
    names = ["nDCG", "R", "P", "F1", "hallucination_rate"]
    expected = []
    for line in PASAMASTER.split("\n")[1:-1]:
        system, figures = line.split("|")
        *shares, dollars = figures.split()
        row = {"system": system, **dict(zip(names, map(share, shares), strict=True))}
        expected.append(row if dollars == "-" else row | {"dollars": number(dollars)})
    table = read_published("pasamaster/main")
    assert list(table.other_systems) == expected and table.questions == 244
    assert table.rows == (("pasamaster", 0.3952, 0.3324, 0.2346, 0.23, 0.0, 0.05),)
    assert [name for name in table.columns if not is_measure(name)] == ["agent"]


def test_sira():
    for dataset, (questions, documents, relevant) in SIRA.items():
        source, row = published_statistics({"dataset": f"beir/{dataset}"}, "ir_datasets")
        assert source == "arXiv 2605.06647, Table 1"
        assert tuple(row.values()) == (questions, documents, relevant)
    assert published_statistics({"dataset": "beir/nq"}, "beir") == ("", {})
    # Figure 3: the two of six baselines that the text states.
    accuracies = [
        row["accuracy of answers"] for row in read_published("sira/figure3").other_systems
    ]
    assert accuracies == [0.712, 0.690]
    # browsecomp-wiki/readme.md of facebookresearch/sira at b33f5b7.
    table = read_published("sira/browsecomp_wikipedia")
    assert table.questions == 232
    assert [row[2:] for row in table.rows] == [(0.0970, 0.1527, 0.3614), (0.0571, 0.1313, 0.1851)]
    assert [tuple(row.values())[1:] for row in table.other_systems] == [
        (0.0259, 0.0474, 0.3233),
        (0.0302, 0.0690, 0.3147),
    ]


def test_pi_serini_s_behaviour():
    """The paper's project page: 15 to 24 calls a question, 82 to 90 % of the tokens from the cache,
    and 3.3 to 10 times the dollars with dense retrieval."""
    ranges = read_published("pi_serini/main").ranges
    assert ranges == {"tool_calls": (15, 24), "cached_share": (0.82, 0.9), "cost_ratio": (3.3, 10)}
