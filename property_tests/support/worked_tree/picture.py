"""An `Example` as one SVG in four panels: drafted, verified greedily, verified by sampling, compacted.

Nothing is said by colour alone: accepted is solid, ticked and blue, rejected is dashed, crossed and orange. Groups
carry `data-` attributes with what they stand for. The same example gives the same bytes; nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from xml.sax.saxutils import escape, quoteattr

from property_tests.support.worked_tree.example import Candidate, Example, Walk

WIDTH = 720  # units of the drawing; shown 900 pixels wide where there is room
SHOWN_WIDTH = 900
MARGIN = 20
INNER = WIDTH - 2 * MARGIN

# Okabe and Ito's palette, darkened where text needs the contrast: ink, muted, line, page; then line and fill of what is
# accepted, rejected and bonus.
LIGHT = ("#1f2328", "#59636e", "#818b98", "#ffffff", "#0065a3", "#dcecf9", "#a84300", "#fdf0e6", "#00704f", "#d8f3e8")
DARK = ("#e6edf3", "#a2abb5", "#768390", "#0d1117", "#56b4e9", "#10314a", "#f0a132", "#35230b", "#3ccba0", "#0b3a2c")

STYLE = """
text {{ font: 17px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: {ink}; }}
.head {{ font-size: 22px; font-weight: 700; }} .word {{ font-weight: 700; }} .middle {{ text-anchor: middle; }}
.end {{ text-anchor: end; }} .muted {{ fill: {muted}; }} .page {{ fill: {page}; }} .rule {{ stroke: {line}; }}
.box, .edge, .tick, .cross, .move {{ fill: none; stroke: {line}; stroke-width: 2; }}
.box {{ fill: {page}; }}
.kept {{ stroke: {ink}; }} .dropped {{ stroke-dasharray: 2 5; }}
.accepted {{ stroke: {accepted}; stroke-width: 3.5; }} .box.accepted {{ fill: {accepted_fill}; }}
.rejected {{ stroke: {rejected}; stroke-dasharray: 7 5; }} .box.rejected {{ fill: {rejected_fill}; }}
.bonus {{ stroke: {bonus}; stroke-width: 3.5; }} .box.bonus {{ fill: {bonus_fill}; }}
.tick, .cross {{ stroke-width: 3.5; stroke-linecap: round; stroke-linejoin: round; stroke-dasharray: none; }}
.tick {{ stroke: {accepted}; }} .cross {{ stroke: {rejected}; }} .tick.bonus {{ stroke: {bonus}; }}
.move {{ stroke: {accepted}; stroke-width: 3.5; }} .head-of-move {{ fill: {accepted}; }}
.coin {{ fill: {ink}; stroke: {ink}; stroke-width: 3; }} .badge {{ fill: {ink}; }}
.on-badge {{ fill: {page}; font-weight: 700; }}
"""
COLOURS = (
    "ink",
    "muted",
    "line",
    "page",
    *(f"{what}{use}" for what in ("accepted", "rejected", "bonus") for use in ("", "_fill")),
)


class Canvas:
    """Lines of SVG from the top down; `y` is where the next panel's next row begins."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.y = 0.0

    def add(self, line: str) -> None:
        self.lines.append(line)

    def text(self, x: float, y: float, words: str, classes: str = "") -> None:
        self.add(f'<text x="{_n(x)}" y="{_n(y)}"{_class(classes)}>{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, classes: str, corner: int = 8) -> None:
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{corner}"'
        self.add(f'<rect {place} class="box {classes}"/>')

    def path(self, points: str, classes: str) -> None:
        self.add(f'<path d="{points}" class="{classes}"/>')

    def tick(self, x: float, y: float, classes: str = "") -> None:
        self.path(f"M{_n(x - 6)} {_n(y)}l4 5l8 -10", f"tick {classes}".strip())

    def cross(self, x: float, y: float) -> None:
        self.path(f"M{_n(x - 5)} {_n(y - 5)}l10 10m0 -10l-10 10", "cross")

    def badge(self, x: float, y: float, number: int) -> None:
        self.add(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="12" class="badge"/>')
        self.text(x, y + 6, str(number), "middle on-badge")

    def open(self, kind: str, **data: object) -> None:
        """Begin a group whose `data-` attributes say what it stands for."""
        attributes = "".join(f" data-{name}={quoteattr(str(value))}" for name, value in data.items())
        self.add(f'<g data-kind="{kind}"{attributes}>')

    def close(self) -> None:
        self.add("</g>")

    def panel(self, title: str, captions: Sequence[str], **data: object) -> None:
        """Begin a panel: a rule, a title, lines of text."""
        if self.y > 0:
            self.path(f"M{MARGIN} {_n(self.y)}h{INNER}", "rule")
        self.open("panel", name=title.partition(" ")[2].lower(), **data)
        self.text(MARGIN, self.y + 36, title, "head")
        for number, caption in enumerate(captions):
            self.text(MARGIN, self.y + 64 + 24 * number, caption, "muted")
        self.y += 76 + 24 * len(captions)


def picture_of(example: Example) -> str:
    """The SVG, with a line feed at its end."""
    canvas = Canvas()
    _drafted(canvas, example)
    _greedy(canvas, example)
    _sampled(canvas, example)
    _compacted(canvas, example)
    height = int(canvas.y)
    shown = f'width="{SHOWN_WIDTH}" height="{height * SHOWN_WIDTH // WIDTH}" viewBox="0 0 {WIDTH} {height}"'
    light = STYLE.format(**dict(zip(COLOURS, LIGHT, strict=True))).strip()
    dark = STYLE.format(**dict(zip(COLOURS, DARK, strict=True))).strip()
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {shown} role="img" aria-labelledby="title desc">',
            '<title id="title">One tree, drafted, verified and compacted</title>',
            f'<desc id="desc">{escape(_described(example))}</desc>',
            f"<style>\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>",
            f'<rect width="{WIDTH}" height="{height}" class="page"/>',
            *canvas.lines,
            "</svg>\n",
        ]
    )


