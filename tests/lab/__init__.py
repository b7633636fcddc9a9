"""``python -m tests.lab``: the headline experiments of four papers in virtual time.

Each result has the paper's figures next to ours.

    experiment.py   experiments and their findings: claims, tables, plots
    registry.py     all experiments by name
    world.py        models of the lab: times, profile, plans, runs
    staged_cluster.py, goodput.py   TriInfer's model, goals and stages on 8 GPUs
    omni.py, strategies.py, routing.py, triinfer.py, modserve.py   the experiments
    digest.py       digest of the code that an experiment measures: results of other code are stale
    results.py      results as files; page.py: docs/lab.md from them; svg.py: plots
    solve.py, cases.py, answers.py   ``python -m tests.lab.solve``: the solver's answers to cases in a file
    topology.py     replicas on nodes with limited links, as one program; only cases use it

No service runs this code, and the wheel is without it. Experiments are functions without arguments that return the same result each time.
"""
