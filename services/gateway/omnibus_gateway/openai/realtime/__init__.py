"""Sessions, items and events of ``/v1/realtime``. Source: the types of the ``openai`` package, 3.52."""