def _described(example: Example) -> str:
    kept = ", ".join(f"{c.word} with score {c.score} as node {c.node}" for c in example.candidates if c.node > 0)
    moves = ", ".join(f"{source} to {target}" for source, target in example.moves if source != target)
    return (
        f"Drafted: of {len(example.candidates)} candidates after the root {example.root}, kept are {kept}. "
        f"Greedy verification accepts the nodes {_listed(example.greedy.path)} and emits "
        f"{_quoted(example.greedy)}, the last as the bonus. "
        f"Verification by sampling, with coins {', '.join(str(example.coins[n]) for n in example.sampled.path)} at the "
        f"nodes visited, accepts the nodes {_listed(example.sampled.path)} and emits {_quoted(example.sampled)}. "
        f"Compaction of that path moves KV from slot {moves}; the slots of the sequence and the path are then "
        f"side by side."
    )


def _drafted(canvas: Canvas, example: Example) -> None:
    captions = (
        "Every candidate with its score, the product along its path.",
        "Solid: kept, with its node number. Dotted: dropped.",
    )
    canvas.panel("1 Drafted", captions)
    children: dict[int, list[int]] = {}
    for candidate in example.candidates:
        children.setdefault(candidate.parent, []).append(candidate.flat_id)
    rows = _rows(-1, children)
    box_width, box_height, pitch_y = 134.0, 38.0, 50.0
    pitch_x = (INNER - box_width) / example.num_steps
    for step in range(-1, example.num_steps):
        name = "root" if step < 0 else f"step {step}"
        canvas.text(MARGIN + (step + 1) * pitch_x + box_width / 2, canvas.y, name, "middle muted")
    top = canvas.y + 16

    def left(candidate: Candidate) -> float:
        return MARGIN + (candidate.step + 1) * pitch_x

    def middle(flat_id: int) -> float:
        return top + rows[flat_id] * pitch_y + box_height / 2

    for candidate in example.candidates:
        state = "kept" if candidate.node > 0 else "dropped"
        start, end = left(candidate) - pitch_x + box_width, left(candidate)
        canvas.path(_curve(start, middle(candidate.parent), end, middle(candidate.flat_id)), f"edge {state}")
    root = Candidate(-1, example.root, Fraction(1), -1, -1, 0)
    for candidate in (root, *example.candidates):
        state = "kept" if candidate.node >= 0 else "dropped"
        x, y = left(candidate), middle(candidate.flat_id)
        canvas.open("candidate", flat_id=candidate.flat_id, word=candidate.word, score=candidate.score, state=state)
        canvas.box(x, y - box_height / 2, box_width, box_height, state)
        canvas.text(x + 20, y + 6, candidate.word, "word" if state == "kept" else "muted")
        canvas.text(x + box_width - 10, y + 6, str(candidate.score), "end" if state == "kept" else "end muted")
        if candidate.node >= 0:
            canvas.badge(x, y, candidate.node)
        canvas.close()
    canvas.close()
    canvas.y = top + (max(rows.values()) + 1) * pitch_y + 20


