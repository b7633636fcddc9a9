"""Connection reserved for frequent sequential commands of one kind.

Taking a connection from redis-py's pool and returning it costs as much as the command.
"""

from typing import Any


class OwnConnection:
    """Keeps one connection of the redis-py ``client``'s pool after its first use."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None  # None while it is in use

    async def run_command(self, *arguments: Any) -> Any:
        """Return the answer to a command. Raises redis-py's errors; the next command then reconnects."""
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
        else:  # of a concurrent command
            await self._pool.release(connection)
        return answer
