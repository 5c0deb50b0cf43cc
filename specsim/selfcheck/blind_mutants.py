"""Further mutants, written by someone who has read neither the rules nor what checks them, after these were frozen.

They are scored apart: the rules and the mutants of the catalogue were written side by side, these tell how much of that
carries over. One that is not found is a result, and never makes a test or a command fail.

Whoever adds one reads `specsim/engine`, and nothing of `specsim/rules`. Ids are Z01, Z02 and so on;
`references` may be empty; everything else is as `specsim.selfcheck.mutant` says. None is changed after its first hunt.
"""

from __future__ import annotations

from specsim.selfcheck.mutant import Mutant

BLIND: tuple[Mutant, ...] = (
    Mutant(
        "Z01",
        "admission does not count the outputs of a request that was retracted and waits again",
        (),
        "specsim.engine.admission",
        "need = ceil_to(fill_len + self._config.reserve, page_size)",
        "need = ceil_to(len(request.prompt) + self._config.reserve, page_size)",
    ),
    Mutant(
        "Z02",
        "a pause retracts everybody and leaves the batch marked as full",
        (),
        "specsim.engine.loop",
        "self._futures, self._merging_rows, self._batch_is_full = Futures(), [], False",
        "self._futures, self._merging_rows = Futures(), []",
    ),
    Mutant(
        "Z03",
        "a use makes a node younger than its parent, so one pass of an eviction misses parents that become leaves",
        (),
        "specsim.engine.memory.radix",
        "for node in path[:0:-1]:  # the root has no age",
        "for node in path[1:]:  # the root has no age",
    ),
    Mutant(
        "Z04",
        "a session's turn keeps the page of its first new position, for which it then gets another",
        (),
        "specsim.engine.accounting",
        "self._free(held, ceil_to(prefix_len, self._memory.config.page_size))",
        "self._free(held, ceil_to(prefix_len + 1, self._memory.config.page_size))",
    ),
    Mutant(
        "Z05",
        "a lock in a radix cache keeps the window rounded down to whole pages",
        (),
        "specsim.engine.memory.window_tree",
        "self._kept = ceil_to(window, swa.page_size)  # a lock keeps whole pages",
        "self._kept = window // swa.page_size * swa.page_size  # a lock keeps whole pages",
    ),
    Mutant(
        "Z06",
        "the relay's ring has room for one launch of each other row, although a prefill in chunks is several",
        (),
        "specsim.engine.relay",
        "launches = -(-config.context_len // config.chunk_size) if config.chunk_size else 1",
        "launches = 1",
    ),
    Mutant(
        "Z07",
        "each further layer of the drafter goes on from the first layer's draft, not from that of the layer before",
        (),
        "specsim.engine.draft",
        "ids = rotate_input_ids(ids, accept_lens, stride, [draft_token_of(of_row[-1]) for of_row in seeds])",
        "ids = rotate_input_ids(ids, accept_lens, stride, [draft_token_of(of_row[0]) for of_row in seeds])",
    ),
    Mutant(
        "Z08",
        "behind a mixed chunk, the mask's grammars read the tokens of the prefill's rows only",
        (),
        "specsim.engine.streams",
        "for part in before.parts:",
        "for part in (before,):",
    ),
    Mutant(
        "Z09",
        "logprob rows are written for the requests that want them only, and read at the place in the whole batch",
        (),
        "specsim.engine.device",
        "if returns_rows:",
        "if row.request.turn.return_logprob:",
    ),
    Mutant(
        "Z10",
        "of the text before a run, one letter too few is searched for a stop string that ends in the run",
        (),
        "specsim.engine.stop_strings",
        "text = text[max(len(text) + 1 - max(map(len, stop)), 0) :]",
        "text = text[max(len(text) + 2 - max(map(len, stop)), 0) :]",
    ),
)
