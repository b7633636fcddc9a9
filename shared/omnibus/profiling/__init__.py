"""The profiler: what each deployment option of a model can do, measured on this machine under a workload.

One stack is started, as ``omnibus up`` does, and each option is deployed in it once, with what the rest of its path
needs. Requests go over HTTP, and with the header ``x-omnibus-path`` along the path that gives the option its role.

1. *Start.* From the plan being staged to the new executor ready. The stack begins without a model, so that each
   executor is seen to start.
2. *One at a time.* Each type of request by itself, whole: seconds in the executor when nothing else runs, bytes
   from component to component (the bus is listened to), tokens and seconds of speech as the answers tell them.
3. *The mix*, 1, 2, 4, 8 ... requests at a time, each one that ends being followed by the next (closed loop), until
   throughput has grown by less than 5 % twice. What ends while it warms up does not count. The best step gives
   the option's rate: requests per second of the mix, also of those that skip the option.
4. *Each type alone*, with as many at a time as that step had: seconds per request of one replica. Small and
   large ones are measured apart where sizes differ; a line over tokens is put through them. Partial roles (EL
   after E) are measured here only.

Executors tell how long they have computed. An option that was busy for less than 85 % of the time was held back by
others: its seconds follow from the service demand law, busy share / throughput, and its rate from the seconds of
the types. Otherwise they are 1 / throughput, which has all that a replica loses between two batches in it. Options
that only encode are loaded with requests whose answers have one token, so that language models do not hold them
back.

    workload, rows, media   what is sent      chat, load      sending it
    model, trials           what is deployed  house, hearing  deploying it, and listening
    measure                 one option        lines, size     what follows from it
    run, partial            all of them       plot            the picture
"""
