"""Grammar libraries behind `specsim.reference.grammar.Grammar`: the masks that engines use, for the sequential oracle.

Both adapters are given a matcher of the library, so that neither library is imported here:

    XGrammar(xgrammar.GrammarMatcher(compiled_grammar), vocab_size)
    LLGuidance(llguidance.LLMatcher(tokenizer, grammar), vocab_size, tokenizer.eos_tokens)
"""

from specsim.grammar.llguidance import LLGuidance
from specsim.grammar.xgrammar import XGrammar

__all__ = ["LLGuidance", "XGrammar"]
