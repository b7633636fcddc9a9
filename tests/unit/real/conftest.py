"""The unit tasks of ``omnibus_real``, each loaded once."""

import pytest

from omnibus_real import ReadImage, RecognizeSpeech, SpeakText


@pytest.fixture(scope="session")
def speaker() -> SpeakText:
    task = SpeakText()
    task.load()
    return task


@pytest.fixture(scope="session")
def recognizer() -> RecognizeSpeech:
    task = RecognizeSpeech()
    task.load()
    return task


@pytest.fixture(scope="session")
def reader() -> ReadImage:
    task = ReadImage()
    task.load()
    return task
