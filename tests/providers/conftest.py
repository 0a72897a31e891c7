"""What the providers' tests share."""

from __future__ import annotations

import hypothesis

# A busy machine is no failure.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
