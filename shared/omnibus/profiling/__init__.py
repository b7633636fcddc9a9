"""Profiler: measures each deployment option of a model on this machine under a workload.

The profiler starts one stack, as ``omnibus up`` does. In it, it deploys each option once, with the components that the
rest of the option's path needs. Requests go over HTTP. The header ``x-omnibus-path`` sends them along the path that
gives the option its role.

1. *Start.* From the staging of the plan to the readiness of the new executor. The stack begins without a model, so that
   the profiler sees each executor start. Caches are off, since the same requests repeat.
2. *One at a time.* Whole requests of each type, with nothing else running: executor seconds, and bytes from
   component to component, counted on the bus.
3. *The mix*, 1, 2, 4, 8 ... requests at a time in a closed loop, until throughput has grown by less than 5 % twice.
   Requests that end during the warm-up do not count. The best step gives the option's rate: requests per second of the
   mix, including those that skip the option.
4. *Each type alone*, with enough requests to make the option the bottleneck. This gives the seconds per request of one
   replica, and the sizes of these requests as reported in the answers. Small and large requests are measured separately
   if their sizes differ. Partial roles (EL after E) are measured only in this step.
5. *Other sizes* of a request, to fit a line over each size for each component.

Executors report how long they have computed, and how full their batches were. An option is the bottleneck if it is busy
all the time with full batches. Until then, the profiler sends more requests and adds replicas of the other busy options
of the path. If that does not help, the option's seconds follow from the service demand law (busy share / throughput).
Its rate then follows from the seconds of the types. Otherwise they are 1 / throughput, which includes all that a
replica loses between two batches. An option that was not busy has no seconds. Options that only encode get requests
whose answers have one token, so that language models do not slow them down.

    workload, csv_workload, media, size_variants   requests to send
    client, load_generator                         sending them
    measured_model, experiments                    what to deploy
    testbed, monitor, engine_stats                 deployment and bus events
    loaded_option, steps, measure                  one option
    linear_fit, memory, conclusions                what follows from measurements
    run, checkpoint, measurements                  all options
    plot                                           the plot
"""
