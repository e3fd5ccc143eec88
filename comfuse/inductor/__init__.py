"""``torch.compile`` with ComFuse: a pass over TorchInductor's graphs that puts fused kernels where they pay.

The data flows one way::

    contest.find      graph -> candidates: connected parts around GEMMs that the front end takes, those that
                      follow each other joined where one kernel pays (chains.join)
    lowerer.lowered   candidate -> found: its spec, and which of its inputs and outputs are what of it
    choose.verdict    found -> verdict: faster than what TorchInductor makes of it, or left
    jit.settle        verdicts -> verdicts, where kernels are built or cannot be
    replace.replace   found -> the graph with calls of the op in its place

``run`` is all of it, ``hook`` the passes that TorchInductor calls, ``entrances`` what users call.  In
training ``save`` says before that which of several values the forward pass keeps for the backward pass.

Every GEMM of a graph ends with a :class:`~comfuse.inductor.verdict.Verdict`.  Nothing here looks at the
device: what is fused on a CPU is what is fused on the GPU that the policy names.
"""
