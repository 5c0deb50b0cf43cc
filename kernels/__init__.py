"""Every operation in Triton: one launch each, two where a docstring says so, ready for CUDA graphs.

Every host function has the operation's name and the contract's arguments, outputs included, which it writes in place.
It allocates nothing, never waits for the device, reads no tensor value on the host, and compiles once per engine
configuration (topk, num_steps, num_draft_tokens, mask mode, vocabulary, hidden size), not once per batch size;
`move_kv`, `row_argmax`, `temperature_softmax`, `verify_chain_block`, `verify_tree_rejection` and
`verify_ragged_sampled` say where they differ.
Kernels write every defined output element themselves, the -1 padding included, so that a buffer that is used again
needs no prefill. Offsets that grow with the batch or the pool are int64.

Values are not checked, for that would read them. Wrong ones give wrong results, but a walk over broken links
ends, and no row or column outside the tensors is touched on behalf of a segment that is too long.

What is checked is that types, shapes, dtypes and devices are the contract's and tensors contiguous
(`launch.checked_launch`); what is wrong is a ValueError that names the argument, before any launch. With
TRITON_INTERPRET=1 in the environment before triton is imported, the same functions run on CPU tensors.

Kernels name their variables `i_` index, `p_` pointer, `o_` offsets, `m_` mask, `b_` block of values.
"""

from triton import knobs

from specsim.contracts.contract import Implementation, Sizes
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS
from specsim.kernels.accepted import *
from specsim.kernels.alloc import *
from specsim.kernels.cache_locs import *
from specsim.kernels.drafting import *
from specsim.kernels.kv import *
from specsim.kernels.kv_move import *
from specsim.kernels.logits import *
from specsim.kernels.masks import *
from specsim.kernels.multi_layer import *
from specsim.kernels.renorm import *
from specsim.kernels.sampling import *
from specsim.kernels.tree import *
from specsim.kernels.verify import *
from specsim.kernels.verify_chain import *
from specsim.kernels.verify_logits import *
from specsim.kernels.verify_ragged import *
from specsim.kernels.verify_sampled import *
from specsim.kernels.verify_tree import *

KERNELS: tuple[Implementation, ...] = tuple(kernel for name in OPS if callable(kernel := globals().get(name)))

ROWS_INTERPRETED_MAX = 48
"""Programs that Triton's interpreter, which runs them one after the other, gets through in good time."""


def provider() -> MappingProvider:
    """The provider "triton": a kernel for each operation of the registry that has one, in its order.

    In the interpreter, cases of operations on whole rows of logits have at most `ROWS_INTERPRETED_MAX` rows.
    """
    named = {kernel.__name__: kernel for kernel in KERNELS}
    accepts = {name: _is_quick for name in named if OPS[name].family in ("logits", "sampling")}
    return MappingProvider("triton", named, reach="default", accepts=accepts if knobs.runtime.interpret else {})


def _is_quick(sizes: Sizes) -> bool:
    return sizes["num_nodes"] <= ROWS_INTERPRETED_MAX
