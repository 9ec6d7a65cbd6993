from importlib.metadata import version

from soundingline.experiments.bench import harness
from soundingline.experiments.bench.harness import Section, Table, report


def test_a_section_replaces_its_former_self_and_leaves_the_rest(tmp_path, monkeypatch, capsys):
    page = tmp_path / "docs" / "benchmarks.md"
    monkeypatch.setattr(harness, "PAGE", page)
    report(Section("one", "One", "run it", ["first"]), write=True)
    report(Section("two", "Two", "run two", ["second"]), write=True)
    page.write_text(page.read_text() + "\nWritten by hand.\n")
    report(Section("one", "One", "run it", ["third", Table("ab", [["1", "2"]])]), write=True)
    report(Section("one", "One", "run it", ["only printed"]), write=False)
    setup, other = Section("", "", "run it", []).setup(), Section("", "", "run two", []).setup()
    assert setup.startswith("`run it`, 20") and f"numba {version('numba')}" in setup
    assert page.read_text() == (
        "# Benchmarks\n"
        f"\n## One\n\n<!-- bench:one -->\n\n{setup}\n\nthird\n\n"
        "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n"
        "<!-- /bench:one -->\n"
        f"\n## Two\n\n<!-- bench:two -->\n\n{other}\n\nsecond\n\n<!-- /bench:two -->\n"
        "\nWritten by hand.\n"
    )
    assert "only printed" in capsys.readouterr().out


def test_a_section_names_its_machine_and_what_it_does_not_show(
    monkeypatch,
):
    monkeypatch.setattr(harness, "machine", lambda: "A processor, 2 cores")
    assert "A processor, 2 cores" in Section("", "", "run it", []).setup()
    assert "no claim about other sizes" in Section("", "", "run it", []).setup()
    assert Section("", "", "run it", [], limits="a GPU").setup().endswith("no claim about a GPU.")
