"""A campaign is seen as it is: on its page, and by Prometheus."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.pages import HOSTILE
from specsim.cli import main
from specsim.errors import UsageError
from specsim.fuzz.merged import merged
from specsim.fuzz.metrics import CONTENT_TYPE, Counts, Served, serve, text_of
from specsim.fuzz.store import Store
from specsim.fuzz.work import Batch, BatchResult, RunFinding
from specsim.report.page.charts import POINTS_MAX, Chart, ChartLine, chart_of, span, thinned, ticks

SLOW, FAST = "sglang@slow", "sglang@fast"
ROWS = "ops:gather_rows kernel:gather_rows"
SLOTS = "ops:get_last_loc kernel:get_last_loc"
SIGNATURE = "scheduler:I12:Pool.free"


def found(index: int, replay: str, count: int = 1, title: str = "A slot has two owners", **more: Any) -> RunFinding:
    values = {"rule": "I12", "severity": "wrong-result", "reach": "default", "where": "pool.py:7", **more}
    size = (len(replay),)
    return RunFinding(
        **{"signature": SIGNATURE, "tier": "scheduler", "title": title, **values},
        index=index,
        count=count,
        size=size,
        replay=replay,
        cpu_seconds=0.5,
    )


def result_of(
    number: int,
    target: str = SLOW,
    *,
    shard: int = 0,
    features: dict[str, int] | None = None,
    findings: Sequence[RunFinding] = (),
    **more: Any,
) -> BatchResult:
    batch = Batch(3, shard, number, number * 10, 10, target, "scheduler")
    values = {"version": "1.0", "runs": 9, "events": 90, "seconds": 2.0, "cpu_seconds": 1.5, "refused": {"small": 1}}
    return BatchResult(batch=batch, features=features or {}, findings=tuple(findings), **{**values, **more})


def store_of(path: Path, results: Sequence[BatchResult]) -> Path:
    with Store.open(path, campaign=3) as store:
        for result in results:
            assert store.add(result)
    return path


class Read(HTMLParser):
    """What a page links to and loads, the texts of its tables' rows, and its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        self.links += [values["href"] or ""] if tag == "a" else []
        self.loaded += [values.get("src") or ""] if "src" in values else []
        if tag == "tr":
            self.rows.append([])
        self._cell = self._cell or tag in ("td", "th")
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def page_of(tmp_path: Path, *stores: Path) -> tuple[str, dict[str, Any]]:
    out, answer = tmp_path / "html", tmp_path / "answer.json"
    arguments = ["report", "--campaign", *map(str, stores), "--html", str(out), "--json", str(answer)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return (out / "index.html").read_text(encoding="utf-8"), json.loads(answer.read_text())


# The page


@pytest.fixture
def two_stores(tmp_path: Path) -> tuple[Path, Path]:
    """Two shards: both hit one finding of SLOW, the second one sooner."""
    one = store_of(
        tmp_path / "one.db",
        [
            result_of(0, features={SLOTS: 4, "ops:get_last_loc caller": 1}),
            result_of(1, FAST, features={ROWS: 2, SLOTS: 9}),
            result_of(2, findings=[found(25, '{"a": "larger"}', 3)], ended="killed by SIGSEGV"),
        ],
    )
    two = store_of(
        tmp_path / "two.db",
        [result_of(0, shard=1, features={SLOTS: 5}, findings=[found(4, "{}", 2)], version="1.1")],
    )
    return one, two


def test_stores_are_shown_as_one_and_each_batch_is_counted_once(tmp_path: Path, two_stores: tuple[Path, Path]) -> None:
    page, answer = page_of(tmp_path, *two_stores)
    rows = {tuple(row[:2]): row[2:] for row in Read(page).rows if len(row) > 2}
    assert rows[SLOW, "scheduler"][:4] == ["1.0, 1.1", "3", "27", "270"]
    assert rows[FAST, "scheduler"][:4] == ["1.0", "1", "9", "90"]
    assert answer["totals"]["target"][SLOW]["runs"] == 27
    assert {shard: total["found"] for shard, total in answer["totals"]["shard"].items()} == {"3:0": 0, "3:1": 1}
    assert answer["reached"][SLOW][SLOTS] == 9
    (finding,) = answer["findings"]
    assert (finding["count"], finding["shard"], finding["run"]) == (5, 1, 4)
    assert (finding["first_seen"], finding["last_seen"]) == ("1.0", "1.1")


def test_the_page_links_to_replay_files_that_it_wrote_the_smallest_first(
    tmp_path: Path, two_stores: tuple[Path, Path]
) -> None:
    page, answer = page_of(tmp_path, *two_stores)
    links = [link for link in Read(page).links if link.startswith("replays/")]
    assert [(tmp_path / "html" / link).read_text() for link in links] == ["{}", '{"a": "larger"}']
    assert [str(tmp_path / "html" / link) for link in links] == answer["findings"][0]["replays"]
    assert f"specsim replay {tmp_path}/html/{links[0]}" in page


def test_a_page_holds_no_script_loads_nothing_and_names_what_it_draws(
    tmp_path: Path, two_stores: tuple[Path, Path]
) -> None:
    page, _ = page_of(tmp_path, *two_stores)
    read = Read(page)
    assert read.loaded == []
    assert [
        values for tag, values in read.tags if any(name.startswith("on") or name == "style" for name in values)
    ] == []
    assert re.findall(r"<script>(.+?)</script>", page) == []
    drawn = [values for tag, values in read.tags if tag == "svg" and "aria-hidden" not in values]
    assert len(drawn) == 3
    assert all(values["role"] == "img" and values["aria-label"] for values in drawn)
    assert all(values.get("aria-label") for _, values in read.tags if values.get("role") == "region")


def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path) -> None:
    hostile = [result_of(0, HOSTILE[0], findings=[found(1, "{}", title=HOSTILE[2])], ended=HOSTILE[3].rstrip("\ud800"))]
    page, _ = page_of(tmp_path, store_of(tmp_path / "a.db", hostile))
    assert HOSTILE[0] not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert {tag for tag, _ in Read(page).tags} & {"img"} == set()
    assert all(Path(name).name == name for name in (path.name for path in (tmp_path / "html" / "replays").iterdir()))


