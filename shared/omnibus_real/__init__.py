"""Unit tasks with trained weights from packages, for laptops.

They recognize and speak English, and read text in images, without a GPU. They need the extra ``real``. Importing this
package loads none of its engines: an executor does when it starts.
"""

from omnibus_real.image_text import ImageToRead, ReadImage, ReadText, TextLine
from omnibus_real.recognition import RecognizedSpeech, RecognizeSpeech, SpokenRecording
from omnibus_real.speech import SpeakText, SpokenAudio, TextToSpeak

__all__ = [
    "ImageToRead",
    "ReadImage",
    "ReadText",
    "RecognizeSpeech",
    "RecognizedSpeech",
    "SpeakText",
    "SpokenAudio",
    "SpokenRecording",
    "TextLine",
    "TextToSpeak",
]
