"""A connection that is kept for commands of one kind, which come one after the other and often.

To take one from redis-py's pool for each of them, and to give it back, costs as much as the command.
"""

from typing import Any


class OwnConnection:
    """Keeps one connection of the pool of ``client``, one of redis-py, once it was used."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None  # None while it is in use

    async def run_command(self, *arguments: Any) -> Any:
        """The answer to a command. Raises what redis-py raises; the next command then has another connection."""
        connection, self._connection = self._connection, None
        if connection is None:
            connection = await self._pool.get_connection()
        try:
            await connection.send_packed_command(connection.pack_command(*arguments), check_health=False)
            answer = await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            raise
        if self._connection is None:
            self._connection = connection
        else:  # of another command at the same time
            await self._pool.release(connection)
        return answer
