"""The generator service: codes to waveforms, chunk by chunk."""
