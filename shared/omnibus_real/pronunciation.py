"""Pronunciation of English words: the lexicon of the package ``misaki``, endings, and a network for unknown words.

The lexicon has one symbol for each diphthong and affricate. ``transcribe`` returns the symbols of Piper's voices, which
are those of espeak-ng: IPA with lengths.
"""

import json
import re
from collections.abc import Iterator

from omnibus_real.grapheme_to_phoneme import GraphemeToPhoneme
from omnibus_real.packages import package_directory

_LEXICONS = ("us_gold.json", "us_silver.json")
#: Weak forms, before a consonant and before a vowel. The lexicon has the strong ones.
_WEAK_FORMS = {"the": ("ðə", "ðɪ"), "a": ("ə", "ə"), "to": ("tə", "tʊ")}
_TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*'?|[.,;:!?]")
_CASE_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_VOWELS = "AIOWYiuæɑəɛɪʊʌɔɜᵊᵻ"
_MARKS = "ˈˌ"
_VOICELESS, _HISSING = tuple("ptkfθsʃʧ"), tuple("szʃʒʧʤ")
#: A word that is spelled if the lexicon does not have it.
_ACRONYM = re.compile("[A-Z]{2,5}s?")

#: Voice's symbols for those of the lexicon, in this order.
_REWRITES = tuple(
    (re.compile(pattern), symbols)
    for pattern, symbols in (
        ("ɜɹ", "ɜː"),
        ("əɹ", "ɚ"),
        ("^ə(?=[^ɹ])", "ɐ"),
        ("ʔn", "ʔn̩"),
        (rf"(?<=[{_MARKS}])i|^([^{_MARKS}{_VOWELS}]*)i$", r"\1iː"),
        ("u", "uː"),
        ("ɑ", "ɑː"),
        ("ɔ(?!n$)", "ɔː"),
        ("A", "eɪ"),
        ("I", "aɪ"),
        ("O", "oʊ"),
        ("W", "aʊ"),
        ("Y", "ɔɪ"),
        ("ʤ", "dʒ"),
        ("ʧ", "tʃ"),
        ("ᵊ", "ə"),
    )
)


class Pronunciation:
    """The lexicon and the network, loaded."""

    def __init__(self) -> None:
        directory = package_directory("misaki") / "data"
        self._words: dict[str, str] = {}
        for name in reversed(_LEXICONS):  # the first one has priority
            entries = json.loads((directory / name).read_bytes())
            self._words |= {word: _default_of(entry) for word, entry in entries.items()}
        self._letters = GraphemeToPhoneme(package_directory("g2p_en") / "checkpoint20.npz")

    def transcribe(self, sentence: str) -> str:
        """Return the phonemes of ``sentence``: words of letters a to z, with punctuation, and without numbers."""
        tokens = _TOKEN.findall(sentence)
        phonemes = [self._pronounce(token) if token[0].isalpha() else token for token in tokens]
        for place, (token, following) in enumerate(zip(tokens, phonemes[1:], strict=False)):
            if (forms := _WEAK_FORMS.get(token.lower())) and following[0].isalpha() | (following[0] in _MARKS):
                phonemes[place] = forms[following.lstrip(_MARKS)[0] in _VOWELS]
        return re.sub(" (?=[.,;:!?])", "", " ".join(map(_rewrite, phonemes)))

    def _pronounce(self, word: str) -> str:
        """Return the phonemes of ``word`` in the symbols of the lexicon."""
        if phonemes := self._find_word(word) or self._add_ending(word):
            return phonemes
        if _ACRONYM.fullmatch(word):
            return "".join(self._words[letter] if letter.isupper() else "z" for letter in word)
        parts = _CASE_PARTS.findall(word)
        if len(parts) > 1:
            return "".join(map(self._pronounce, parts))
        return self._letters.pronounce(word.lower().replace("'", ""))

    def _find_word(self, word: str) -> str:
        names = (word, word.lower(), word.capitalize()) if word.islower() or word.istitle() else (word,)
        return next((self._words[name] for name in names if name in self._words), "")

    def _add_ending(self, word: str) -> str:
        """Return the phonemes of ``word`` by those of its stem; "" without one."""
        for ending, stem in _stems(word):
            if phonemes := self._find_word(stem):
                return phonemes + _ending_phonemes(ending, phonemes)
        return ""


def _default_of(entry: str | dict[str, str]) -> str:
    """Return the usual pronunciation of an entry."""
    return entry if isinstance(entry, str) else entry["DEFAULT"]


def _rewrite(phonemes: str) -> str:
    for pattern, symbols in _REWRITES:
        phonemes = pattern.sub(symbols, phonemes)
    return phonemes


def _stems(word: str) -> Iterator[tuple[str, str]]:
    """Yield endings of ``word``, with the possible stems of each."""
    for ending, letters in (
        ("s", "'s"),
        ("s", "s'"),
        ("s", "es"),
        ("s", "s"),
        ("d", "ed"),
        ("ing", "ing"),
        ("li", "ly"),
    ):
        if word.endswith(letters) and len(word) > len(letters) + 2:
            stem = word[: -len(letters)]
            yield from ((ending, each) for each in (stem, stem + "e", stem[:-1] + "y" * (stem[-1] == "i")) if each)
            if stem[-1] == stem[-2]:
                yield ending, stem[:-1]


def _ending_phonemes(ending: str, phonemes: str) -> str:
    if ending == "s":
        return "ᵻz" if phonemes.endswith(_HISSING) else "s" if phonemes.endswith(_VOICELESS) else "z"
    if ending == "d":
        return "ᵻd" if phonemes.endswith(("t", "d")) else "t" if phonemes.endswith(_VOICELESS) else "d"
    return {"ing": "ɪŋ", "li": "li"}[ending]
