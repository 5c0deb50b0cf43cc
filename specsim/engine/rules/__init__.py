"""What is held of every schedule: rules, the ledgers that they read, and the oracle of tokens.

Ledgers are fed by the memory classes and the loop, never by the accounting that is tested. Imports neither torch nor
triton.
"""
