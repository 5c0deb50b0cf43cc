"""The page about the reference computes what it prints, and its picture shows what the reference says."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from property_tests.support.worked_tree.__main__ import main
from property_tests.support.worked_tree.example import PAGE, example_of, run_blocks
from property_tests.support.worked_tree.picture import DARK, LIGHT, picture_of
from specsim import reference
from specsim.errors import UsageError

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "worked-tree.svg"
COMMAND = "python -m property_tests.support.worked_tree docs/pictures/worked-tree.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The variables that the page's code blocks leave; making them checks all that the page prints."""
    return run_blocks(PAGE)


@pytest.fixture(scope="module")
def picture() -> ET.Element:
    return ET.fromstring(PICTURE.read_text())


def groups(picture: ET.Element, panel: str, kind: str) -> list[dict[str, str]]:
    """The data attributes of every group of a kind in a panel."""
    (found,) = (g for g in picture.iter(f"{SVG}g") if g.get("data-kind") == "panel" and g.get("data-name") == panel)
    chosen = [found] if kind == "panel" else [g for g in found.iter(f"{SVG}g") if g.get("data-kind") == kind]
    return [{name.removeprefix("data-"): value for name, value in g.attrib.items()} for g in chosen]


def test_the_page_prints_what_it_says(page: dict[str, Any]) -> None:
    assert page["num_draft_tokens"] != page["sampled"].accept_index.shape[1]
    assert PAGE.read_text().count("\n>>> ") > 50


def test_the_docstring_of_the_reference_lists_every_module_once() -> None:
    named = re.findall(r"^\* `(\w+)` ", reference.__doc__ or "", re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "reference").glob("[a-z]*.py"))


def test_the_page_shows_the_picture_and_names_the_command_that_makes_it() -> None:
    text = PAGE.read_text()
    assert f"`{COMMAND}`" in text
    (link,) = re.findall(r"!\[[^\]]{40,}\]\(([^)]+)\)", text)
    assert PAGE.parent / link == PICTURE


def test_the_command_makes_the_committed_picture(tmp_path: Path) -> None:
    made = tmp_path / "made.svg"
    subprocess.run([sys.executable, *COMMAND.split()[1:-1], str(made)], cwd=ROOT, check=True, timeout=120)
    assert made.read_bytes() == PICTURE.read_bytes(), f"run: {COMMAND}"


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a.svg", "b.svg"]) == 2
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file" / "a.svg")]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_page_that_says_something_else_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "reference.md"
    wrong.write_text("# A page\n\n```pycon\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(UsageError, match=r"(?s)1 examples of .*line 4"):
        example_of(wrong)
    with pytest.raises(UsageError, match="there is no"):
        example_of(tmp_path / "missing.md")


def test_the_picture_stands_alone_and_speaks(picture: ET.Element) -> None:
    text = PICTURE.read_text()
    assert len(text.encode()) < 60_000
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"') == 1
    assert not re.search(r"<script|<image|<foreignObject|@import|url\(|href", text)
    labels = picture.get("aria-labelledby", "").split()
    said = {element.get("id"): element.text or "" for element in picture if element.get("id")}
    assert picture.get("role") == "img"
    assert labels == list(said)
    assert all(said.values())
    assert "prefers-color-scheme: dark" in text


def luminance(colour: str) -> float:
    def linear(part: str) -> float:
        share = int(part, 16) / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_what_they_are_on(colours: tuple[str, ...]) -> None:
    ink, muted, line, page, accepted, accepted_fill, rejected, rejected_fill, bonus, bonus_fill = colours

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(text, page) >= 4.5 for text in (ink, muted))
    assert all(contrast(ink, fill) >= 4.5 for fill in (accepted_fill, rejected_fill, bonus_fill))
    marks = ((line, page), (accepted, accepted_fill), (rejected, rejected_fill), (bonus, bonus_fill))
    assert all(contrast(mark, fill) >= 3 for mark, fill in marks)


def test_text_stays_inside_the_picture_and_is_large_enough_for_a_phone(picture: ET.Element) -> None:
    width, height = (float(part) for part in picture.attrib["viewBox"].split()[2:])
    for element in picture.iter(f"{SVG}text"):
        classes = (element.get("class") or "").split()
        x, y, size = float(element.attrib["x"]), float(element.attrib["y"]), 22 if "head" in classes else 17
        extent = 0.53 * size * len(element.text or "")  # DejaVu Sans, a wide font, takes 0.5 on average
        before = extent if "end" in classes else extent / 2 if "middle" in classes else 0
        assert x - before >= 0, element.text
        assert x - before + extent <= width, element.text
        assert size <= y <= height - 4, element.text
    smallest = min(int(size) for size in re.findall(r"font(?:-size)?: (\d+)px", PICTURE.read_text()))
    assert smallest * 360 / width >= 8


