"""llama.cpp's own server: ``python -m tests.bench.llama_cpp_server PORT FILE SLOTS CONTEXT THREADS``, until its end."""

import sys
import time

import xllamacpp


def main() -> None:
    port, file, slots, context, threads = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path, params.port = file, int(port)
    params.n_parallel, params.n_ctx = int(slots), int(slots) * int(context)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.use_jinja, params.verbosity = True, -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
