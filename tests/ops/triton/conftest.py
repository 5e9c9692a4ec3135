"""Kernels run here by Triton's interpreter, in a process of their own.

Triton decides at its first import whether it compiles or interprets, for the whole process; and with the interpreter
`implementations()` gains a member. So an ordinary test session collects `test_compiled.py` and `test_interpreter.py`;
the latter runs pytest on this folder under TRITON_INTERPRET=1, where the kernels' own tests are collected.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    collect_ignore = ["test_interpreter.py", "test_compiled.py"]
else:
    collect_ignore = ["test_operators.py", "test_results.py", "test_sweep.py"]
