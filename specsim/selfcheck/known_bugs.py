"""The catalogue of known bugs that the project started from, and for each that no mutant re-creates, why not.

An entry is re-created by the mutants whose id is the entry's, with a word behind it or without. The sample is of public
issues and pull requests of several engines; titles say what is wrong, in the words of this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from specsim.selfcheck.catalogue import CATALOGUE, Mutant

CLASSES = {
    "A": "lifetime of results, commit and allocation of KV",
    "B": "order of streams and buffers",
    "C": "content of caches and draft pools",
    "D": "trees, verification, accepted paths",
    "E": "padding and replay of graphs",
    "F": "multi-layer drafts",
    "G": "sampling, rejection, penalties",
    "H": "stop conditions and limits",
    "I": "grammars",
    "J": "logprobs and hidden states",
    "K": "filter and merge of batches",
    "L": "idle ranks, disaggregation, collectives",
    "M": "recurrent state",
    "N": "metrics",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A known bug. `why_not` says in one line why no mutant re-creates it; empty when one does."""

    id: str
    title: str
    references: tuple[str, ...]
    why_not: str = ""

    @property
    def bug_class(self) -> str:
        return CLASSES[self.id[0]]

    @property
    def mutants(self) -> tuple[Mutant, ...]:
        return tuple(mutant for mutant in CATALOGUE if entry_of(mutant) == self.id)


