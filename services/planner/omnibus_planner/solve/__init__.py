"""The solver: from profiles, a workload and GPUs to the best deployment, exactly.

    problem.py         components, deployment options, request types: the problem
    enumerate.py       all options that fit the memory of a GPU
    cost_fit.py        from measured rates to seconds per request
    flow_network.py    from options and seconds to arcs: all paths, or listed ones
    flow_matrix.py     the matrix of a network; the rate that given replicas serve
    milp.py, constraints.py, column_selection.py, query.py   one problem for HiGHS, and its rounded answer
    solver.py          most requests within GPUs, fewest GPUs for a rate; replan.py the same within milliseconds
    joint_solver.py, network_parts.py   the same for models that share no option: each alone, and the GPUs divided
    solution.py        the answer and its paths; sensitivity.py its explanation
    cells.py, mixture.py        GPU allocations that serve alone, and the number of each
    traffic.py         traffic between nodes
    placement.py, node_patterns.py, exact_placement.py   a node for each replica: on many nodes, on few
    multi_model.py, slo.py, baselines.py   several models at once; tail latency; rules of others

It uses no bus, no store, and no clock except for deadlines. Rates are in requests per second (req/s), work in seconds
of one replica per request, traffic in GB and GB/s, memory in GB. "The paper" is the one on planning any-to-any models
by cells. Comments mark corrections of its wrong formulas.
"""
