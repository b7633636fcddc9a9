// Pages that are read again every few seconds for as long as they are shown.

/** Call `read(signal)` now and `ms` after each time that it has ended; `fail(error)` gets what it raises. Returns what ends it. */
export function every(ms, read, fail) {
  const turn = new AbortController();
  let timer = 0;
  const again = async () => {
    try {
      if (!document.hidden) await read(turn.signal);
    } catch (error) {
      if (!turn.signal.aborted) fail(error);
    }
    if (!turn.signal.aborted) timer = setTimeout(again, ms);
  };
  void again();
  return () => {
    turn.abort();
    clearTimeout(timer);
  };
}
