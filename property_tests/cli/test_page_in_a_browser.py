"""The page of a finding in a real headless browser: what is seen at each event is what the trace says.

Needs Playwright and a Chromium that is installed (`SPECSIM_CHROMIUM` names another than the one on PATH); no browser is
fetched. With `SPECSIM_PICTURES=FOLDER` the pictures of docs/pages.md are written there.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.known_releases import FIXTURES, NEWEST
from property_tests.support.pages import HOSTILE, Outline, longer, made_up_payload, payload_in, renamed, states_of
from specsim.lifting.cache import Cache
from specsim.report.page.plain import plain, visible
from specsim.report.page.render import html_of

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install 'specsim-llm[browser]' adds it"
)
CHROMIUM = os.environ.get("SPECSIM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium for specsim-llm[browser]: apt-get install chromium adds it"
)
WIDTHS = (390, 820, 1400)
SCHEMES = ("light", "dark")
SCHEDULE = "slots-freed-under-a-running-request.json"
Open = Callable[..., Any]

# How far texts stand out from what is behind them, by WCAG's formula: [ratio, class, text] of each.
CONTRASTS = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (colours) => { for (const c of colours) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
  const linear = (v) => v / 255 <= .04 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const behind = (e) => e ? [...behind(e.parentElement), getComputedStyle(e).backgroundColor] : [];
  return [...document.querySelectorAll('h1,h2,h3,p,a,dt,dd,li,th,td,b,del,span,button,summary,code')]
    .filter(e => e.textContent.trim() && e.offsetParent).map(e => {
      const ground = behind(e), text = [...ground, getComputedStyle(e).color];
      const a = light(rgb(ground)), b = light(rgb(text));
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.className, e.textContent.slice(0, 30)]; });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a schedule that is made up."""
    path = tmp_path_factory.mktemp("page") / "out.html"
    path.write_text(html_of(made_up_payload()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def payload(file: Path) -> dict[str, Any]:
    return payload_in(file.read_text(encoding="utf-8"))


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Open]:
    """Opens a page; at the end no error was reported and nothing but files was asked for."""
    contexts, wrong = [], []

    def open_page(
        path: Path = file, width: int = 1400, scheme: str = "light", fragment: str = "", **options: Any
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on(
            "request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(request.url)
        )
        page.goto(f"{path.as_uri()}{fragment}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def words(text: str) -> list[str]:
    return text.split()


def current(page: Any) -> int:
    return int(page.input_value("#slider"))


LAST = 5
"""Number of the last event, which breaks the rule."""


def test_it_opens_at_the_broken_rule_and_says_what_broke(opened: Open, payload: dict[str, Any]) -> None:
    page = opened()
    assert current(page) == LAST
    assert "holds the KV of exactly the token at that position" in page.inner_text("h1")
    assert payload["violations"][0]["actual"] in page.inner_text(".changepanel")
    assert page.inner_text(".nowline.bad code").split() == ["decode", "r0", "r1"]


def test_each_step_shows_the_line_of_the_trace_and_the_state_behind_it(opened: Open, payload: dict[str, Any]) -> None:
    page, states = opened(), states_of(payload)
    page.keyboard.press("Home")
    for event, state in zip(payload["play"]["events"], states, strict=True):
        assert current(page) == event["number"]
        assert words(page.inner_text("#line")) == words(event["line"])[1:]
        assert words(page.inner_text("[aria-current=true]")) == words(event["line"])
        shown = page.evaluate(
            """() => ({
              cells: [...document.querySelectorAll('.grid .cell')].map(c => c.getAttribute('aria-label')),
              rulers: [...document.querySelectorAll('.ruler .scroll')].map(r => r.getAttribute('aria-label')),
              fields: [...document.querySelectorAll('.scroll > .fields > tbody > tr')].map(row =>
                [...row.cells].map(cell => (cell.lastChild?.textContent ?? ''))),
              head: [...document.querySelectorAll('.fields thead th')].map(cell => cell.textContent),
              queues: [...document.querySelectorAll('.pairs dt')]
                .map(dt => [dt.textContent, dt.nextSibling.textContent]),
            })"""
        )
        owners = state.get("owners", {})
        assert shown["rulers"] == [
            f"{name}: row {row}, committed {committed}, KVready {ready}, allocated {allocated}"
            for name, (row, committed, allocated, _, ready) in sorted(owners.items())
        ]
        for label in shown["cells"]:
            slot = label.split(":")[0].removeprefix("slot ")
            owner, position, holds, _ = state.get("slots", {}).get(slot, ["", -1, "", ""])
            assert (owner or "free") in label
            assert position < 0 or f"position {position}" in label
            assert holds in label
        rids = [rid for rid in payload["play"]["requests"] if f"request {rid}" in state]
        assert shown["head"][: len(rids)] == rids
        rows = {row[0]: row[1:] for row in shown["fields"]}
        for place, rid in enumerate(rids):
            assert rows["state"][place] == state[f"request {rid}"]["state"]
            assert rows["committed"][place] == str(state[f"request {rid}"]["committed"])
        assert dict(shown["queues"])["free slots"] == str(state["lists"]["free slots"])
        page.keyboard.press("ArrowRight")
    assert current(page) == LAST  # and not beyond


def test_what_an_event_changed_is_marked(opened: Open) -> None:
    page = opened(fragment="#e3")
    labels = page.eval_on_selector_all(".grid .cell.changed", "cells => cells.map(c => c.getAttribute('aria-label'))")
    assert [label.split(":")[0] for label in labels] == ["slot 7", "slot 8"]
    assert "free \u2192 r1 (7-8)" in page.inner_text(".changepanel")
    page.keyboard.press("End")
    assert "committed 2 \u2192 3" in page.inner_text(".changepanel")
    assert page.inner_text("td.new del >> nth=0")


def test_slider_buttons_links_and_keys_lead_to_an_event(opened: Open) -> None:
    page = opened()
    page.click("[aria-label='First event']")
    assert current(page) == 0
    page.click("[aria-label='Next event']")
    page.click("[aria-label='Next event']")
    page.click("[aria-label='Event before']")
    assert current(page) == 1
    page.fill("#slider", "4")
    assert page.url.endswith("#e4")
    page.click(".events button >> nth=3")
    assert current(page) == 3
    page.keyboard.press("v")
    assert current(page) == LAST
    box = page.locator(".track svg").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 2.5 / 6, box["y"] + 60)
    assert current(page) in (2, 3)


def test_it_plays_to_the_end_and_can_be_paused(opened: Open) -> None:
    page = opened(fragment="#e2")
    page.select_option("select", "10")
    page.keyboard.press("Space")
    assert page.inner_text(".play") == "Pause"
    sync_api.expect(page.locator("#slider")).to_have_value(str(LAST))
    assert page.inner_text(".play") == "Play"
    page.click(".play")
    page.click(".play")
    assert page.inner_text(".play") == "Play"
    assert current(page) < LAST


def test_the_slots_can_be_read_with_the_keyboard_alone(opened: Open) -> None:
    page = opened(fragment="#e3")
    page.focus(".grid .cell[tabindex='0']")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("slot 4: r0, position 1")
    assert page.inner_text("#slot-said").startswith("slot 4: r0, position 1")
    assert current(page) == 3
    assert page.locator(".grid .cell[tabindex='0']").count() == 1


def test_what_a_screen_reader_needs_is_there(opened: Open) -> None:
    page = opened()
    assert page.get_attribute("html", "lang") == "en"
    unnamed = """() => [...document.querySelectorAll('button, input, select, a, [role]')]
      .filter(e => e.getAttribute('role') !== 'status')
      .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)"""
    assert page.evaluate(unnamed) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    page.keyboard.press("ArrowLeft")
    assert words(page.inner_text("[role=status]"))[:2] == ["event", "4:"]
    assert page.get_attribute("#slider", "aria-valuetext").split()[:3] == ["4", "iteration", "2"]


def test_texts_stand_out_from_what_is_behind_them(opened: Open) -> None:
    page = opened()
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        ratios = page.evaluate(CONTRASTS)
        assert len(ratios) > 60
        assert [each for each in ratios if each[0] < 4.5] == []


def test_no_width_scrolls_sideways_and_pictures_can_be_taken(opened: Open, tmp_path: Path) -> None:
    folder = Path(os.environ.get("SPECSIM_PICTURES", tmp_path))
    page = opened()
    page.evaluate("document.querySelector('#command').textContent = 'specsim replay FILE'")
    page.evaluate("document.querySelector('.notes').remove()")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(f"document.querySelector('{'#player' if width < 700 else 'header'}').scrollIntoView()")
        page.evaluate("new Promise(requestAnimationFrame)")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(14, 18, 24)") == (scheme == "dark")
            assert page.locator(".pill.now.violation").count() == 1  # the event stays in view
            assert page.evaluate("(t => t.scrollLeft + t.clientWidth)(document.querySelector('.track'))") <= max(
                page.evaluate("document.querySelector('.extent').offsetWidth"),
                page.evaluate("document.querySelector('.track').clientWidth"),
            )
            picture = page.screenshot()
            assert len(picture) > 10_000
            (folder / f"page-{width}-{scheme}.png").write_bytes(picture)


def test_the_page_without_a_script_has_the_trace(opened: Open, payload: dict[str, Any]) -> None:
    page = opened(java_script_enabled=False)
    page.click("#trace summary")
    events = payload["play"]["events"]
    lines = page.inner_text("#trace pre").splitlines()
    assert [words(line) for line in lines[: len(events)]] == [words(event["line"]) for event in events]
    assert not page.is_visible("#copy")


def test_hostile_text_is_shown_and_never_run(opened: Open, payload: dict[str, Any], tmp_path: Path) -> None:
    names = {"r0": HOSTILE[0], "r1": HOSTILE[1], "host": HOSTILE[3]}
    hostile = plain(renamed(payload, names))
    hostile["finding"]["title"] = hostile["finding"]["actual"] = visible(HOSTILE[4])
    (tmp_path / "hostile.html").write_text(html_of(hostile), encoding="utf-8")
    for width in (390, 1400):
        page = opened(tmp_path / "hostile.html", width=width)
        for _ in range(LAST + 1):
            page.keyboard.press("ArrowLeft")
        assert current(page) == 0
        page.keyboard.press("End")
        assert page.evaluate("window.ran") is None
        assert page.locator("img, a[onclick], *[onerror]").count() == 0
        heads = page.eval_on_selector_all(".fields thead th", "cells => cells.map(c => c.textContent)")
        assert heads[:2] == [visible(HOSTILE[0]), "__proto__"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_thousands_of_events_stay_usable(opened: Open, payload: dict[str, Any], tmp_path: Path) -> None:
    long = longer(payload, 840)
    (tmp_path / "long.html").write_text(html_of(long), encoding="utf-8")
    started = time.perf_counter()
    page = opened(tmp_path / "long.html")
    assert current(page) == len(long["play"]["events"]) - 1
    assert time.perf_counter() - started < 10
    step = """() => { const times = [];
      const slider = document.querySelector('#slider');
      for (const to of [0, 4000, 17, 2500, 5039, 1, 2, 3, 4, 5]) {
        const began = performance.now();
        slider.value = to;
        slider.dispatchEvent(new Event('input'));
        times.push(performance.now() - began + document.body.offsetHeight * 0);
      }
      return times.sort((a, b) => a - b)[5]; }"""
    assert page.evaluate(step) < 250  # milliseconds, the median; a few on an idle machine
    assert page.locator(".track svg rect.pill").count() < 80  # only what is in view is drawn


def test_a_schedule_that_ended_its_process_has_a_page_without_events(
    opened: Open, payload: dict[str, Any], tmp_path: Path
) -> None:
    ended = {**payload, "play": None}
    (tmp_path / "ended.html").write_text(html_of(ended), encoding="utf-8")
    page = opened(tmp_path / "ended.html")
    assert page.is_visible("#copy")
    assert not page.is_visible("#player")


WRONG_MASK = """
from specsim.contracts.registry import REFERENCE


def build_chain_tree(**given):
    tokens, mask, *links = REFERENCE["build_chain_tree"](**given)
    return tokens, ~mask, *links


provider = {"build_chain_tree": build_chain_tree}
"""


def test_the_case_of_a_wrong_function_is_a_page_of_its_tensors(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG_MASK)
    specsim(tmp_path, "check", "mine:provider", "--cases", "20", "--device", "cpu")
    (found,) = (tmp_path / "specsim-findings").glob("*.json")
    specsim(tmp_path, "replay", str(found), "--target", "mine:provider", "--html", "case.html")
    tensors = payload_in((tmp_path / "case.html").read_text(encoding="utf-8"))["tensors"]
    page = opened(tmp_path / "case.html")
    differing = sum(tensor["count"] for tensor in tensors)
    assert page.locator("td.differs").count() == differing > 0
    assert page.locator(".tensor.wrong").count() == sum(1 for tensor in tensors if tensor["count"])
    assert page.locator(".tensor").count() == len(tensors)
    folder = Path(os.environ.get("SPECSIM_PICTURES", tmp_path))
    page.evaluate("document.querySelector('#command').textContent = 'specsim replay FILE'")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert [each for each in page.evaluate(CONTRASTS) if each[0] < 4.5] == []
            picture = page.screenshot()
            if (width, scheme) in ((1400, "light"), (390, "dark")):  # those of the documentation
                (folder / f"page-of-a-case-{width}-{scheme}.png").write_bytes(picture)


def test_a_case_is_shown_as_heat_maps(opened: Open, tmp_path: Path) -> None:
    from property_tests.support.pages import HERE, op_answer, op_replay
    from specsim.report.page.payload import payload_of

    (tmp_path / "case.html").write_text(html_of(payload_of(op_replay(), op_answer(), HERE)), encoding="utf-8")
    page = opened(tmp_path / "case.html", width=390)
    assert words(page.inner_text("td.differs")) == ["7", "not", "5"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert Outline(page.content()).elements
    page.click("#copy")
    sync_api.expect(page.locator("#copy")).to_have_text("Copied")


# ---- the page of a release's schedule, and the index of a run


@pytest.fixture(scope="module")
def schedule(release: Callable[[str], Any], wheel_cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a schedule whose slots are freed under a running request, and then another's."""
    release(NEWEST)
    folder = tmp_path_factory.mktemp("schedule")
    arguments = ("--target", f"sglang=={NEWEST}", "--cache-dir", str(wheel_cache.folder), "--html", "out.html")
    ended = specsim(folder, "replay", str(FIXTURES / "replays" / SCHEDULE), *arguments)
    assert ended.returncode == 1, ended.stderr
    return folder / "out.html"


def looked_at(page: Any, folder: Path, name: str) -> None:
    """No width scrolls sideways, and every text stands out; pictures are taken, those of the documentation of it."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 1400 if width == 1400 else 900})
        page.evaluate("(document.querySelector('#player') || document.body).scrollIntoView()")
        page.evaluate("new Promise(requestAnimationFrame)")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert [each for each in page.evaluate(CONTRASTS) if each[0] < 4.5] == []
            picture = page.screenshot()
            if (width, scheme) in ((1400, "light"), (390, "dark")):
                (folder / f"page-of-{name}-{width}-{scheme}.png").write_bytes(picture)


def test_the_slot_that_a_scheduler_read_wrongly_is_red_where_its_page_opens(
    opened: Open, schedule: Path, tmp_path: Path
) -> None:
    page = opened(schedule)
    shown = payload_in(schedule.read_text(encoding="utf-8"))
    slot = re.search(r"slot (\d+)", shown["finding"]["actual"])
    assert slot is not None
    wrong = page.locator(".grid .cell.differs .id").all_inner_texts()
    assert slot[1] in wrong
    assert page.locator(".pill.now.violation").count() == 1
    assert page.locator(".ruler").count() >= 1
    event = current(page)
    page.keyboard.press("Home")
    assert current(page) == 0
    assert page.locator(".grid .cell.differs").count() == 0
    page.keyboard.press("v")
    assert current(page) == event
    assert page.locator("#track svg").count() == 1
    page.evaluate("document.querySelector('#command').textContent = 'specsim replay FILE'")
    looked_at(page, Path(os.environ.get("SPECSIM_PICTURES", tmp_path)), "a-scheduler")


def test_an_index_has_what_is_new_first_and_fits_every_width(opened: Open, tmp_path: Path) -> None:
    from specsim.report.page.index import Entry, IndexTable, index_of

    finding = {
        "rule_label": "finished-claim (I64)",
        "severity": "undefined-behaviour",
        "target": "sglang@.",
        "title": "resolve of 00000000-0000-4000-8000-000000000000: expected no claim, got a claim of 12 positions",
        "signature": "scheduler:I64:resolve",
    }
    long = "srt/managers/scheduler_components/batch_result_processor.py:770"
    facts = [("rule", "a result changes nothing of a finished request"), ("triage", "new here: " + "base " * 30)]
    facts += [("changed", f"reset_for_retract {long}"), ("where", long), ("signature", "scheduler:S2:" + "race-" * 20)]
    entries = [Entry(f"{n}.json", "#", finding, "", "New" if n < 2 else "Not new", facts) for n in range(5)]
    entries.append(Entry(f"{'x' * 90}.json", "", {}, f"{'y' * 200} does not run it"))
    tables = [
        IndexTable("Which release has which bug", "a note", ["finding", *"abcdefghijklmnopq"], [["f", *["ok"] * 17]])
    ]
    (tmp_path / "index.html").write_text(index_of("specsim.json", entries, tables), encoding="utf-8")
    page = opened(tmp_path / "index.html")
    assert page.locator("h2").all_inner_texts()[:3] == ["New 2", "Not new 3", "Without a page"]
    looked_at(page, tmp_path, "a-report")