def test_the_candidates_are_those_of_the_draft(page: dict[str, Any], picture: ET.Element) -> None:
    shown = groups(picture, "drafted", "candidate")[1:]
    tokens = torch.cat([step.candidate_tokens for step in page["steps"]], 1)[0].tolist()
    scores = torch.cat([step.candidate_scores for step in page["steps"]], 1)[0].tolist()
    assert [group["word"] for group in shown] == [page["words"][token] for token in tokens]
    assert [Fraction(group["score"]) for group in shown] == [Fraction(score) for score in scores]
    kept = [int(group["flat_id"]) for group in shown if group["state"] == "kept"]
    assert kept == page["drafts"].selected_index[0].tolist()


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_the_paths_and_words_are_those_of_the_reference(page: dict[str, Any], picture: ET.Element, name: str) -> None:
    verified = page[name]
    path = [node for node in verified.accept_index[0].tolist() if node != -1]
    emitted = [page["words"][token] for token in verified.predicts[path].tolist()]
    panel = {"greedy": "greedy verification", "sampled": "verification by sampling"}[name]
    (shown,) = groups(picture, panel, "panel")
    assert shown["path"] == " ".join(map(str, path))
    assert shown["emitted"] == " ".join(emitted)
    if name == "greedy":
        nodes = groups(picture, panel, "node")
        assert [group["says"] for group in nodes] == [page["words"][token] for token in page["says"][0].tolist()]
        assert [int(group["node"]) for group in nodes if group["state"] == "accepted"] == path
        assert [group["word"] for group in groups(picture, panel, "bonus")] == [emitted[-1]]
    else:
        visits = groups(picture, panel, "visit")
        assert [int(group["node"]) for group in visits] == path
        assert [Fraction(group["coin"]) for group in visits] == [Fraction(c) for c in page["coins"][0, path].tolist()]
        words = [group["word"] for group in groups(picture, panel, "share") if group["state"] in ("accepted", "bonus")]
        assert words == emitted


def test_a_uniform_draw_lies_before_the_end_of_the_accepted_share_and_behind_the_rejected(picture: ET.Element) -> None:
    for visit in (g for g in picture.iter(f"{SVG}g") if g.get("data-kind") == "visit"):
        coin = Fraction(visit.attrib["data-coin"])
        for share in visit.iter(f"{SVG}g"):
            end = Fraction(share.get("data-end", "0"))
            if share.get("data-state") == "accepted":
                assert coin < end
            elif share.get("data-state") == "rejected":
                assert coin >= end


def test_the_slots_are_those_before_and_after_the_move(page: dict[str, Any], picture: ET.Element) -> None:
    slots = groups(picture, "compaction", "slot")
    before = [group["word"] for group in slots if group["row"] == "before"]
    after = [group["word"] for group in slots if group["row"] == "after"]
    moved, count = page["moved"], int(page["accept_lens"][0])
    moves = list(zip(moved.source.tolist(), moved.target.tolist(), strict=True))[:count]
    shown = [(int(group["source"]), int(group["target"])) for group in groups(picture, "compaction", "move")]
    assert shown == moves
    expected = list(before)
    for source, target in moves:
        expected[target] = before[source]
    assert after == expected


def test_another_example_gives_another_picture(tmp_path: Path) -> None:
    text = PAGE.read_text()
    coins, shown = "[5/8, 0, 3/8, 0, 3/4, 0]", "([[0, 2, 4, -1]], [2])"
    assert coins in text
    assert shown in text
    changed = tmp_path / "reference.md"
    head = text[: text.index("It loses nothing, because at every node")].replace(coins, "[1/8, 0, 0, 0, 0, 0]")
    tail = text[text.index("## Compaction") : text.index("The bonus has no KV yet")]
    head = head.replace(shown, "([[0, 1, -1, -1]], [1])").replace("['a dog .']", "['the cat']")
    tail = tail.replace("([5, 7, 9, 0], [5, 6, 7, 0])", "([5, 6, 0, 0], [5, 6, 0, 0])")
    changed.write_text(head + tail.replace("saw a dog cat dog run", "saw the a cat dog run"))
    drawn = ET.fromstring(picture_of(example_of(changed)))
    (panel,) = groups(drawn, "verification by sampling", "panel")
    assert (panel["path"], panel["emitted"]) == ("0 1", "the cat")