def _greedy(canvas: Canvas, example: Example) -> None:
    path, emitted = example.greedy.path, example.greedy.emitted
    captions = (
        "Below each node the target's word after it. The walk goes to the child",
        "that holds this word; the word after the last node is the bonus.",
    )
    canvas.panel("2 Greedy verification", captions, path=_listed(path), emitted=_quoted(example.greedy))
    rows = _rows(0, {number: list(node.children) for number, node in enumerate(example.nodes)})
    box_width, box_height, pitch_y = 106.0, 40.0, 86.0
    pitch_x = (INNER - 12 - box_width) / (example.num_steps + 1)
    top = canvas.y

    def left(node: int) -> float:
        return MARGIN + 12 + example.nodes[node].depth * pitch_x

    def middle(node: int) -> float:
        return top + rows[node] * pitch_y + box_height / 2

    bonus_x = MARGIN + 12 + (example.num_steps + 1) * pitch_x
    for number, node in enumerate(example.nodes):
        if node.parent >= 0:
            state = "accepted" if number in path else "rejected"
            start = left(node.parent) + box_width
            canvas.path(_curve(start, middle(node.parent), left(number), middle(number)), f"edge {state}")
    last = path[-1]
    canvas.path(_curve(left(last) + box_width, middle(last), bonus_x, middle(last)), "edge bonus")
    for number, node in enumerate(example.nodes):
        state = "accepted" if number in path else "rejected"
        x, y = left(number), middle(number)
        canvas.open("node", node=number, word=node.word, says=node.says, state=state)
        canvas.box(x, y - box_height / 2, box_width, box_height, state)
        canvas.text(x + 20, y + 6, node.word, "word")
        canvas.badge(x, y, number)
        (canvas.tick if number in path else canvas.cross)(x + box_width - 18, y)
        canvas.text(x + box_width / 2, y + 42, f"then {node.says}", "middle" if number in path else "middle muted")
        canvas.close()
    canvas.open("bonus", word=emitted[-1])
    canvas.box(bonus_x, middle(last) - box_height / 2, box_width, box_height, "bonus", corner=20)
    canvas.text(bonus_x + box_width / 2, middle(last) + 6, emitted[-1], "middle word")
    canvas.text(bonus_x + box_width / 2, middle(last) + 42, "bonus", "middle")
    canvas.close()
    canvas.y = top + (max(rows.values()) + 1) * pitch_y - 4
    _outcome(canvas, example.greedy)
    canvas.close()


