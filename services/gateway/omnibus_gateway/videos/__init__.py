"""Videos as jobs that outlive their requests: any gateway reports them, one at a time makes each.

- ``service``: the operations of the routes.
- ``worker``: takes jobs from the store and holds them with a ``lease``.
- ``generate``: makes one video with a ``writer``.
- ``storage``: stores finished videos.
- ``job_payload``: the format of a job in the store.
- ``mirror``: a copy of all jobs at each gateway, in case the store loses them.
"""
