"""``omnibus lab``: the headline experiments of four papers in virtual time, with the papers' figures beside ours.

experiment.py   what an experiment is, and what it finds: claims, tables, plots
registry.py     all experiments by name
world.py        models of the lab: times, profile, plans, runs
staged_cluster.py, goodput.py   TriInfer's model, goals and stages on 8 GPUs
omni.py, strategies.py, routing.py, triinfer.py, modserve.py   the experiments
digest.py       the code that an experiment measures, as a digest: results of other code are stale
results.py      results as files; page.py: docs/lab.md of them; svg.py: plots

Nothing of it runs in a service. Experiments are functions without arguments that give the same answer each time.
"""