def _sampled(canvas: Canvas, example: Example) -> None:
    path, emitted = example.sampled.path, example.sampled.emitted
    captions = (
        "At each node visited, its children share out the node's coin by the",
        "target's probabilities. The first whose end lies beyond the coin is accepted.",
    )
    canvas.panel("3 Verification by sampling", captions, path=_listed(path), emitted=_quoted(example.sampled))
    for number, following in itertools.zip_longest(path, path[1:]):
        node, coin = example.nodes[number], example.coins[number]
        looked_at = node.children if following is None else node.children[: node.children.index(following) + 1]
        shares: list[tuple[str, Fraction, str]] = []
        for child in node.children:
            word = example.nodes[child].word
            state = "accepted" if child == following else "rejected" if child in looked_at else "dropped"
            shares.append((word, node.law.get(word, Fraction(0)), state))
        drafted = {word for word, _, _ in shares}
        shares += [(word, p, "dropped") for word, p in node.law.items() if word not in drafted]
        if len(path) <= example.num_steps or following is not None:
            canvas.open("visit", node=number, coin=coin)
            _bar(canvas, f"node {number}, {node.word}: coin {coin}", shares, coin, ticks=len(drafted))
            canvas.close()
    last = example.nodes[path[-1]]
    rejected = {example.nodes[child].word for child in last.children} if len(path) <= example.num_steps else set()
    law = [
        (word, p, "bonus" if word == emitted[-1] else "dropped") for word, p in last.law.items() if word not in rejected
    ]
    left = sum((p for _, p, _ in law), Fraction(0))
    title = f"what is left of the law after {last.word}, {left} in all: coin {example.final_coin} of that"
    canvas.open("final", coin=example.final_coin, word=emitted[-1])
    _bar(canvas, title, law, example.final_coin * left, ticks=len(law))
    canvas.close()
    _outcome(canvas, example.sampled)
    canvas.close()


def _bar(canvas: Canvas, title: str, shares: Sequence[tuple[str, Fraction, str]], coin: Fraction, ticks: int) -> None:
    """A law as a bar from 0 to its sum, cut into shares (word, probability, state), with the coin across it.

    The first `ticks` shares have the cumulative mass at their end written below.
    """
    total = sum((p for _, p, _ in shares), Fraction(0))
    coin_x = MARGIN + INNER * float(coin / total)
    canvas.text(MARGIN, canvas.y + 4, title)
    top, height = canvas.y + 32, 44.0
    mass = Fraction(0)
    canvas.text(MARGIN, top + height + 22, "0", "middle muted")
    for number, (word, p, state) in enumerate(shares):
        x, width = MARGIN + INNER * float(mass / total), INNER * float(p / total)
        mass += p
        canvas.open("share", word=word, p=p, end=mass, state=state)
        canvas.box(x + 1.5, top, width - 3, height, state, corner=3)
        shown = f"{word} {p}"
        middle = top + height / 2
        before_coin, after_coin = coin_x - x, x + width - coin_x  # the text stands on the wider side of the coin
        on_the_left = not 0 < before_coin < width or before_coin >= after_coin
        if state == "dropped":
            within = width if not 0 < before_coin < width else max(before_coin, after_coin)
            place = x + within / 2 if on_the_left else x + width - within / 2
            canvas.text(place, middle + 6, shown, "middle muted")
        else:
            canvas.text(
                x + 34 if on_the_left else x + width - 12, middle + 6, shown, "word" if on_the_left else "word end"
            )
            if state == "rejected":
                canvas.cross(x + 18, middle)
            else:
                canvas.tick(x + 17, middle, "bonus" if state == "bonus" else "")
        if number < ticks or mass == total:
            canvas.text(x + width, top + height + 22, str(mass), "middle muted")
        canvas.close()
    canvas.path(f"M{_n(coin_x)} {_n(top - 4)}v{_n(height + 8)}M{_n(coin_x)} {_n(top - 4)}l-6 -11h12z", "coin")
    canvas.y = top + height + 56


