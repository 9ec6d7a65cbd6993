"""The published figures that no experiment runs, and the form of all tables. Values are written
down again from the sources that the tables name."""

import pytest
from sheet import cells

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
# arXiv 2602.21456, a line of each table as it is printed there, without names.
STUDY = {
    "3": """
30.97 0.616 0.572 0.968 32.22 0.366 0.259 0.805 28.14 1.31 0.343 0.301 0.746
32.75 0.545 0.516 0.980 28.95 0.628 0.476 0.824 24.64 1.65 0.602 0.529 0.829
36.13 0.449 0.406 0.961 30.69 0.514 0.363 0.786 26.86 1.46 0.476 0.399 0.816
37.83 0.470 0.417 0.963 30.14 0.570 0.421 0.821 26.56 1.63 0.559 0.455 0.823
32.88 0.552 0.521 0.978 27.13 0.633 0.481 0.855 24.31 1.75 0.612 0.538 0.835
""",
    "4": """
69.41 0.581 0.445 0.863 53.63 0.309 0.196 0.923 43.72 3.00 0.282 0.263 0.947
72.69 0.578 0.466 0.883 51.22 0.639 0.448 0.881 36.83 5.33 0.597 0.525 0.939
75.19 0.456 0.331 0.905 51.51 0.493 0.330 0.907 41.86 4.13 0.471 0.407 0.955
74.90 0.482 0.357 0.886 52.49 0.580 0.374 0.882 40.23 4.34 0.482 0.456 0.956
72.73 0.571 0.464 0.882 52.11 0.640 0.430 0.878 37.69 5.30 0.595 0.535 0.955
""",
    "6": """
26.87 2.24 0.556 0.542 0.877
27.54 2.11 0.532 0.510 0.895
31.82 1.77 0.399 0.369 0.868
32.11 1.98 0.438 0.404 0.853
""",
    "7": """
32.22 0.366 0.259 0.805
28.00 0.642 0.513 0.812
28.66 0.601 0.443 0.839
28.73 0.647 0.506 0.848
""",
    "8": """
30.97 0.616 0.572 0.980 32.75 0.545 0.516 0.980 37.83 0.470 0.417 0.963
29.89 0.660 0.631 0.971 31.58 0.630 0.599 0.965 35.64 0.524 0.471 0.969
28.96 0.701 0.674 0.960 30.07 0.647 0.598 0.974 34.16 0.570 0.541 0.959
27.57 0.716 0.689 0.974 29.72 0.689 0.646 0.971 32.94 0.614 0.559 0.952
29.85 0.657 0.617 0.980 31.30 0.632 0.595 0.964 36.07 0.508 0.465 0.964
29.03 0.681 0.655 0.971 30.82 0.646 0.605 0.981 34.25 0.553 0.494 0.961
27.10 0.710 0.678 0.977 28.96 0.691 0.663 0.959 32.85 0.613 0.568 0.964
29.62 0.662 0.628 0.966 31.18 0.617 0.580 0.978 35.50 0.530 0.454 0.951
28.28 0.694 0.669 0.971 30.73 0.672 0.617 0.953 34.04 0.579 0.528 0.969
26.92 0.712 0.687 0.977 29.12 0.702 0.643 0.959 32.72 0.630 0.564 0.949
""",
    "9": """
69.41 0.581 0.445 0.863
66.79 0.665 0.549 0.892
62.91 0.696 0.586 0.901
77.00 0.660 0.503 0.836
65.90 0.707 0.576 0.865
72.69 0.578 0.466 0.883
64.43 0.632 0.528 0.865
62.09 0.693 0.575 0.900
67.91 0.612 0.490 0.880
69.21 0.695 0.543 0.842
""",
    "11": """
30.97 0.616 0.572 0.968
31.88 0.593 0.578 0.977
32.15 0.583 0.557 0.974
32.75 0.545 0.516 0.980
32.88 0.550 0.510 0.976
31.70 0.585 0.557 0.983
37.83 0.470 0.417 0.963
37.42 0.457 0.404 0.969
35.82 0.507 0.459 0.965
""",
    "13": """
31.18 0.617 0.580 0.978
31.15 0.638 0.613 0.970
""",
}
# arXiv 2605.06647, Table 2: recall at 10, then nDCG at 10; its ten collections, and their mean.
SIRA_TABLE_2 = """
BM25|.7738 .1764 .4163 .6747 .3198 .6141 .4543 .9014 .1636 .8078 .5302
Doc2Query|.7824 .1761 .4339 .6769 .3397 .6527 .5068 .8975 .1663 .8270 .5459
SPARTA|.6181 .1050 .3100 .7246 .2450 .5356 .5584 .7445 .1303 .7084 .4680
SPLADE|.8137 .2881 .4924 .8954 .4139 .7027 .7381 .9206 .1654 .8230 .6253
E5|.7909 .2899 .5138 .9109 .4697 .7276 .7877 .9428 .1962 .8489 .6478
HyDE|.7091 .2598 .3299 .7132 .2845 .5051 .4918 .5151 .1530 .8344 .4796
CoT|.7752 .1867 .4020 .6765 .3086 .5789 .4961 .8704 .1595 .7961 .5250
Search-R1 (E5)|.5760 .3014 .5008 .9010 .4499 .6705 .7889 .9355 .2018 .8349 .6161
GrepRAG|.5746 .0176 .2400 .1635 .1009 .3434 .1628 .5105 .1027 .5883 .2804
ShellAgent|.2263 .0305 .2084 .2557 .1035 .4327 .1884 .3330 .0843 .6685 .2531
SIRA|.9036 .3025 .6301 .9114 .4904 .7536 .7883 .9390 .2676 .9216 .6908
BM25|.4874 .1372 .3481 .5036 .2532 .5851 .2916 .8055 .1565 .6791 .4247
Doc2Query|.4946 .1381 .3667 .5122 .2731 .6299 .3302 .7960 .1589 .6920 .4392
SPARTA|.3890 .0852 .2497 .6101 .1925 .5132 .3983 .6294 .1272 .5894 .3784
SPLADE|.5253 .2293 .4083 .7933 .3478 .6869 .5369 .8344 .1586 .7025 .5223
E5|.5323 .2397 .4196 .8096 .3932 .6905 .5835 .8648 .1855 .7156 .5434
HyDE|.4366 .2004 .2463 .5507 .2223 .4451 .3315 .3924 .1402 .6565 .3622
CoT|.4951 .1471 .3354 .4932 .2486 .5595 .3168 .7608 .1518 .6647 .4173
Search-R1 (E5)|.3658 .2654 .4040 .8215 .3765 .6520 .5790 .8543 .1878 .7094 .5216
GrepRAG|.3555 .0122 .2048 .0971 .0763 .2927 .0908 .4557 .0921 .4129 .2090
ShellAgent|.1114 .0206 .1558 .1298 .0686 .3417 .1036 .2476 .0727 .4374 .1689
SIRA|.6174 .2288 .5327 .8037 .3771 .6904 .5923 .8490 .2449 .7866 .5723
"""
COLLECTIONS = ("arguana", "climate-fever", "cqadupstack/english", "fever/test", "fiqa/test")
COLLECTIONS += ("hotpotqa/test", "nq", "quora/test", "scidocs", "scifact/test")
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
        if line.startswith("  published: ") and not line.endswith("null")
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