def test_copies_of_one_campaign_are_refused(tmp_path: Path, two_stores: tuple[Path, Path]) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(two_stores[0].read_bytes())
    with pytest.raises(UsageError, match="both hold batch 0 of shard 0 of campaign 3; they are copies"):
        merged([two_stores[0], copy])


def test_campaigns_of_one_seed_on_other_targets_are_no_copies(tmp_path: Path) -> None:
    one, two = store_of(tmp_path / "a.db", [result_of(0)]), store_of(tmp_path / "b.db", [result_of(0, FAST)])
    assert len(merged([one, two]).batches) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--campaign", "none.db"], "there is no campaign in none.db"),
        (["--campaign", "text.db"], "text.db is no store of a campaign"),
        (["--campaign", "a.db", "a.db"], "a store is named twice"),
        (["--campaign", "a.db", "--html", "text.db/out"], "--html text.db/out: "),
        (["a.db"], "a.db is not a text file in UTF-8"),
        ([], "nothing is not the folder of a run"),
    ],
)
def test_bad_input_of_a_report_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    store_of(tmp_path / "a.db", [result_of(0)])
    (tmp_path / "text.db").write_text("this is no database, but it is longer than a header of SQLite would be")
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"specsim: {said}")
    assert "Traceback" not in told


def test_an_empty_store_has_a_page_too(tmp_path: Path) -> None:
    page, answer = page_of(tmp_path, store_of(tmp_path / "a.db", []))
    assert "0 open findings, in 0 runs" in page
    assert answer["findings"] == []


def test_a_store_is_shown_while_it_is_written(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db", campaign=3) as store:
        store.add(result_of(0))
        assert sum(batch.runs for batch in merged([tmp_path / "a.db"]).batches) == 9
        store.add(result_of(1))
        assert sum(batch.runs for batch in merged([tmp_path / "a.db"]).batches) == 18


# Charts


@given(st.floats(1e-3, 1e12))
def test_ticks_are_few_round_and_within(most: float) -> None:
    values = ticks(most)
    assert 2 <= len(values) <= 9
    assert values[0] == 0
    assert values[-1] <= most * 1.001
    assert {f"{value:.0e}"[0] for value in values[1:2]} <= {"1", "2", "5"}


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e9)), min_size=1, max_size=600))
def test_a_line_is_thinned_to_some_of_its_points_and_keeps_its_ends(points: list[tuple[float, float]]) -> None:
    points.sort(key=lambda point: point[0])
    kept = thinned(points)
    assert len(kept) <= POINTS_MAX
    assert set(kept) <= set(points)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert [at for at, _ in kept] == sorted(at for at, _ in kept)


