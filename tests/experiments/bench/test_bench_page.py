from pathlib import Path

from experiments.bench.page import table_text, write_section


def test_a_section_replaces_its_former_self_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "benchmarks.md"
    write_section("one", "One", ["first"], page)
    write_section("two", "Two", ["second"], page)
    page.write_text(page.read_text() + "\nWritten by hand.\n")
    write_section("one", "One", ["third", table_text(["a", "b"], [["1", "2"]])], page)
    assert page.read_text() == (
        "# Benchmarks\n"
        "\n## One\n\n<!-- bench:one -->\n\nthird\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n"
        "<!-- /bench:one -->\n"
        "\n## Two\n\n<!-- bench:two -->\n\nsecond\n\n<!-- /bench:two -->\n"
        "\nWritten by hand.\n"
    )
