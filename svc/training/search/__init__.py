"""The search: trials, their budget, sampler, storage and workers."""
