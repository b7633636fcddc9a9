"""Pronunciation of unknown English words by their letters: the trained network of the package ``g2p_en``.

The network is an encoder and a decoder, each one gated recurrent unit (Cho et al., 2014, arXiv:1406.1078). Its package
has it as arrays, and code that needs nltk and downloads; that code is not imported.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

#: Symbols of the lexicon for vowels and consonants of ARPABET.
_VOWELS = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "EH": "ɛ", "ER": "ɜɹ", "EY": "A",
    "IH": "ɪ", "IY": "i", "OW": "O", "OY": "Y", "UH": "ʊ", "UW": "u",
}  # fmt: skip
_CONSONANTS = {
    "B": "b", "CH": "ʧ", "D": "d", "DH": "ð", "F": "f", "G": "ɡ", "HH": "h", "JH": "ʤ", "K": "k", "L": "l",
    "M": "m", "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t", "TH": "θ", "V": "v",
    "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}  # fmt: skip
#: Vowels without stress, whose number in ARPABET is 0.
_WEAK = {"AH0": "ə", "ER0": "əɹ", "UW": "u"}
_PHONEMES = {
    **_CONSONANTS,
    **{
        f"{name}{number}": mark + phoneme
        for name, phoneme in _VOWELS.items()
        for number, mark in enumerate(("", "ˈ", "ˌ"))
    },
    **_WEAK,
}

#: Vocabularies in the order of the network's rows.
_LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
_SPELLED = ("", "", "", "", *(_PHONEMES[name] for name in sorted(_PHONEMES)))
_START, _END = 2, 3


class GraphemeToPhoneme:
    """The network. ``file`` has its weights as arrays of numpy."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            self._weights: Weights = {name: arrays[name] for name in arrays.files}

    def pronounce(self, word: str) -> str:
        """Return the phonemes of ``word`` in the symbols of the lexicon. It has letters a to z."""
        weights = self._weights
        state = np.zeros(weights["enc_w_hh"].shape[1], np.float32)
        for letter in [*map(_LETTERS.index, word), _LETTERS.index("</s>")]:
            state = self._step("enc", weights["enc_emb"][letter], state)
        phonemes: list[str] = []
        phoneme = _START
        for _ in range(2 * len(word) + 4):
            state = self._step("dec", weights["dec_emb"][phoneme], state)
            phoneme = int((weights["fc_w"] @ state + weights["fc_b"]).argmax())
            if phoneme == _END:
                break
            phonemes.append(_SPELLED[phoneme])
        return "".join(phonemes)

    def _step(self, part: str, inputs: NDArray[np.float32], state: NDArray[np.float32]) -> NDArray[np.float32]:
        names = (f"{part}_{name}" for name in ("w_ih", "b_ih", "w_hh", "b_hh"))
        weights_in, bias_in, weights_state, bias_state = (self._weights[name] for name in names)
        reset_in, update_in, new_in = np.split(weights_in @ inputs + bias_in, 3)
        reset_state, update_state, new_state = np.split(weights_state @ state + bias_state, 3)
        update = _sigmoid(update_in + update_state)
        new: NDArray[np.float32] = np.tanh(new_in + _sigmoid(reset_in + reset_state) * new_state)
        return new + update * (state - new)


def _sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.reciprocal(1 + np.exp(-values), dtype=np.float32)