def test_the_baseline_has_the_rows_of_its_agent():
    (name,) = {
        settings.config.comparison.published for settings in cells("browsecomp_plus/baseline")
    }
    published = {row["retriever"] for row in read_published(name).cells}
    run = {settings.choices["retriever"] for settings in cells("browsecomp_plus/baseline")}
    assert published == {"bm25_default", "qwen3_embedding_8b"} and published < run


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


# The order of the columns, by the number of figures of a cell.
ORDER = {4: (0, None, 1, 2, 3), 5: (0, 1, 2, 3, 4)}  # calls, reads, recall, accuracy, completion
READS = {"3": (4, 4, 5), "4": (4, 4, 5), "6": (5,)}  # figures of the cells of a line


@pytest.mark.parametrize("table", STUDY)
def test_every_figure_of_the_text_ranking_study(table):
    lines = [[float(each) for each in line.split()] for line in STUDY[table].split("\n")[1:-1]]
    found = read_published(f"text_ranking/table{table}")
    measures = [name for name in found.columns if is_measure(name)]
    rows = [[row[name] for name in measures] for row in found.cells]
    cells = []
    for figures in lines:
        for size in READS.get(table, (4,) * (len(figures) // 4)):
            cell, figures = figures[:size], figures[size:]
            order = ORDER[size] if "read_calls" in measures else range(4)
            cells.append([None if place is None else cell[place] for place in order])
    if table == "8":  # a line has three retrievers, a row of ours one
        cells = [cells[3 * row + column] for column in range(3) for row in range(10)]
    assert rows == cells


def test_every_figure_of_sira_s_table_2():
    lines = [line.split("|") for line in SIRA_TABLE_2.split("\n")[1:-1]]
    by_system = {}
    for name, figures in lines:
        by_system.setdefault(name, []).append([float(each) for each in figures.split()])
    others = ("Search-R1 (E5)",)
    for table, systems in (
        ("table2", [name for name in by_system if name not in others]),
        ("table2_agents", ["Search-R1 (E5)"]),
    ):
        found = read_published(f"sira/{table}")
        place = found.columns.index("benchmark.dataset")
        datasets = [row[place].removeprefix("beir/") for row in found.rows]
        assert datasets == [*COLLECTIONS] * len(systems)
        expected = [pair for name in systems for pair in zip(*by_system[name], strict=True)]
        means = expected[10::11]
        assert [row[-2:] for row in found.rows] == [
            pair for number, pair in enumerate(expected) if number % 11 != 10
        ]
        assert [row[-2:] for row in found.averages] == means


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
