"""How often a model that had to find the language out named the right one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nemostream.evaluate.normalize import language_code
from nemostream.evaluate.results import Results

AUTO = "auto"  # the prompt that leaves the language to the model


@dataclass(frozen=True)
class LanguageScore:
    """What the model named in the utterances of one language; regions do not count.

    Attributes:
        name: language code of the manifest, or "all".
        utterances: number of them.
        right: utterances in which it named this language.
        unnamed: utterances in which it named none.
        mistaken: language code that it named instead -> utterances, the most frequent first.
    """

    name: str
    utterances: int
    right: int
    unnamed: int
    mistaken: dict[str, int]

    @property
    def accuracy(self) -> float:
        """Share of utterances with the right language."""
        return self.right / self.utterances


def language_scores(results: Results) -> tuple[LanguageScore, ...]:
    """Scores by language and of all; none if the model was told the languages."""
    if results.language != AUTO:
        return ()
    pairs = [
        (language_code(item.lang), None if item.named is None else language_code(item.named))
        for item in results.utterances
    ]
    languages = sorted({lang for lang, _ in pairs})
    scores = [_score(name, [pair for pair in pairs if pair[0] == name]) for name in languages]
    return (*scores, _score("all", pairs)) if len(scores) > 1 else tuple(scores)


def _score(name: str, pairs: list[tuple[str, str | None]]) -> LanguageScore:
    mistaken = Counter(named for lang, named in pairs if named is not None and named != lang)
    return LanguageScore(
        name=name,
        utterances=len(pairs),
        right=sum(lang == named for lang, named in pairs),
        unnamed=sum(named is None for _, named in pairs),
        mistaken=dict(mistaken.most_common()),
    )