def _compacted(canvas: Canvas, example: Example) -> None:
    path = example.sampled.path
    slot_of = [node.slot for node in example.nodes]
    front = slot_of[: len(path)]
    holes = [slot for node, slot in enumerate(slot_of) if node not in path and slot < slot_of[path[-1]]]
    captions = (
        "Each slot with the word whose KV it holds. The rejected nodes in slots",
        f"{_listed(holes, ' and ')} are holes in the accepted path; its KV moves to the front.",
    )
    moves = " ".join(f"{source}>{target}" for source, target in example.moves)
    canvas.panel("4 Compaction", captions, moves=moves, seq_len=example.seq_len + len(path))
    count = len(example.before)
    pitch = INNER / count
    top, height, gap = canvas.y + 24, 58.0, 70.0
    states = [
        {slot: "accepted" if node in path else "rejected" for node, slot in enumerate(slot_of)},
        {slot: "accepted" if slot in front else "dropped" for slot in slot_of},
    ]
    for row, (name, words) in enumerate((("before", example.before), ("after", example.after))):
        y = top + row * (height + gap)
        for slot, word in enumerate(words):
            x = MARGIN + slot * pitch
            state = states[row].get(slot, "kept" if word else "dropped")
            canvas.open("slot", row=name, slot=slot, word=word, state=state)
            canvas.box(x + 3, y, pitch - 6, height, state, corner=4)
            canvas.text(x + pitch / 2, y + 26, word, "middle muted" if state == "dropped" else "middle word")
            if row == 0:
                canvas.text(x + pitch / 2, y - 8, str(slot), "middle muted")
            if state == "rejected":
                canvas.cross(x + pitch / 2, y + 43)
            elif state == "accepted":
                canvas.tick(x + pitch / 2, y + 43)
            canvas.close()
    for source, target in example.moves:
        start, end = (MARGIN + (slot + 0.5) * pitch for slot in (source, target))
        y = top + height + 4
        canvas.open("move", source=source, target=target)
        bend = y + gap / 2
        curve = f"C{_n(start)} {_n(bend)} {_n(end)} {_n(bend - 20)} {_n(end)} {_n(y + gap - 20)}"
        canvas.path(f"M{_n(start)} {_n(y)}{curve}", "move")
        canvas.path(f"M{_n(end - 7)} {_n(y + gap - 22)}h14l-7 13z", "head-of-move")
        canvas.close()
    y = top + 2 * height + gap
    parts = (
        ("padding", 0, 1, "muted"),
        (
            f"the sequence, {example.seq_len} before and {example.seq_len + len(path)} now",
            1,
            1 + example.seq_len + len(path),
            "",
        ),
        ("stale, free", front[-1] + 1, count, "muted"),
    )
    for words_below, first, end_slot, classes in parts:
        x, width = MARGIN + first * pitch + 3, (end_slot - first) * pitch - 6
        canvas.path(f"M{_n(x)} {_n(y + 8)}v8h{_n(width)}v-8", "edge")
        canvas.text(x + width / 2, y + 38, words_below, f"middle {classes}".strip())
    canvas.text(
        MARGIN,
        y + 72,
        f"The bonus, \u201c{example.sampled.emitted[-1]}\u201d, has no KV yet: it is the root of the next tree.",
    )
    canvas.close()
    canvas.y = y + 92


def _outcome(canvas: Canvas, walk: Walk) -> None:
    count = len(walk.path)
    canvas.text(MARGIN, canvas.y + 8, f"Emitted: {_quoted(walk)}", "word")
    canvas.text(WIDTH - MARGIN, canvas.y + 8, f"accept_token_num {count - 1}, accept_lens {count}", "end muted")
    canvas.y += 32


def _rows(root: int, children: dict[int, list[int]]) -> dict[int, float]:
    """The row of each node: leaves one below the other, parents halfway between their first and last child."""
    rows: dict[int, float] = {}
    leaves = itertools.count()

    def place(node: int) -> None:
        family = children.get(node, [])
        for child in family:
            place(child)
        rows[node] = (rows[family[0]] + rows[family[-1]]) / 2 if family else float(next(leaves))

    place(root)
    return rows


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    bend = (x + to_x) / 2
    return f"M{_n(x)} {_n(y)}C{_n(bend)} {_n(y)} {_n(bend)} {_n(to_y)} {_n(to_x)} {_n(to_y)}"


def _listed(numbers: Sequence[int], separator: str = " ") -> str:
    return separator.join(str(number) for number in numbers)


def _quoted(walk: Walk) -> str:
    return " ".join(walk.emitted)


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _n(value: float) -> str:
    """A coordinate: one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")
