"""``torch.compile`` with ComFuse: a pass over TorchInductor's graphs that puts fused kernels where they pay.

The data flows one way::

    contest.find       graph -> candidates: connected parts around a GEMM that the front end may know
    lowerer.lower      candidate -> found: its spec, as the front end reads it
    choose.worthwhile  found -> verdict: faster than what TorchInductor makes of it, or left
    replace.replace    found -> the graph with one call of the op in its place

Every GEMM of a graph ends with a :class:`~comfuse.inductor.verdict.Verdict`.  Nothing here looks at the
device: what is fused on a CPU is what is fused on the GPU that the policy names.
"""