def entry_of(mutant: Mutant) -> str:
    """The id of the entry that a mutant re-creates."""
    return mutant.id.partition("-")[0]


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "A01",
        "a session is saved one token short: the bonus counts only when its result is resolved",
        references=(
            "sgl-project/sglang#22651",
            "sgl-project/sglang#19531",
            "sgl-project/sglang#28754",
        ),
    ),
    Entry(
        "A02",
        "a late result is applied to a request that has finished or was retracted",
        references=(
            "sgl-project/sglang#23456",
            "sgl-project/sglang#18848",
            "sgl-project/sglang#15690",
        ),
    ),
    Entry(
        "A03",
        "tokens accepted beyond the end of the answer are saved in the session",
        references=("sgl-project/sglang#22897",),
    ),
    Entry(
        "A04",
        "trimming an answer leaves the eviction cursor of the sliding window beyond the trim",
        references=("sgl-project/sglang#22900",),
        why_not="the cursor follows lengths whose results were taken, and no trim falls below one",
    ),
    Entry(
        "A05",
        "what a session holds beyond the part that a turn reuses is lost",
        references=("sgl-project/sglang#22862",),
    ),
    Entry(
        "A06",
        "an aborted turn overwrites what its session had kept",
        references=(
            "sgl-project/sglang#22273",
            "sgl-project/sglang#21875",
        ),
    ),
    Entry(
        "A07",
        "the protected length of a paged session is not a whole number of pages",
        references=("sgl-project/sglang#20070",),
    ),
    Entry(
        "A08",
        "prompt logprobs cut the key of a session match, and the session's memory is computed again",
        references=("sgl-project/sglang#20557",),
    ),
    Entry(
        "A09",
        "the freed length is worked out from the outputs instead of what was allocated",
        references=(
            "sgl-project/sglang#12224",
            "sgl-project/sglang-jax#994",
            "sgl-project/sglang-jax#70",
        ),
    ),
    Entry(
        "A10",
        "a retraction forgets the slots of the step in flight",
        references=(
            "sgl-project/sglang#11970",
            "sgl-project/sglang#11976",
            "sgl-project/sglang#11981",
        ),
    ),
    Entry(
        "A11",
        "the memory check before a decode step leaves out the step in flight",
        references=("sgl-project/sglang#14972",),
    ),
    Entry("A12", "fewer draft steps make the allocated length shrink", references=("sgl-project/sglang#23336",)),
    Entry("A14", "a row is narrower than what one launch may allocate", references=("sgl-project/sglang#26972",)),
    Entry("A18", "slots are allocated and the length is not recorded", references=("sgl-project/sglang-jax#1147",)),
    Entry(
        "A19",
        "the ring of future tokens is smaller than what is outstanding, padding included",
        references=("sgl-project/sglang-jax#1487",),
    ),
    Entry(
        "A20",
        "host capacity covers one step where the device runs one ahead",
        references=("NVIDIA/TensorRT-LLM#16280",),
    ),
    Entry(
        "A22",
        "the late result of a preempted step is taken as a fresh one",
        references=(
            "vllm-project/vllm#49620",
            "vllm-project/vllm#41190",
        ),
    ),
    Entry(
        "A23",
        "a placeholder for a draft token reaches the model",
        references=(
            "vllm-project/vllm#46899",
            "vllm-project/vllm#40768",
            "vllm-project/vllm#43434",
            "vllm-project/vllm#37159",
        ),
    ),
    Entry(
        "A24", "a bigram key has as many entries as the sequence has tokens", references=("sgl-project/sglang#40681",)
    ),
    Entry(
        "B01",
        "the row of a finished request is handed out while the device still reads it",
        references=(
            "sgl-project/sglang#18744",
            "sgl-project/sglang#18746",
        ),
    ),
    Entry(
        "B02",
        "the host writes tables that the step in flight still reads",
        references=("sgl-project/sglang#26380",),
    ),
    Entry(
        "B04",
        "the plan of a verification is made from lengths that are still being computed",
        references=(
            "sgl-project/sglang#28034",
            "sgl-project/sglang#22113",
            "sgl-project/sglang#21942",
        ),
    ),
    Entry(
        "B06",
        "one event stands for two launches, and the host waits for the wrong one",
        references=("sgl-project/sglang#31072",),
    ),
    Entry(
        "B08",
        "a captured graph's output buffer is read after the next replay wrote it",
        references=("sgl-project/sglang#19761",),
    ),
    Entry(
        "C01",
        "the prefix cache matches single tokens although draft KV depends on the next one",
        references=(
            "sgl-project/sglang#10846",
            "sgl-project/sglang#11231",
        ),
    ),
    Entry(
        "C02",
        "draft KV of a cached prefix was never written",
        references=(
            "sgl-project/sglang#19796",
            "sgl-project/sglang#19897",
        ),
    ),
    Entry(
        "C03",
        "KV is loaded back from the host for the target and not for the draft",
        references=(
            "sgl-project/sglang#21125",
            "sgl-project/sglang#16964",
        ),
        why_not="there is no host cache of KV in the model, so nothing is loaded back",
    ),
    Entry(
        "C04",
        "storage is written under hashes of bigrams and looked up under hashes of tokens",
        references=("sgl-project/sglang#19570",),
        why_not="there is no storage tier in the model, so no hash is written or looked up",
    ),
    Entry(
        "C05",
        "the eviction frontier of the window is set for plain keys and cuts into a bigram leaf",
        references=(
            "sgl-project/sglang#34870",
            "sgl-project/sglang#34823",
        ),
    ),
    Entry("C07", "the draft pool is smaller than the target's", references=("sgl-project/sglang#17630",)),
    Entry(
        "C10",
        "eviction asks for full slots although window slots are short",
        references=("sgl-project/sglang#29662",),
    ),
    Entry(
        "C11",
        "every launch reserves more than two steps, and evicts what could be reused",
        references=(
            "sgl-project/sglang#32459",
            "sgl-project/sglang#32574",
        ),
    ),
    Entry(
        "C13",
        "a cached block holds recurrent state that rejected drafts wrote",
        references=(
            "vllm-project/vllm#57128",
            "vllm-project/vllm#53912",
        ),
        why_not="recurrent state is not cached in the model: a prefill computes it again from the first token",
    ),
    Entry("C14", "a block can be found in the cache before its KV is written", references=("vllm-project/vllm#41838",)),
    Entry("C15", "a slot's draft context outlives its request", references=("ggml-org/llama.cpp#27852",)),
    Entry(
        "D01",
        "accepted nodes of a tree are taken to be a dense prefix",
        references=(
            "sgl-project/sglang#26866",
            "sgl-project/sglang#15360",
            "sgl-project/sglang#11839",
            "sgl-project/sglang#14077",
        ),
    ),
    Entry(
        "D02",
        "the bonus token is read at the wrong stride",
        references=(
            "sgl-project/sglang#26866",
            "sgl-project/sglang#26981",
            "sgl-project/sglang#15360",
        ),
    ),
    Entry(
        "D03",
        "the move of accepted KV runs over one entry a node, and the index has fewer",
        references=("sgl-project/sglang#26866",),
    ),
    Entry(
        "D04",
        "configurations are routed to a path that does not support them",
        references=(
            "sgl-project/sglang#26981",
            "sgl-project/sglang#26997",
        ),
        why_not="which path a server takes by default is decided at its start; the model has one path",
    ),
    Entry(
        "D05",
        "draft-extend strides by accepted width where rows hold whole trees",
        references=("sgl-project/sglang#27545",),
    ),
    Entry(
        "D06",
        "recurrent state is committed from node accept_len - 1, which is not the last accepted node",
        references=("sgl-project/sglang#27463",),
    ),
    Entry("D08", "the tree builder searches one entry more than there is", references=("sgl-project/sglang#36201",)),
    Entry("D09", "the mask builder reads parents past the row", references=("sgl-project/sgl-kernel-npu#146",)),
    Entry("D11", "a tree of depth one is handled as if it were deeper", references=("NVIDIA/TensorRT-LLM#10385",)),
    Entry(
        "D12",
        "the rows of the tree mask have the wrong width",
        references=(
            "sgl-project/sglang-jax#1611",
            "sgl-project/sglang-jax#1112",
        ),
    ),
    Entry(
        "D14",
        "draft branches share the partial last page of the prefix",
        references=(
            "sgl-project/sglang#9784",
            "sgl-project/sglang#7725",
        ),
        why_not="draft branches have no KV of their own in the model: what they may touch is counted, not written",
    ),
    Entry("E01", "graph buffers are read although the step ran eagerly", references=("sgl-project/sglang#22832",)),
    Entry("E02", "padded rows of a draft-extend graph keep old values", references=("sgl-project/sglang#22958",)),
    Entry(
        "E03",
        "padded rows of the draft's inputs keep old values",
        references=("sgl-project/sglang#18647",),
        why_not="pad rows of the model's graphs may hold anything but slots; their slots are E02's",
    ),
    Entry(
        "E05", "hidden states are written to one buffer and read from another", references=("sgl-project/sglang#21424",)
    ),
    Entry(
        "E06",
        "tokens are padded and the metadata of the batch is not",
        references=(
            "sgl-project/sglang#17076",
            "sgl-project/sglang#24233",
        ),
    ),
    Entry("E07", "a verification has fewer cache locations than tokens", references=("sgl-project/sglang#30354",)),
    Entry("E09", "padded rows are copied into a buffer for real tokens", references=("NVIDIA/TensorRT-LLM#15708",)),
    Entry(
        "E11",
        "the softmax of draft scores is skipped for chains",
        references=(
            "sgl-project/sglang#26358",
            "sgl-project/sglang#26235",
        ),
        why_not="the model's drafter has no scores: trees are drawn, so nothing normalises them",
    ),
    Entry(
        "F01",
        "every layer of a multi-layer draft uses the first layer's pool",
        references=("sgl-project/sglang#22954",),
    ),
    Entry(
        "F02",
        "the tail of a prompt chunk gets the predicted token instead of the next prompt token",
        references=(
            "sgl-project/sglang#26800",
            "sgl-project/sglang#26329",
        ),
    ),
    Entry(
        "F04",
        "the next prompt token is a placeholder outside the vocabulary",
        references=("sgl-project/sglang#27863",),
        why_not="there are no multimodal prompts in the model; every prompt token is in the vocabulary",
    ),
    Entry(
        "F05",
        "a mixed batch reuses cache locations of several tokens for rows of one",
        references=("sgl-project/sglang#26201",),
    ),
    Entry(
        "F06", "chained draft layers all read the first layer's hidden states", references=("vllm-project/vllm#36531",)
    ),
    Entry(
        "F08",
        "an attribute is renamed on one of two paths",
        references=("sgl-project/sglang#16480",),
        why_not="an attribute that is missing fails at import or at the first call; no schedule is needed",
    ),
    Entry(
        "F09",
        "a multi-layer draft is accepted for models without such layers",
        references=("sgl-project/sglang#36536",),
        why_not="a configuration check at start; the swarm draws only configurations that pass",
    ),
    Entry(
        "F10",
        "new weights reach the target and not what the draft shares with it",
        references=(
            "sgl-project/sglang#22088",
            "sgl-project/sglang#22230",
            "sgl-project/sglang#22294",
        ),
        why_not="weights do not change while the model runs",
    ),
    Entry(
        "G01",
        "verification ignores penalties and logit bias",
        references=(
            "sgl-project/sglang#22049",
            "sgl-project/sglang#11762",
        ),
    ),
    Entry(
        "G02",
        "one token of each accepted run is counted for penalties",
        references=(
            "sgl-project/sglang#33643",
            "sgl-project/sglang#22049",
        ),
    ),
    Entry(
        "G03", "a draft of probability zero is accepted when the coin is zero", references=("sgl-project/sglang#35771",)
    ),
    Entry("G04", "sampled verification falls back to greedy", references=("sgl-project/sglang#32922",)),
    Entry(
        "G05",
        "verification leaves out min_p and logit bias, which the bonus gets",
        references=("vllm-project/vllm#42744",),
    ),
    Entry("G06", "a penalty counts the last sampled token twice", references=("vllm-project/vllm#33251",)),
    Entry(
        "G07",
        "one of several placeholders in a history is replaced",
        references=(
            "vllm-project/vllm#30122",
            "vllm-project/vllm#27910",
            "vllm-project/vllm#26467",
        ),
    ),
    Entry(
        "G09",
        "seeded and unseeded requests in one batch: noise is written to a copy",
        references=("vllm-project/vllm#11123",),
    ),
    Entry(
        "G10",
        "the acceptance ratio leaves out the temperature",
        references=(
            "vllm-project/vllm#9834",
            "vllm-project/vllm#10198",
        ),
    ),
    Entry(
        "G12",
        "one coin decides every position of a chain",
        references=(
            "flashinfer-ai/flashinfer#424",
            "flashinfer-ai/flashinfer#425",
        ),
    ),
    Entry(
        "G14",
        "the residual distribution removes the rejected token alone",
        references=(
            "SafeAILab/EAGLE#20",
            "SafeAILab/EAGLE#329",
            "SafeAILab/EAGLE#183",
        ),
        why_not="verification draws with the target's coins alone; residual distributions are judged at the ops tier",
    ),
    Entry(
        "G15",
        "the draft distribution that is divided by is not the one that was sampled from",
        references=(
            "huggingface/transformers#47932",
            "deepseek-ai/DeepSpec#31",
        ),
        why_not="the model's drafter has no distribution; ratios are judged at the ops tier",
    ),
    Entry("G17", "accepted tokens are reported with probability one", references=("ggml-org/llama.cpp#27972",)),
    Entry(
        "H01",
        "the length cap is looked at before a stop token in the same run",
        references=(
            "sgl-project/sglang#33758",
            "sgl-project/sglang#31599",
            "sgl-project/sglang#31569",
            "sgl-project/sglang#30291",
            "sgl-project/sglang#33045",
        ),
    ),
    Entry("H02", "the finish check looks at the last token of a run alone", references=("sgl-project/sglang#11819",)),
    Entry("H04", "tokens accepted after the end stay", references=("ggml-org/llama.cpp#28049",)),
    Entry(
        "H06",
        "a full batch stays marked as full when a request ends with its prefill",
        references=("sgl-project/sglang#4185",),
    ),
    Entry(
        "H07",
        "the length limit of a request includes the engine's own reserve",
        references=("NVIDIA/TensorRT-LLM#16826",),
    ),
    Entry(
        "I01",
        "one grammar mask serves all positions of a tree",
        references=(
            "sgl-project/sglang#13019",
            "sgl-project/sglang#11762",
        ),
    ),
    Entry(
        "I02",
        "a run goes on after the grammar has ended in it",
        references=(
            "sgl-project/sglang#24082",
            "sgl-project/sglang#28682",
        ),
    ),
    Entry(
        "I03",
        "nobody looks whether the grammar ended after a run was accepted",
        references=("sgl-project/sglang#21723",),
    ),
    Entry(
        "I04",
        "the next batch is made before the result that ends one of its requests is processed",
        references=(
            "sgl-project/sglang#28986",
            "sgl-project/sglang#27324",
            "sgl-project/sglang#27325",
            "sgl-project/sglang#28312",
            "sgl-project/sglang#28484",
        ),
    ),
    Entry(
        "I06",
        "the grammar is not advanced by the token of a prefill that ran elsewhere",
        references=("sgl-project/sglang#25388",),
    ),
    Entry(
        "I07",
        "a grammar backend without rollback and with dense masks is used as if it had both",
        references=(
            "sgl-project/sglang#24413",
            "sgl-project/sglang#24889",
        ),
    ),
    Entry(
        "I08",
        "a mask is asked of a grammar that has ended",
        references=(
            "sgl-project/sglang#14464",
            "openvinotoolkit/openvino.genai#4081",
        ),
    ),
    Entry("I10", "draft tokens of before a preemption are masked after it", references=("vllm-project/vllm#30916",)),
    Entry(
        "I11",
        "reasoning ends inside a draft, and the grammar starts a step late",
        references=(
            "vllm-project/vllm#34241",
            "vllm-project/vllm#31858",
            "vllm-project/vllm#44993",
            "vllm-project/vllm#48516",
        ),
        why_not="grammars begin with the first token: there are no reasoning markers in the model",
    ),
    Entry("I12", "rollback does not take back that the grammar had ended", references=("vllm-project/vllm#25905",)),
    Entry("I14", "drafts after the first are not masked", references=("NVIDIA/TensorRT-LLM#7878",)),
    Entry(
        "I15",
        "a step without drafts has a mask of another size than its logits",
        references=("NVIDIA/TensorRT-LLM#15022",),
        why_not="the model has no step without drafts",
    ),
    Entry(
        "J01",
        "the draft pass inherits the request for logprobs",
        references=(
            "sgl-project/sglang#17349",
            "sgl-project/sglang#21589",
            "sgl-project/sglang#14046",
        ),
    ),
    Entry(
        "J03", "hidden states move on one row a step instead of one a token", references=("sgl-project/sglang#26163",)
    ),
    Entry(
        "K01",
        "an index into a batch lacks the request's offset",
        references=(
            "sgl-project/sglang#2730",
            "sgl-project/sglang#2723",
        ),
    ),
    Entry(
        "K03",
        "state of the batch that is longer than the batch is cut instead of filtered",
        references=(
            "sgl-project/sglang#14368",
            "sgl-project/sglang#14536",
        ),
    ),
    Entry(
        "K04", "merging with an empty batch does not leave the other as it is", references=("sgl-project/sglang#10090",)
    ),
    Entry("L01", "an idle batch reaches code that takes a maximum over it", references=("sgl-project/sglang#33892",)),
    Entry("L02", "an idle rank leaves out a collective that others wait in", references=("sgl-project/sglang#29144",)),
    Entry(
        "L04",
        "a prefill elsewhere sends the target's hidden states instead of the draft's",
        references=(
            "sgl-project/sglang#9976",
            "sgl-project/sglang#10059",
        ),
        why_not="no prefill is handed from one engine to another in the model",
    ),
    Entry(
        "L05",
        "transfer buffers are sized by the target's hidden size",
        references=(
            "sgl-project/sglang#13590",
            "sgl-project/sglang#23918",
            "sgl-project/sglang#23919",
        ),
        why_not="buffers between engines have no width in the model",
    ),
    Entry(
        "L06",
        "a transferred request starts with made-up draft candidates",
        references=("sgl-project/sglang#10616",),
        why_not="no prefill is handed from one engine to another in the model",
    ),
    Entry(
        "L07",
        "ranks draw their own coins and accept differently",
        references=("vllm-project/vllm#17498",),
        why_not="one rank is simulated; others take part in its collectives only",
    ),
    Entry("M01", "recurrent state of accepted tokens is not committed", references=("sgl-project/sglang#26351",)),
    Entry(
        "N01",
        "late results inflate the batch's statistics",
        references=(
            "sgl-project/sglang#15690",
            "sgl-project/sglang#18848",
        ),
    ),
)
