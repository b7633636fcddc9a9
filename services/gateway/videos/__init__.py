"""Videos, as jobs that outlive the requests that ask for them: any gateway tells of them, one at a time makes each.

``service`` is what the routes call; ``worker`` takes jobs from the store and holds them by a ``lease``; ``generate``
makes one, by ``writer``; ``storage`` keeps what is made; ``job_payload`` is how a job is stored, and ``mirror``
what a gateway remembers of all jobs, for a store that loses them.
"""
