"""The solver: profiles, a workload and GPUs to the best deployment, exactly. No bus, no store, no clock but deadlines.

    problem.py         components, deployment options, request types: the question
    enumerate.py       all options that fit the memory of a GPU
    cost_fit.py        measured rates to seconds per request
    flow_network.py    options and seconds to arcs: all paths, or listed ones
    flow_matrix.py     the matrix of a network; what given replicas serve
    milp.py, constraints.py, column_selection.py, query.py   one question to HiGHS, and its rounded answer
    solver.py          most requests within GPUs, fewest GPUs for a rate; replan.py the same within milliseconds
    solution.py        the answer, its paths; sensitivity.py why it is the answer
    cells.py, mixture.py        GPU allocations that serve alone, and how many of each
    topology.py, traffic.py     nodes and what flows between them
    placement.py, exact_placement.py   a node for each replica
    multi_model.py, slo.py, baselines.py   several models at once; tail latency; what others do

Rates are in requests per second (req/s), work in seconds of one replica per request, traffic in GB and
GB/s, memory in GB. "The paper" is the one on planning any-to-any models by cells; where its formulas are
wrong the code says what it does instead.
"""
