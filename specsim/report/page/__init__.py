"""Pages: a finding as one HTML file that needs nothing else, and an index of a run's findings.

What a page shows lies in it as JSON, `<script type="application/json" id="payload">`, format specsim.page/2:

    format, kind         "specsim.page/2"; "case" (of an operation), "streams" (of a scheduler) or "probe" (of a
                         scheduler, where its operations were not recorded)
    finding              rule, rule_label, sentence, severity, title, target, found_on, signature, where, part, who,
                         expected, actual, verdict: texts, "" for none; `rule_label` has the rule's name and number
    command              what replays it
    notes                sentences
    tables               title -> [[name, value], ...]: configuration, workload, digests
    source               {where, first, line, lines, note}, or null: the target's lines, the one of the finding being
                         `line`; added on the machine that has the target
    violations           [{event, rule, rule_label, sentence, part, where, who, expected, actual}, ...]

A case has `tensors`, [{name, role, shape, indices, first, values, expected, defined, differs, count, note}, ...]:
rows, by their leading `indices`, and columns from `first` on, of a window that holds the first difference; `role` is
"input", "output" or "expected" (of an implementation that raised), `count` how many elements differ in all.

A page of streams has what the host, the streams and the requests do over `columns` of time:

    lanes                names, the host first
    iterations           [{number, from}, ...]: the column at which each begins
    boxes                [{lane, from, to, name, more, where, kind, mark}, ...], kind "launch", "wait", "access" or
                         "run"; `mark` is the number of one of `pair` that it is, or 0
    links                [{kind, lane, from, to_lane, to}, ...] between columns of lanes: "run" from a launch to where
                         it runs, "order" of a stream behind another, "wait" of the host for a stream
    pair                 [{mark, column, text}, ...]: the accesses that the finding is about
    requests             [{rid, text, from, to, end, abort, passes, wrong}, ...]: columns of its arrival, its end and
                         the abort that its user sent (-1 for none), why it ended ("" for not), [{at, kind}, ...]

    play                 for going through its events, or null:

        agents, requests     names, in the order of their lanes
        events               [{number, agent, event, who, details, line, touches, column}, ...]; `line` is that of the
                             trace, `column` where its iteration begins
        changes              for each event what it changed of the state (`specsim.tiers.states`)
        pool_slots, page_size, rows
        wrong                null or {kind, name, who}, the "request" field or the "list" that the finding is about

Texts are as a reader may see them: control characters, invisible ones and halves of surrogate pairs are spelled out,
integers that JavaScript would round and floats that JSON lacks are texts.
"""
