"""Makes the classifier that the settings describe."""

from __future__ import annotations

from mead.router.classifier.auto import AutoClassifier
from mead.router.classifier.gate import PrivacyGate
from mead.settings import Settings

TRAFFIC_FILE = "traffic.json"


def make_classifier(settings: Settings, *, keeps: bool = False) -> AutoClassifier:
    """The built-in classifier. With `keeps` it writes what it learns of the person's turns, which is counts
    of scores, into the data folder."""
    chosen = settings.classifier
    gate = PrivacyGate(
        profile=chosen.profile,
        words=chosen.private_words,
        paths=chosen.private_paths,
        patterns=chosen.private_patterns,
        prefixes=chosen.private_prefixes,
    )
    file = settings.data_folder / TRAFFIC_FILE if keeps and chosen.adapt else None
    return AutoClassifier(gate=gate, cloud_share=chosen.cloud_share, traffic_file=file)
