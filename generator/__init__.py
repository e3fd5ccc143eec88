"""The pure half of ComFuse: from a :class:`~comfuse.generator.spec.FusedSpec` to the text of one kernel.

No torch, no CUDA, no files but its own templates, no environment, no clock: the same input gives the
same bytes on any machine.  The stages, in order::

    spec -> passes.normalize -> phases.split -> plan.plan -> emit.emit

and of GEMMs back to back, link by link up to the plan::

    chain -> chain.normalize_chain -> deferral.defer -> phases.split -> plan.plan -> emit.emit
"""
