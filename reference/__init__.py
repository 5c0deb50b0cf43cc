"""The reference: every operation in plain PyTorch, for a reader who knows EAGLE-2 and no serving engine.

Read it in this order:

* `drafting`     which candidates each draft step expands, and which of all become a tree; the tree of a chain
* `tree`         the kept candidates as a tree: mask, positions, links
* `masks`        the same tree as links, as a mask, as a mask of bits, and back
* `verify`       the walk that accepts the drafts that greedy decoding would have produced
* `logits`       penalties, bias, grammar, temperature, top-k, top-p and min-p, after every node of a tree
* `sampling`     the walks for a target model that samples; exact enumeration proves that they are lossless
                 (`specsim.contracts.losslessness`)
* `accepted`     what follows the walk: emitted tokens, new lengths, positions, slots to keep and to free
* `cache_locs`   which KV slots a step enters into the page table, and which ones it reads
* `kv`           slots over pages, where the drafts of a tree go, what they attend to, and the move of an accepted path
* `verify_logits` all of a verification at once, greedy or not: from the logits to what the next step begins with
* `multi_layer`  drafts by several layers, each with KV and attention metadata of its own
* `ragged_drafts` verification of drafts in one flat row, and what follows it, as engines of another make keep them
* `deferred`     rejections that are put off where the next drafts are accepted
* `draft_inputs` what a pass of the draft model reads, and where it writes
* `ragged_verify` chains of which a prefix is verified, as long as a confidence says
* `block_drafts` drafters that give a whole chain or tree from one pass of a model
* `step_inputs`  inputs of a step whose requests are rows of state on the device, and what follows it
* `draft_steps`  what drafters read of such a step, and how they go on from one draft to the next
* `estimates`    how likely each draft is to be accepted, and what that is learnt from
* `frequencies`  how often a sampler with random numbers of its own must emit what
* `grammar`      which tokens a constrained request may emit next: a protocol, and a small automaton
* `sequential`   decoding token by token, without any of the above: what every schedule must equal
* `engine`       all of it together: an inference engine that drafts, verifies and keeps KV for many requests
* `argument_tables` the table of arguments above each function, from which checks and docstrings follow
* `validation`   the checks of arguments, and the switch that turns them off

Each operation is batched, without a Python loop over requests, on any device, and returns its outputs; in-out tensors
are changed in place. `property_tests/naive` has a naive implementation of each; tests require that the two agree.
Wrong arguments raise ValueError.

This package imports torch and nothing else.

Words: a *node* is a token of the tree; node 0 is the root, the last token that is already certain. A *row* of
`req_to_token` belongs to one request and maps its token positions (columns) to KV *slots*. `bs` is the number
of requests.
"""

from specsim.reference.accepted import *
from specsim.reference.cache_locs import *
from specsim.reference.drafting import *
from specsim.reference.grammar import *
from specsim.reference.kv import *
from specsim.reference.logits import *
from specsim.reference.masks import *
from specsim.reference.multi_layer import *
from specsim.reference.sampling import *
from specsim.reference.sequential import *
from specsim.reference.tree import *
from specsim.reference.validation import *
from specsim.reference.verify import *
from specsim.reference.verify_logits import *