@given(st.floats(0, 1e8), st.integers(1, 5))
def test_a_chart_of_any_length_is_drawn_inside_its_frame(seconds: float, count: int) -> None:
    points = [(seconds * n / count, float(n)) for n in range(count + 1)]
    drawn = chart_of(Chart("x", "", [ChartLine("a", points)]))
    (path,) = re.findall(r'class="series o0[^>]*? d="M([^"]+)"', drawn)
    numbers = [float(number) for number in re.split("[HV ]", path)]
    assert numbers
    assert all(0 <= x <= 720 for x in numbers)


def test_spans_are_reported_in_two_units() -> None:
    assert [span(s) for s in (0.5, 59, 61, 3600, 7384, 90000)] == [
        "0.5 s",
        "59 s",
        "1 min 1 s",
        "1 h",
        "2 h 3 min",
        "1 d 1 h",
    ]


# Prometheus

LINE = re.compile(r'(specsim_[a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (-?[\d.e+]+)')


def samples(text: str) -> dict[tuple[str, str], float]:
    """The samples of a text in Prometheus' format, which has a TYPE and a HELP before each name."""
    values, known = {}, set()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# "):
            known.add(tuple(line.split()[1:3]))
            continue
        parsed = LINE.fullmatch(line)
        assert parsed, line
        assert {("HELP", parsed[1]), ("TYPE", parsed[1])} <= known
        values[parsed[1], parsed[2] or ""] = float(parsed[3])
    assert text.endswith("\n")
    return values


def counts_of(tmp_path: Path, results: Sequence[BatchResult]) -> Counts:
    counts = Counts(start=5.5)
    with Store.open(tmp_path / "a.db", campaign=3) as store:
        for result in results:
            store.add(result)
            counts.take(result, store.findings())
        again = Counts(start=5.5)
        again.begin(store)
    assert again == counts
    return counts


def test_the_numbers_are_those_of_the_store_also_after_a_resume(tmp_path: Path) -> None:
    results = [result_of(0, features={SLOTS: 3}), result_of(1, findings=[found(11, "{}")], ended="hung")]
    seen = samples(text_of(counts_of(tmp_path, results)))
    labels = f'target="{SLOW}",tier="scheduler"'
    assert seen["specsim_runs_total", labels] == 18
    assert seen["specsim_events_total", labels] == 180
    assert seen["specsim_cpu_seconds_total", labels] == 3
    assert seen["specsim_deaths_total", labels] == 1
    assert seen["specsim_findings", f'target="{SLOW}",tier="scheduler",severity="wrong-result",state="open"'] == 1
    assert seen["specsim_features", f'target="{SLOW}"'] == 1


@given(st.text(max_size=30))
def test_any_name_of_a_target_can_be_scraped(name: str) -> None:
    counts = Counts(start=0.0)
    counts.take(result_of(0, name), ())
    escaped = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
    labels = f'target="{"".join(escaped.get(c, c) for c in name)}",tier="scheduler"'
    assert samples(text_of(counts))["specsim_runs_total", labels] == 9


@pytest.fixture
def served() -> Any:
    made = serve(0)
    yield made
    made.close()


def test_a_scrape_gets_what_was_shown_last(served: Served) -> None:
    served.show("a 1\n")
    served.show("a 2\n")
    with urllib.request.urlopen(served.url, timeout=5) as answer:
        assert answer.read() == b"a 2\n"
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    with pytest.raises(urllib.error.HTTPError, match="404"), urllib.request.urlopen(served.url + "x", timeout=5):
        pass


def test_a_client_that_says_nothing_keeps_nobody_waiting(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)):
        began = time.monotonic()
        served.show("a 3\n")
        with urllib.request.urlopen(served.url, timeout=5) as answer:
            assert answer.read() == b"a 3\n"
        assert time.monotonic() - began < 2


def test_a_port_in_use_is_one_sentence(served: Served) -> None:
    with pytest.raises(UsageError, match=rf"--metrics-port {served.port} of 127.0.0.1 cannot be had \(something else"):
        serve(served.port)
