"""The profiler: what each deployment option of a model can do, measured on this machine under a workload.

One stack is started, as ``omnibus up`` does, and each option is deployed in it once, with what the rest of its path
needs. Requests go over HTTP, and with the header ``x-omnibus-path`` along the path that gives the option its role.

1. *Start.* From the plan being staged to the new executor ready. The stack begins without a model, so that each
   executor is seen to start. Caches are off: the same requests come again and again.
2. *One at a time.* Each type of request by itself, whole: seconds in the executor when nothing else runs, and bytes
   from component to component (the bus is listened to).
3. *The mix*, 1, 2, 4, 8 ... requests at a time, each one that ends being followed by the next (closed loop), until
   throughput has grown by less than 5 % twice. What ends while it warms up does not count. The best step gives
   the option's rate: requests per second of the mix, also of those that skip the option.
4. *Each type alone*, so many at a time that the option is what holds them back: seconds per request of one replica, and
   the sizes of these requests as the answers tell them. Small and large ones are measured apart where sizes differ.
   Partial roles (EL after E) are measured here only.
5. *Other sizes* of a request, so that there is a line over each size for each component.

Executors tell how long they have computed, and how full their batches were. While an option is not the bottleneck,
busy all the time with full batches, it gets more requests, and what else is busy on its path more replicas. Where that
does not help its seconds follow from the service demand law, busy share / throughput, and its rate from the seconds of
the types. Otherwise they are 1 / throughput, which has all that a replica loses between two batches in it. One that
was not busy has none. Options that only encode are loaded with requests whose answers have one token, so that language
models do not hold them back.

    workload, csv_workload, media, size_variants   requests to send
    client, load_generator                         sending them
    measured_model, experiments                    what to deploy
    testbed, monitor, engine_stats                 deploying it, and listening
    loaded_option, steps, measure                  one option
    linear_fit, memory, conclusions                what follows from measurements
    run, checkpoint, measurements                  all options
    plot                                           the picture
"""
